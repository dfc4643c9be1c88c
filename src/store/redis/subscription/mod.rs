//! The subscription of a store: it receives the grants to waiters of this process, and the messages to all processes. At
//! one server it is one connection. At a Cluster it is a connection to each master, since a message takes up to 50 ms from
//! one node to another.

mod duplicates;
mod ear;
#[cfg(feature = "cluster")]
mod master;
#[cfg(feature = "cluster")]
mod masters;

use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::ear::Ear;
use super::breaker::pause;
use super::source::Source;
use crate::store::background::{Background, BackgroundTask};
use crate::store::notifier::Notifier;
use crate::telemetry::Server;

/// One failure is forgotten for each such time. So a server that closes each subscription at once gets about four new
/// ones a second.
const FORGIVEN: Duration = Duration::from_millis(250);

/// After a subscription that lasted for this long, the next attempt is made within 25 ms, and earlier failures are
/// forgotten. So a server that closes each subscription at any time gets about a dozen new ones a second at most.
const LASTED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Subscription {
    /// Where to subscribe: not a pool.
    places: Arc<[Source]>,
    listening: BackgroundTask,
    telemetry: Server,
}

impl Subscription {
    pub(super) fn new(places: Vec<Source>, telemetry: Server) -> Self {
        Self { places: places.into(), listening: BackgroundTask::default(), telemetry }
    }

    /// Whether both are certainly the same place.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let places = self.places.first().zip(other.places.first());
        places.is_some_and(|(one, other)| one.is_same(other))
    }

    /// Ends the task. It can be started again.
    pub(super) fn stop(&self) {
        self.listening.stop();
    }

    /// Starts the task, unless it is running.
    pub(super) fn start(&self, channels: [String; 2], notifier: &Arc<Notifier>, background: &Background) {
        if self.places.is_empty() {
            return;
        }
        self.listening.start(background, || {
            let ear = Arc::new(Ear::new(channels, Arc::downgrade(notifier), self.telemetry.clone()));
            let places = Arc::clone(&self.places);
            async move { listen(&places, &ear).await }
        });
    }
}

/// Stays subscribed until the future is dropped. After a failure it tries the next place: almost at once if it was
/// subscribed for a while, otherwise at growing intervals.
async fn listen(places: &[Source], ear: &Arc<Ear>) {
    let mut failures = Failures::default();
    for place in places.iter().cycle() {
        let lasted = match place {
            Source::Pool(_) => pending().await,
            Source::Url(endpoint) => ear.hear(ready(Ok(&**endpoint)), pending()).await,
            #[cfg(feature = "cluster")]
            Source::Cluster(cluster, _) => match masters::listen(cluster, ear).await {},
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => {
                let since = sentinels.switches();
                ear.hear(sentinels.master(), sentinels.switched(since)).await
            }
        };
        failures.pause(lasted).await;
    }
}

/// The failures of late, for the pauses between attempts.
#[derive(Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
}

impl Failures {
    /// Waits before the next attempt. `lasted`: for how long the last one was successful.
    pub(super) async fn pause(&mut self, lasted: Duration) {
        if lasted >= LASTED {
            *self = Self::default();
            return tokio::time::sleep(pause(0)).await;
        }
        let since = self.last.map_or(Duration::MAX, |last| last.elapsed());
        let forgiven = since.as_millis() / FORGIVEN.as_millis();
        self.count = self.count.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        self.last = Some(Instant::now());
        tokio::time::sleep(pause(self.count + 1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn paused(failures: &mut Failures, lasted: Duration) -> Duration {
        let began = Instant::now();
        failures.pause(lasted).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_lasted_comes_back_at_once() {
        const ALMOST_AT_ONCE: Duration = Duration::from_millis(26);
        let mut failures = Failures::default();
        for lasted in [LASTED, 10 * LASTED] {
            for _ in 0..20 {
                let paused = paused(&mut failures, lasted).await;
                assert!(!paused.is_zero() && paused <= ALMOST_AT_ONCE, "{paused:?} after {lasted:?}");
            }
        }
        for lasted in [Duration::ZERO, LASTED / 2] {
            let began = Instant::now();
            for _ in 0..100 {
                tokio::time::advance(lasted).await;
                failures.pause(lasted).await;
            }
            let each = began.elapsed() / 100;
            assert!(each >= FORGIVEN / 2, "one in {each:?} if each lasts for {lasted:?}");
        }
        assert!(paused(&mut failures, LASTED).await <= ALMOST_AT_ONCE, "the failures before were counted");
    }
}
