//! Several servers from URLs, which are queried in turn: some nodes of a Cluster, or the Sentinels of a master.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::ConnectionInfo;
use tokio::time::timeout;

use crate::error::Error;
use crate::error::reasons::Outage;
use crate::store::redis::endpoint::{Access, Endpoint};

/// How long to wait for one server before the next one is queried as well.
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// The servers that form one store.
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
        let infos = urls
            .into_iter()
            .map(|url| access.info(url.as_ref()))
            .collect::<Result<Vec<_>, _>>()?;
        if infos.is_empty() {
            return Err(Error::invalid(format!(
                "{what} needs the URL of at least one server, got none"
            )));
        }
        Ok(Self {
            infos,
            access: access.clone(),
        })
    }

    /// Whether a server is in both lists.
    pub(super) fn overlap(&self, others: &[ConnectionInfo]) -> bool {
        self.infos
            .iter()
            .any(|info| others.iter().any(|other| info.addr() == other.addr()))
    }

    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<_> = self
            .infos
            .iter()
            .map(|info| info.addr().to_string())
            .collect();
        addresses.join(", ")
    }
}

/// Queries one server after the other until one replies. Fails with the last outage, if there was any. `waits`: wait
/// until all have replied; otherwise the last server gets no more time than the others.
pub(super) async fn ask_in_turn<T, A: Future<Output = Result<T, Outage>>>(
    mut servers: impl Iterator<Item = Endpoint>,
    waits: bool,
    ask: impl Fn(Endpoint) -> A,
) -> Result<T, Option<Outage>> {
    let mut pending = FuturesUnordered::new();
    let mut outage = None;
    loop {
        match servers.next() {
            Some(server) => pending.push(ask(server)),
            None if pending.is_empty() || !waits => return Err(outage),
            None => {}
        }
        match timeout(NEXT_AFTER, pending.next()).await {
            Ok(Some(Ok(answer))) => return Ok(answer),
            Ok(Some(Err(failed))) => outage = Some(failed),
            Ok(None) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::error::reasons::Cause;
    use crate::store::redis::errors;

    /// Queries servers that reply after these times; `None`: never.
    async fn answered(
        times: &[Option<u64>],
        waits: bool,
    ) -> (Result<String, Option<String>>, Duration) {
        let servers = (0..times.len()).map(|server| {
            Endpoint::new(&format!("redis://{server}:1"), &Access::default()).unwrap()
        });
        let ask = |server: Endpoint| async move {
            match times[server
                .address()
                .split(':')
                .next()
                .unwrap()
                .parse::<usize>()
                .unwrap()]
            {
                Some(0) => return Err(errors::of(Cause::NotSent, server.address())),
                Some(time) => sleep(Duration::from_millis(time)).await,
                None => pending().await,
            }
            Ok(server.address())
        };
        let began = Instant::now();
        let answer = ask_in_turn(servers, waits, ask).await;
        (
            answer.map_err(|outage| outage.map(|outage| outage.text.into_owned())),
            began.elapsed(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn servers_are_asked_one_after_the_other_until_one_answers() {
        let (now, failed) = (Duration::ZERO, Some(0));
        let answer = |server: u8| Ok(format!("{server}:1"));
        for waits in [false, true] {
            assert_eq!(
                answered(&[failed, failed], waits).await,
                (Err(Some("1:1".into())), now)
            );
            assert_eq!(answered(&[], waits).await, (Err(None), now));
            let soon = Duration::from_millis(1);
            assert_eq!(
                answered(&[failed, Some(1), Some(1)], waits).await,
                (answer(1), soon)
            );
            assert_eq!(
                answered(&[None, Some(1)], waits).await,
                (answer(1), NEXT_AFTER + soon)
            );
            let first = Duration::from_millis(300);
            assert_eq!(
                answered(&[Some(300), None], waits).await,
                (answer(0), first)
            );
        }
        assert_eq!(
            answered(&[Some(900)], true).await,
            (answer(0), Duration::from_millis(900))
        );
        assert_eq!(answered(&[Some(900)], false).await, (Err(None), NEXT_AFTER));
    }

    #[test]
    fn servers_are_those_of_the_urls() {
        let urls = |urls: &[&str]| Urls::new("it", urls, &Access::default()).unwrap();
        let of = urls(&["redis://a", "redis://b:1/3"]);
        assert_eq!(of.addresses(), "a:6379, b:1");
        assert!(of.overlap(&urls(&["redis://c", "redis://b:1"]).infos));
        assert!(!of.overlap(&urls(&["redis://b", "redis://c:1"]).infos));
        assert!(
            Urls::new("it", [""; 0], &Access::default())
                .err()
                .unwrap()
                .is_invalid()
        );
    }
}
