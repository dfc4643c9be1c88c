//! Servers that are one store together: a Cluster by the URLs of some nodes, or the Sentinels of a master.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::ConnectionInfo;
use tokio::time::timeout;

use super::endpoint::{Access, Endpoint};
use crate::Error;
use crate::error::Outage;

/// How long one server alone may take to answer. Then the next one is asked as well.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Servers that are one store together.
pub(crate) struct Urls {
    pub(super) infos: Vec<ConnectionInfo>,
    pub(super) access: Access,
}

impl Urls {
    pub(crate) fn new(
        what: &str,
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        access: &Access,
    ) -> Result<Self, Error> {
        let infos = urls.into_iter().map(|url| access.info(url.as_ref())).collect::<Result<Vec<_>, _>>()?;
        if infos.is_empty() {
            return Err(Error::invalid(format!("{what} needs the URL of at least one server, got none")));
        }
        Ok(Self { infos, access: access.clone() })
    }

    /// Whether a server is named by both.
    pub(super) fn overlap(&self, others: &[ConnectionInfo]) -> bool {
        self.infos.iter().any(|info| others.iter().any(|other| info.addr() == other.addr()))
    }

    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.infos.iter().map(|info| info.addr().to_string()).collect();
        addresses.join(", ")
    }
}

/// Asks one server after the other until one answers. Fails with the last outage, if there was any. `waits`: until all have
/// answered; otherwise the last one gets no more time than the others.
pub(super) async fn ask_in_turn<T, A: Future<Output = Result<T, Outage>>>(
    mut servers: impl Iterator<Item = Endpoint>,
    waits: bool,
    ask: impl Fn(Endpoint) -> A,
) -> Result<T, Option<Outage>> {
    let (mut asked, mut outage) = (FuturesUnordered::new(), None);
    loop {
        match servers.next() {
            Some(server) => asked.push(ask(server)),
            None if asked.is_empty() || !waits => return Err(outage),
            None => {}
        }
        match timeout(NEXT_AFTER, asked.next()).await {
            Ok(Some(Ok(told))) => return Ok(told),
            Ok(Some(Err(failed))) => outage = Some(failed),
            Ok(None) | Err(_) => {}
        }
    }
}
