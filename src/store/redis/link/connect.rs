//! How a link connects: the connection, the version of its server, and whether it has functions.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Attempt, Link, Ready, State};
use crate::error::reasons::{Cause, Outage};
use crate::store::redis::RedisStore;
use crate::store::redis::call::Failed;
use crate::store::redis::connection::{Connection, ask_version, check_version, version_question};
use crate::store::redis::errors::disconnected;
use crate::store::redis::functions::{self, Functions, Loading};
use crate::sync::atomic::Ordering;
use crate::sync::lock;

/// After this many connections in a row that were closed when they used functions, the link treats the proxy as one
/// without functions.
const CLOSED: u64 = 2;

impl Link {
    pub(super) fn connect(self: &Arc<Self>, runtime: &Handle) -> watch::Receiver<Attempt> {
        let (done, attempt) = watch::channel(None);
        let link = Arc::clone(self);
        runtime.spawn(async move {
            let making = AssertUnwindSafe(link.make()).catch_unwind();
            let outcome = match timeout(link.connect_timeout, making).await {
                Ok(Ok(outcome)) => outcome.map(Arc::new),
                // The client library panics if rustls has no cryptography provider, because another crate has enabled
                // rustls in it.
                Ok(Err(_)) => Err(disconnected(
                    "connecting has panicked: for TLS, enable the feature `rustls` of tower-distributed, or install a \
                     rustls::crypto::CryptoProvider",
                )),
                Err(_) => {
                    let Self { source, connect_timeout, .. } = &*link;
                    let hint = source.hint();
                    Err(disconnected(format!("no connection to {source} within {connect_timeout:?}{hint}")))
                }
            };
            *lock(&link.state) = match &outcome {
                Ok(ready) => State::Ready(Arc::clone(ready)),
                Err(_) => State::Idle,
            };
            done.send_replace(Some(outcome));
        });
        attempt
    }

    async fn make(&self) -> Result<Ready, Outage> {
        loop {
            let switches = self.switches();
            let mut connection = self.source.connect().await?;
            let Some((version, functions)) = self.inspect(&mut connection).await? else {
                continue;
            };
            // If the master has changed meanwhile, the connection may lead to the former one.
            if switches == self.switches() {
                self.answered();
                self.telemetry
                    .connected(self.has_connected.swap(true, Ordering::Relaxed));
                return Ok(Ready {
                    connection,
                    version,
                    functions,
                    switches,
                });
            }
        }
    }

    /// Records the result of loading the library. Returns whether it will not be loaded from now on.
    pub(in crate::store::redis) fn has_refused_to_load(&self, ended: Loading) -> bool {
        match ended {
            Loading::Lost => self.closed_at_load.fetch_add(1, Ordering::Relaxed) + 1 == CLOSED,
            Loading::Done => {
                self.closed_at_load.store(0, Ordering::Relaxed);
                false
            }
            Loading::NotNow => false,
            Loading::Never => true,
        }
    }

    /// Reads the version of the server, and whether it has functions. `None`: the connection was closed because of
    /// that.
    async fn inspect(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<(Option<String>, Functions)>, Outage> {
        let closed = self.closed_at_functions.load(Ordering::Relaxed);
        let is_known = closed < CLOSED && self.closed_at_load.load(Ordering::Relaxed) < CLOSED;
        let library = self.library.as_ref().filter(|_| is_known);
        let Some(question) = library.map(|library| functions::question(library)) else {
            return Ok(Some((ask_version(connection).await?, Functions::none())));
        };
        // At first both are sent in one write. A proxy may close the connection because of either of them.
        let (version, answer) = if closed == 0 && !connection.is_cluster() {
            match connection.send_both(&version_question(), &question).await {
                Ok((version, answer)) => (check_version(version, false)?, answer),
                Err(error) => (None, Err(error)),
            }
        } else {
            (
                ask_version(connection).await?,
                connection.send(&question).await,
            )
        };
        let (has, why) = functions::read_answer(answer);
        let is_closed = why
            .as_ref()
            .is_some_and(|outage| outage.cause == Cause::Disconnected);
        self.closed_at_functions
            .store(if is_closed { closed + 1 } else { 0 }, Ordering::Relaxed);
        if let Some(outage) = why.filter(|_| !is_closed || closed + 1 == CLOSED) {
            self.telemetry.without_functions(&outage.text);
        }
        Ok((!is_closed).then(|| (version, Functions::from(has))))
    }
}

impl RedisStore {
    /// Returns the connection. If there is none, it connects first.
    pub(in crate::store::redis) async fn hold(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
    ) -> Result<Arc<Ready>, Failed> {
        link.hold(runtime).await.map_err(|outage| {
            self.source.look_for_masters(None);
            // A node that denies this user the list of masters is up.
            let cause = if outage.cause == Cause::Denied {
                Cause::Denied
            } else {
                Cause::NotSent
            };
            let outage = Outage { cause, ..outage };
            Failed {
                outage,
                sent: None,
                written: false,
                answers: false,
                redirect: None,
            }
        })
    }
}
