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
use crate::store::redis::subscription::connection::Ear;
use crate::telemetry::server::Server;

#[derive(Debug)]
pub(super) struct Subscription {
    /// The servers to subscribe at. A pool cannot be used.
    places: Arc<[Source]>,
    listening: BackgroundTask,
    telemetry: Server,
}

impl Subscription {
    pub(super) fn new(places: Vec<Source>, telemetry: Server) -> Self {
        Self {
            places: places.into(),
            listening: BackgroundTask::default(),
            telemetry,
        }
    }

    /// Whether both are certainly at the same server.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let places = self.places.first().zip(other.places.first());
        places.is_some_and(|(one, other)| one.is_same(other))
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
        if self.places.is_empty() {
            return;
        }
        self.listening.start(background, || {
            let ear = Arc::new(Ear::new(
                channels,
                Arc::downgrade(notifier),
                self.telemetry.clone(),
            ));
            let places = Arc::clone(&self.places);
            async move { listen(&places, &ear).await }
        });
    }
}

/// Stays subscribed until the future is dropped. After a failure it tries the next server: almost at once if it was
/// subscribed for a while, otherwise at growing intervals.
async fn listen(places: &[Source], ear: &Arc<Ear>) {
    let mut failures = Failures::default();
    for place in places.iter().cycle() {
        let attempt = match place {
            Source::Pool(_) => pending().await,
            Source::Url(endpoint) => ear.hear(ready(Ok(&**endpoint)), pending()).await,
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster, _) => match masters::listen(cluster, ear).await {},
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => {
                let since = sentinels.switches();
                ear.hear(sentinels.master(), sentinels.switched(since))
                    .await
            }
        };
        failures.pause(attempt).await;
    }
}
