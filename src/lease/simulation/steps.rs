//! Single steps of one process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::process::{Names, Process, Waiter, holding, waiter};
use super::{Leases, network};
use crate::Error;
use crate::error::Cause;
use crate::lease::Validity;
use crate::lease::key_state::Standing;
use crate::lease::operations::Answer;
use crate::lease::options::{Holding, LeaseOptions};
use crate::lease::token::Suffix;
use crate::lease::tokens::{Effect, Effects, Event, Grant, Notice, Now, Party as _, Renewed};
use crate::store::{Link, Signal};
use crate::telemetry;

const QUEUED: Standing = Standing::Queued { soonest: 0, before: 0 };

pub(super) struct Steps {
    pub(super) process: Process,
    leases: Leases,
    pub(super) began: Instant,
}

impl Steps {
    pub(super) fn of(leases: Leases) -> Self {
        let began = Instant::now();
        Self { process: Process::new(0, network::rules(), began), leases, began }
    }

    pub(super) fn at(&self, ms: u64) -> Now {
        Now { at: self.began + Duration::from_millis(ms), link: Link::Up(1) }
    }

    pub(super) fn step(&mut self, ms: u64, event: Event<Names>) -> Effects<Names> {
        let now = self.at(ms);
        self.process.tokens.step(event, now)
    }

    /// A waiter comes. Returns the id of its acquire.
    fn arrives(&mut self, number: u64) -> (Waiter, u64) {
        let waiter = waiter(0, number, holding(Duration::from_secs(30), self.leases), Suffix::default());
        let effects = self.step(0, Event::Arrives { key: "k".into(), waiter: waiter.clone() });
        let [Effect::Acquire { id, .. }] = effects[..] else { panic!("{effects:?}") };
        (waiter, id)
    }

    pub(super) fn answered(&mut self, ms: u64, id: u64, standing: Standing) -> Effects<Names> {
        let (sent, answer) = (self.at(ms - 1), Answer::acquired(9_000_000, standing, None, false));
        self.step(ms, Event::Answered { id, sent, answer, polled: None })
    }

    /// What is due. Returns how many releases it sends.
    fn sends(&mut self, ms: u64) -> usize {
        releases(&self.step(ms, Event::Signal(Signal::Due))).len()
    }
}

/// The numbers of the releases.
fn releases(effects: &[Effect<Names>]) -> Vec<u64> {
    let number = |effect: &_| match effect {
        Effect::Release { owed, .. } => *owed,
        _ => None,
    };
    effects.iter().filter_map(number).collect()
}

/// A grant is announced before the acquire is answered. The copy of the acquire that is sent later finds the token queued
/// again, after the server's clock was set back: the grant has ended, although its expiry is ahead.
#[test]
fn a_message_that_came_before_the_answer_grants_nothing() {
    let mut steps = Steps::of(Leases::Mutex);
    let (_, id) = steps.arrives(0);
    steps.step(1, Event::Pushed { id, news: Notice::Granted { expiry: 10_000_000, fence: 7 } });
    steps.step(5000, Event::Signal(Signal::Due));
    let effects = steps.answered(5001, id, QUEUED);
    assert!(matches!(effects[..], [Effect::Subscribe]), "{effects:?}");
    let effects = steps.step(5001, Event::Signal(Signal::Due));
    assert!(matches!(effects[..], [Effect::Heartbeat { .. }]), "{effects:?}");
}

/// A heartbeat cannot be sent, and its waiter gives up: its place is withdrawn, or it would be granted a lease.
#[test]
fn who_gives_up_leaves_no_place() {
    let mut steps = Steps::of(Leases::Permits);
    let (_, id) = steps.arrives(7);
    steps.answered(1, id, QUEUED);
    let effects = steps.step(5000, Event::Signal(Signal::Due));
    assert!(matches!(effects[..], [Effect::Heartbeat { .. }]), "{effects:?}");
    let error = Error::unavailable(Cause::BreakerOpen, "the breaker is open");
    let effects = steps.step(5001, Event::Unanswered { ids: vec![id], error });
    assert!(matches!(effects[..], [Effect::Release { .. }, Effect::Tell { .. }]), "{effects:?}");
}

/// Of a crowd that goes away, as many waiters are withdrawn at once as the rules say, and another one with each answer, or
/// when a release has to be sent again.
#[test]
fn a_crowd_is_withdrawn_in_turns() {
    let mut steps = Steps::of(Leases::Permits);
    let crowd: Vec<_> = (0..10).map(|number| steps.arrives(number)).collect();
    crowd.iter().for_each(|(_, id)| drop(steps.answered(1, *id, QUEUED)));
    let leaves = crowd.into_iter().flat_map(|(waiter, id)| {
        let leaves = Event::Leaves { key: "k".into(), waiter, id: Some(id), unanswered: false };
        releases(&steps.step(2, leaves))
    });
    let sent: Vec<_> = leaves.collect();
    assert_eq!(sent.len(), network::rules().releases);
    assert_eq!(steps.process.tokens.owed(), 10, "who waits for its turn is owed too");

    let next = releases(&steps.step(3, Event::Released { owed: sent[0], result: Ok(()) }));
    assert_eq!(next.len(), 1);
    let down = || Err(Error::unavailable(Cause::NotSent, "the server is down"));
    assert_eq!(releases(&steps.step(4, Event::Released { owed: sent[1], result: down() })).len(), 0);
    assert_eq!(releases(&steps.step(4, Event::Released { owed: next[0], result: down() })).len(), 0);
    // Both are sent again, and two others.
    assert_eq!(steps.sends(103), 0);
    assert_eq!(steps.sends(104), 4);
    // A server that stands still gets two others each 100 ms, until none is left, and each a second time.
    assert_eq!([204, 304, 404, 504].map(|ms| steps.sends(ms)), [4, 4, 3, 1]);
    assert_eq!(steps.sends(2000), 0);
    assert_eq!(steps.process.tokens.owed(), 9);
}

