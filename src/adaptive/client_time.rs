//! The time that a handler waits for its client, which is not part of the service's latency.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// The part of a request's latency that is due to its client.
#[derive(Clone, Debug, Default)]
pub(crate) enum Client {
    /// None: the whole latency is that of the service.
    #[default]
    Nothing,
    /// The part is unknown, so the request has no latency.
    Unknown,
    /// The time in which the handler waits for the body of the request.
    Upload(Arc<ClientTime>),
}

/// The latency of the service when a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceTime {
    /// The latency without the client's time.
    Known(Duration),
    /// There is no latency, since it depends on the client.
    Unknown,
    /// The client has aborted its upload: the outcome does not count either.
    BrokenOff,
}

/// The time in which a handler has waited for the body of its request.
#[derive(Debug, Default)]
pub(crate) struct ClientTime(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waited: Duration,
    /// Since when the handler waits for the next frame.
    since: Option<Instant>,
    /// When the handler was woken to read it. A delay after that is the service's.
    woken: Option<Instant>,
    waker: Option<Waker>,
    upload: Upload,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Upload {
    #[default]
    Open,
    /// The handler has read all of it, or has dropped it.
    Over,
    Failed,
}

impl Client {
    /// Returns the service's latency of a request that began at `began`, and has a response.
    pub(super) fn of_response(&self, began: Instant, now: Instant) -> ServiceTime {
        match self {
            Self::Nothing => ServiceTime::Known(now.saturating_duration_since(began)),
            Self::Unknown => ServiceTime::Unknown,
            Self::Upload(time) => time.service_time(began, now),
        }
    }

    /// Returns the same for a request that was dropped. If its upload is incomplete, its client has aborted it.
    pub(super) fn of_dropped(&self, began: Instant, now: Instant) -> ServiceTime {
        match self.of_response(began, now) {
            ServiceTime::Unknown => ServiceTime::BrokenOff,
            known => known,
        }
    }
}

impl ClientTime {
    /// Records that the handler polls for the next frame.
    pub(super) fn asks(&self, waker: &Waker, now: Instant) {
        let mut state = lock(&self.0);
        state.since.get_or_insert(now);
        state.woken = None;
        match &mut state.waker {
            Some(before) => before.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Records that the frame that was polled for at `asked` has arrived.
    pub(super) fn has_come(&self, asked: Instant) {
        lock(&self.0).stops_waiting(asked);
    }

    /// Records that the body has ended, or was dropped.
    pub(super) fn ends(&self, upload: Upload, now: Instant) {
        let mut state = lock(&self.0);
        state.stops_waiting(now);
        state.waker = None;
        if state.upload == Upload::Open {
            state.upload = upload;
        }
    }

    fn service_time(&self, began: Instant, now: Instant) -> ServiceTime {
        let state = lock(&self.0);
        match state.upload {
            // A bidirectional stream: the handler responds to the part that it has read so far.
            Upload::Open => ServiceTime::Unknown,
            Upload::Over => ServiceTime::Known(
                now.saturating_duration_since(began)
                    .saturating_sub(state.waited),
            ),
            Upload::Failed => ServiceTime::BrokenOff,
        }
    }
}

impl State {
    fn stops_waiting(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            let until = self.woken.take().map_or(now, |woken| woken.min(now));
            self.waited += until.saturating_duration_since(since);
        }
    }
}

impl Wake for ClientTime {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now = Instant::now();
        let waker = {
            let mut state = lock(&self.0);
            state.woken.get_or_insert(now);
            state.waker.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The time until a frame arrives is the client's; the delay of the handler in reading it is the service's.
    #[test]
    fn only_the_time_until_the_handler_is_woken_is_the_clients() {
        let (time, began, waker) = (
            Arc::new(ClientTime::default()),
            Instant::now(),
            Waker::noop(),
        );
        let client = Client::Upload(Arc::clone(&time));
        let at = |after| began + ms(after);
        time.asks(waker, at(100));
        lock(&time.0).woken = Some(at(400));
        // A spurious poll: there is no frame yet.
        time.asks(waker, at(500));
        lock(&time.0).woken = Some(at(700));
        time.asks(waker, at(1000));
        time.has_come(at(1000));
        assert_eq!(
            client.of_response(began, at(1000)),
            ServiceTime::Unknown,
            "the upload goes on"
        );
        assert_eq!(client.of_dropped(began, at(9000)), ServiceTime::BrokenOff);
        time.asks(waker, at(1100));
        time.has_come(at(1100));
        time.ends(Upload::Over, at(1100));
        time.ends(Upload::Failed, at(1100));
        assert_eq!(
            client.of_response(began, at(2000)),
            ServiceTime::Known(ms(1100))
        );
        assert_eq!(
            client.of_dropped(began, at(2000)),
            ServiceTime::Known(ms(1100))
        );
    }
}
