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
use super::failure::is_outage;
use super::source::Source;
use crate::error::Outage;
use crate::random;
use crate::store::background::{Background, BackgroundTask};
use crate::store::notifier::Notifier;
use crate::telemetry::Server;

/// One failure is forgotten for each such time. So a server that closes each subscription at once gets about four new
/// ones a second.
const FORGIVEN: Duration = Duration::from_millis(250);

/// After a subscription that lasted for this long, the next attempt is made within 25 ms, and earlier failures are
/// forgotten. So a server that closes each subscription at any time gets about a dozen new ones a second at most.
const LASTED: Duration = Duration::from_millis(100);

/// The pause after the first refusal, and the longest one: it doubles each time. Meanwhile waiters poll.
const REFUSED: Duration = Duration::from_millis(500);
const LONGEST_REFUSED: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Subscription {
    /// Where to subscribe: not a pool.
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

/// Stays subscribed until the future is dropped. After a failure it tries the next place: almost at once if it was
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

/// What came of an attempt to stay connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It was successful for so long.
    Lasted(Duration),
    /// The server does not allow it, or does not know it: it will say so again.
    Refused,
}

impl Attempt {
    pub(super) const FAILED: Self = Self::Lasted(Duration::ZERO);

    /// A failed attempt.
    pub(super) fn of(outage: &Outage) -> Self {
        if is_outage(outage.cause) {
            Self::FAILED
        } else {
            Self::Refused
        }
    }
}

/// The failures of late, for the pauses between attempts.
#[derive(Default)]
pub(super) struct Failures {
    count: u32,
    last: Option<Instant>,
    /// The last pause after a refusal.
    refused: Duration,
}

impl Failures {
    /// Waits before the next attempt.
    pub(super) async fn pause(&mut self, attempt: Attempt) {
        tokio::time::sleep(self.next(attempt)).await;
    }

    fn next(&mut self, attempt: Attempt) -> Duration {
        let refused = std::mem::take(&mut self.refused);
        match attempt {
            Attempt::Lasted(lasted) if lasted >= LASTED => {
                *self = Self::default();
                return pause(0);
            }
            Attempt::Refused => {
                self.refused = (2 * refused).clamp(REFUSED, LONGEST_REFUSED);
                return self.refused.mul_f64(1.0 - random::fraction() / 4.0);
            }
            Attempt::Lasted(_) => {}
        }
        let since = self.last.map_or(Duration::MAX, |last| last.elapsed());
        let forgiven = since.as_millis() / FORGIVEN.as_millis();
        self.count = self
            .count
            .saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX))
            + 1;
        self.last = Some(Instant::now());
        pause(self.count + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn paused(failures: &mut Failures, attempt: Attempt) -> Duration {
        let began = Instant::now();
        failures.pause(attempt).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_lasted_comes_back_at_once() {
        const ALMOST_AT_ONCE: Duration = Duration::from_millis(26);
        let mut failures = Failures::default();
        for lasted in [LASTED, 10 * LASTED] {
            for _ in 0..20 {
                let paused = paused(&mut failures, Attempt::Lasted(lasted)).await;
                assert!(
                    !paused.is_zero() && paused <= ALMOST_AT_ONCE,
                    "{paused:?} after {lasted:?}"
                );
            }
        }
        for lasted in [Duration::ZERO, LASTED / 2] {
            let began = Instant::now();
            for _ in 0..100 {
                tokio::time::advance(lasted).await;
                failures.pause(Attempt::Lasted(lasted)).await;
            }
            let each = began.elapsed() / 100;
            assert!(
                each >= FORGIVEN / 2,
                "one in {each:?} if each lasts for {lasted:?}"
            );
        }
        assert!(
            paused(&mut failures, Attempt::Lasted(LASTED)).await <= ALMOST_AT_ONCE,
            "the failures before were counted"
        );
    }
    /// A refusal may last for ever. An operator may also end it.
    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_tried_less_and_less_often() {
        let mut failures = Failures::default();
        let first = paused(&mut failures, Attempt::Refused).await;
        assert!(first <= REFUSED, "{first:?}");
        let began = Instant::now();
        for _ in 0..10 {
            let paused = paused(&mut failures, Attempt::Refused).await;
            assert!(
                paused >= REFUSED * 3 / 4 && paused <= LONGEST_REFUSED,
                "{paused:?}"
            );
        }
        assert!(
            began.elapsed() > 5 * LONGEST_REFUSED,
            "{:?}",
            began.elapsed()
        );
        paused(&mut failures, Attempt::FAILED).await;
        assert!(
            paused(&mut failures, Attempt::Refused).await <= REFUSED,
            "an outage came between"
        );
    }
}