/// The acquire of a caller that does not wait was sent twice: one copy may run after the release.
#[test]
fn a_lease_whose_acquire_was_sent_twice_is_withdrawn() {
    let mut steps = Steps::of(Leases::Permits);
    let waiter = waiter(0, 0, holding(Duration::from_secs(30), Leases::Permits), Suffix::default());
    let party = &mut steps.process.tokens.party;
    let (id, token) = party.token(&waiter);
    let (at, ends) = (steps.began, steps.began + Duration::from_secs(20));
    let validity = Validity::granted(ends, at).unwrap();
    let grant = Grant { key: "k".into(), token, id, fence: 1, twice: true, validity, at, offered: false };
    let lease = party.lease(&waiter, grant.clone());
    steps.step(1, Event::Holds { grant, lease, options: waiter.holding, renew: None });
    let effects = steps.step(2, Event::Signal(Signal::ShutDown));
    let withdraws = |effect: &_| matches!(effect, Effect::Release { release, .. } if release.withdrawn);
    assert!(effects.iter().any(withdraws), "{effects:?}");
}

/// A lease of a process that holds it since the beginning. Returns its id, until when it is valid, and whether a watchdog
/// renews it.
fn holds(steps: &mut Steps, renew: Option<u64>) -> (u64, Instant) {
    let options = LeaseOptions { watchdog: renew.is_some(), ..LeaseOptions::default() };
    let holding = Arc::new(Holding::new(options, telemetry::Leases::new("permit", "simulation")));
    let waiter = waiter(0, 0, holding, Suffix::default());
    let party = &mut steps.process.tokens.party;
    let (id, token) = party.token(&waiter);
    let (at, ends) = (steps.began, steps.began + Duration::from_secs(29));
    let validity = Validity::granted(ends, at).unwrap();
    let grant = Grant { key: "k".into(), token, id, fence: 1, twice: false, validity, at, offered: false };
    let lease = party.lease(&waiter, grant.clone());
    let renew = renew.map(|ms| at + Duration::from_millis(ms));
    steps.step(0, Event::Holds { grant, lease, options: waiter.holding, renew });
    (id, ends)
}

/// What is sent for a lease by now: a renewal (`true`), or a question whether it is held.
fn renewals(steps: &mut Steps, ms: u64) -> Vec<bool> {
    let renewal = |effect: &_| match effect {
        Effect::Renew { extends, .. } => Some(*extends),
        _ => None,
    };
    steps.step(ms, Event::Signal(Signal::Due)).iter().filter_map(renewal).collect()
}

/// A message that a lease is gone may be forged, or late. The store is asked at once, and its answer alone ends the lease.
#[test]
fn a_message_ends_no_lease_that_is_held() {
    let mut steps = Steps::of(Leases::Permits);
    let (id, ends) = holds(&mut steps, Some(10_000));
    assert!(steps.step(5, Event::Pushed { id, news: Notice::Gone }).is_empty());
    assert_eq!(renewals(&mut steps, 5), [true]);
    // The renewal may have run before the message was sent. However many come, one more follows.
    for _ in 0..3 {
        assert!(steps.step(6, Event::Pushed { id, news: Notice::Gone }).is_empty());
    }
    assert!(renewals(&mut steps, 6).is_empty());
    let valid = Renewed::Valid { sent: steps.at(5).at, until: ends + Duration::from_millis(5) };
    let effects = steps.step(7, Event::Renewed { id, renewed: valid, scheduled: true });
    assert!(matches!(effects[..], [Effect::Valid { .. }]), "{effects:?}");
    assert_eq!(renewals(&mut steps, 7), [true]);
    let effects = steps.step(8, Event::Renewed { id, renewed: valid, scheduled: true });
    assert!(matches!(effects[..], [Effect::Valid { .. }]), "{effects:?}");
    assert!(renewals(&mut steps, 5000).is_empty());
    assert_eq!(renewals(&mut steps, 10_008), [true], "as planned");
    // The server says that it is gone.
    let effects = steps.step(10_009, Event::Renewed { id, renewed: Renewed::Gone, scheduled: true });
    assert!(matches!(effects[..], [Effect::Lost { taken_back: false, .. }]), "{effects:?}");
}

/// A lease that no watchdog renews does not last longer because of a message, and an outage asks again and again at the
/// pace of renewals.
#[test]
fn a_message_extends_no_lease_without_a_watchdog() {
    let mut steps = Steps::of(Leases::Permits);
    let (id, ends) = holds(&mut steps, None);
    assert!(renewals(&mut steps, 10_000).is_empty());
    steps.step(10_000, Event::Pushed { id, news: Notice::Gone });
    assert_eq!(renewals(&mut steps, 10_000), [false]);
    steps.step(10_500, Event::Renewed { id, renewed: Renewed::Unknown, scheduled: true });
    assert!(renewals(&mut steps, 10_500).is_empty());
    assert_eq!(renewals(&mut steps, 13_000), [false]);
    let valid = Renewed::Valid { sent: steps.at(13_000).at, until: ends };
    steps.step(13_001, Event::Renewed { id, renewed: valid, scheduled: true });
    assert!(renewals(&mut steps, 28_000).is_empty());
}
