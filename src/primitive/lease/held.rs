//! A lease as its holder sees it: until when it is valid, by this process's own clock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Key;
use crate::store::timer::sleep_until;
use crate::store::{HandOff, lock};
use crate::telemetry::{LeaseCounts, Leases};

/// What the store has granted to this process, under one token: for one holder, or for several after each other.
#[derive(Debug)]
pub(crate) struct Tenure {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    until: Instant,
    /// When the call was sent that said so.
    sent: Option<Instant>,
    /// Lost or given back. Never again otherwise.
    over: bool,
}

/// What is known of a lease in this process, shared by all who look at it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    pub(crate) fence: i64,
    pub(crate) tenure: Arc<Tenure>,
    /// Handed on or given back.
    ended: AtomicBool,
    /// To whom it is to be handed on.
    line: Mutex<Option<HandOff>>,
    pub(crate) counts: LeaseCounts,
}

impl Tenure {
    pub(crate) fn until(&self) -> Instant {
        lock(&self.state).until
    }

    /// Whether it is valid. What has run out is over for good.
    pub(crate) fn is_valid(&self) -> bool {
        let mut state = lock(&self.state);
        state.over |= Instant::now() >= state.until;
        !state.over
    }
}

impl Held {
    pub(crate) fn new(
        key: Key,
        token: Arc<str>,
        fence: i64,
        until: Instant,
        line: Option<HandOff>,
        leases: &Leases,
    ) -> Arc<Self> {
        let state = Mutex::new(State { until, sent: None, over: false });
        let tenure = Arc::new(Tenure { state, changed: Notify::new() });
        let (ended, line) = (AtomicBool::new(false), Mutex::new(line));
        Arc::new(Self { key, token, fence, tenure, ended, line, counts: leases.lease() })
    }

    /// The same for the next in line, who has the next fence.
    pub(crate) fn next(&self, line: HandOff) -> Arc<Self> {
        Arc::new(Self {
            key: self.key.clone(),
            token: Arc::clone(&self.token),
            fence: self.fence + 1,
            tenure: Arc::clone(&self.tenure),
            ended: AtomicBool::new(false),
            line: Mutex::new(Some(line)),
            counts: self.counts.next(),
        })
    }

    pub(crate) fn take_line(&self) -> Option<HandOff> {
        lock(&self.line).take().filter(|line| !line.is_empty())
    }

    /// What names the holder: the token, or the value in it that the user's function gave.
    pub(crate) fn name(&self) -> &str {
        self.token.split_once(':').map_or(&*self.token, |(_, value)| value)
    }

    pub(crate) fn until(&self) -> Instant {
        self.tenure.until()
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.ended.load(Ordering::Acquire) && self.tenure.is_valid()
    }

    /// The store has said until when it is valid, in answer to a call sent at `sent`: its latest word counts. False where
    /// it is over.
    pub(crate) fn renewed(&self, sent: Instant, until: Instant) -> bool {
        let mut state = lock(&self.tenure.state);
        state.over |= Instant::now() >= state.until;
        if !state.over && state.sent.is_none_or(|last| last <= sent) {
            if until < state.until {
                self.tenure.changed.notify_waiters();
            }
            (state.until, state.sent) = (until, Some(sent));
        }
        !state.over
    }

    /// It is over, and all who wait for that are told.
    pub(crate) fn end(&self) {
        lock(&self.tenure.state).over = true;
        self.tenure.changed.notify_waiters();
        // Those in line need not wait until this is dropped.
        drop(self.take_line());
    }

    /// It is over for this holder, and goes on for the next.
    pub(crate) fn end_here(&self) {
        self.ended.store(true, Ordering::Release);
        self.tenure.changed.notify_waiters();
    }

    /// Ends when it is over: by its own timer, whether or not anybody renews it.
    pub(crate) async fn lost(self: Arc<Self>) {
        loop {
            let changed = self.tenure.changed.notified();
            if !self.is_held() {
                return;
            }
            tokio::select! {
                () = sleep_until(self.until()) => {}
                () = changed => {}
            }
        }
    }
}

/// Of a span in server time, how much of it is sure by another clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drift(pub(crate) f64);

impl Drift {
    /// What clocks may differ by when they tell milliseconds.
    const GRAIN: Duration = Duration::from_millis(2);

    /// The part of a span that is sure.
    pub(crate) fn sure(self, span: Duration) -> Duration {
        span.saturating_sub(span.mul_f64(self.0) + Self::GRAIN)
    }

    /// Until when what the server holds until `expiry` is valid here, if the server's clock said `now` when we
    /// have sent a call at `sent`, or later.
    pub(crate) fn until(self, sent: Instant, now: i64, expiry: i64) -> Instant {
        let span = Duration::from_micros(u64::try_from(expiry - now).unwrap_or(0));
        sent + self.sure(span)
    }
}
