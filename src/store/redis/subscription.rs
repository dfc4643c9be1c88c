//! The subscription of a store: it receives the grants to waiters of this process, and the messages to all processes.
//! On one server it is one connection. On a Cluster it is a connection to each master, since a message takes up to 50
//! ms from one node to another.

mod connection;
#[cfg(feature = "cluster")]
mod masters;

use std::future::{pending, ready};
use std::sync::Arc;

use crate::store::background::{Background, BackgroundTask};
use crate::store::notifier::Notifier;
use crate::store::redis::breaker::Failures;
use crate::store::redis::source::Source;
use crate::store::redis::subscription::connection::Subscriber;
use crate::telemetry::server::Server;

#[derive(Debug)]
pub(super) struct Subscription {
    /// The servers to subscribe at. A pool cannot be used.
    sources: Arc<[Source]>,
    listening: BackgroundTask,
    telemetry: Server,
}

impl Subscription {
    pub(super) fn new(sources: Vec<Source>, telemetry: Server) -> Self {
        Self {
            sources: sources.into(),
            listening: BackgroundTask::default(),
            telemetry,
        }
    }

    /// Whether both are certainly at the same server.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let sources = self.sources.first().zip(other.sources.first());
        sources.is_some_and(|(one, other)| one.is_same(other))
    }

    /// Ends the task. It can be started again.
    pub(super) fn stop(&self) {
        self.listening.stop();
    }

    /// Starts the task, unless it is running.
    pub(super) fn start(
        &self,
        channels: [String; 2],
        notifier: &Arc<Notifier>,
        background: &Background,
    ) {
        if self.sources.is_empty() {
            return;
        }
        self.listening.start(background, || {
            let subscriber = Arc::new(Subscriber::new(
                channels,
                Arc::downgrade(notifier),
                self.telemetry.clone(),
            ));
            let sources = Arc::clone(&self.sources);
            async move { listen(&sources, &subscriber).await }
        });
    }
}

/// Stays subscribed until the future is dropped. After a failure it tries the next server: almost at once if it was
/// subscribed for a while, otherwise at growing intervals.
async fn listen(sources: &[Source], subscriber: &Arc<Subscriber>) {
    let mut failures = Failures::default();
    for source in sources.iter().cycle() {
        let attempt = match source {
            Source::Pool(_) => pending().await,
            Source::Url(endpoint) => subscriber.receive(ready(Ok(&**endpoint)), pending()).await,
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster, _) => match masters::listen(cluster, subscriber).await {},
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => {
                let since = sentinels.switches();
                subscriber
                    .receive(sentinels.master(), sentinels.switched(since))
                    .await
            }
        };
        failures.pause(attempt).await;
    }
}
