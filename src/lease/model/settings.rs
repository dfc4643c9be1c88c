//! The settings that are explored.

use super::explore;
use super::properties::{COVERED, EXCLUSION, FENCES, ORDER};
use super::rules::{Faults, Rules, Seat, Tokens, size};
use crate::lease::holder::Holder;
use crate::rw_lock::holders::RwHolders;
use crate::wait_group::holders::PermitHolders;

pub(super) const NONE: Faults = Faults {
    crashes: 0,
    losses: false,
    repeats: false,
    resends: false,
    failures: false,
    leaves: false,
    stalls: false,
    evictions: 0,
    revokes: 0,
    jump: 0,
    completes: false,
};

const SEAT: Seat = Seat { line: 0, process: 0, ttl: 2, weight: 1, rank: 0, flow: 0 };

/// The ttl for settings with many states.
fn short() -> i64 {
    if size() == 1 { 1 } else { 2 }
}

/// Two waiters in a line of one process, and one waiter in another process.
pub(super) fn cohort() -> Rules {
    let other = Seat { line: 1, process: 1, ..SEAT };
    Rules::new(vec![SEAT, SEAT, other], Tokens::Mutex).asks(2)
}

/// Two waiters in a line of one process.
pub(super) fn line() -> Rules {
    Rules::new(vec![SEAT, SEAT], Tokens::Mutex).asks(2)
}

/// Two waiters that want one of two permits each, and one that wants both.
pub(super) fn weighted() -> Rules {
    let seat = |line, weight| Seat { line, process: line, weight, ..SEAT };
    Rules { capacity: 2, ..Rules::new(vec![seat(0, 1), seat(1, 1), seat(2, 2)], Tokens::Permits) }.asks(1)
}

/// Three waiters that want one of two permits each.
pub(super) fn permits() -> Rules {
    let seat = |line| Seat { line, process: line, ..SEAT };
    Rules { capacity: 2, ..Rules::new((0..3).map(seat).collect(), Tokens::Permits) }.asks(1)
}

/// Waiters that want the only permit, each of a flow.
pub(super) fn fair(flows: &[i64]) -> Rules {
    let seat = |(line, flow): (usize, &i64)| Seat { line, process: line, ttl: 1, flow: *flow, ..SEAT };
    Rules::new(flows.iter().enumerate().map(seat).collect(), Tokens::Permits).asks(1)
}

/// Waiters that want the only permit, each of a class. After a tick, a class goes before those above it.
pub(super) fn classes(ranks: &[i64]) -> Rules {
    let seat = |(line, rank): (usize, &i64)| Seat { line, process: line, ttl: 1, rank: *rank, ..SEAT };
    let rules = Rules::new(ranks.iter().enumerate().map(seat).collect(), Tokens::Permits);
    Rules { aging: 1, alive: 3, ..rules }.asks(1)
}

/// Waiters that want the only permit, one after the other or, once there have been waiters for a tick, the newest first.
pub(super) fn newest(seats: usize) -> Rules {
    Rules { newest: 1, alive: 3, ..fair(&vec![0; seats]) }.asks(1)
}

/// Two readers and a writer.
pub(super) fn read_write() -> Rules {
    let reader = |line| Seat { line, process: line, rank: 1, ttl: short(), ..SEAT };
    let writer = Seat { line: 2, process: 2, weight: 2, ttl: short(), ..SEAT };
    Rules { capacity: 2, ..Rules::new(vec![reader(0), reader(1), writer], Tokens::ReadWrite) }.asks(1)
}

/// Tombstones last for 3 ticks. A call that has not run after 2 ticks is lost.
pub(super) fn ending(rules: Rules) -> Rules {
    Rules { tombstone: 3, late: Some(2), ..rules }
}

/// Waiters line up behind others. The queue is kept for 3 ticks, unless a waiter extends that.
pub(super) fn busy() -> Rules {
    Rules { late: Some(1), ..ending(Rules::mutex(3)) }
}

#[test]
fn two_askers() {
    let faults = Faults { crashes: 1, losses: true, leaves: true, failures: true, ..NONE };
    explore::<Holder>("two waiters", Rules::mutex(2).faults(faults));
}

#[test]
fn calls_that_are_sent_twice() {
    let faults = Faults { losses: true, resends: true, ..NONE };
    explore::<Holder>("calls that are sent twice", Rules::mutex(2).faults(faults));
}

#[test]
fn renewals_at_once() {
    let rules = Rules { traffic: 2, ..Rules::mutex(2) };
    explore::<Holder>("renewals at once", rules.faults(Faults { repeats: true, ..NONE }));
}

#[test]
fn tombstones_that_end() {
    let seat = |line| Seat { line, process: line, ttl: short(), ..SEAT };
    let faults = Faults { resends: true, failures: true, ..NONE };
    let two = Rules::new(vec![seat(0), seat(1)], Tokens::Mutex);
    explore::<Holder>("tombstones that end", ending(two).faults(faults));
    let line = Rules::new(vec![seat(0), seat(0)], Tokens::Mutex).asks(2);
    explore::<Holder>(
        "tombstones that end, in a line",
        ending(line).faults(Faults { resends: false, ..faults }),
    );
}

/// The holder renews its lease. The others wait, with or without heartbeats.
#[test]
fn a_queue_that_is_busy_for_longer_than_a_tombstone_lasts() {
    explore::<Holder>("a busy queue", busy().faults(NONE));
}

#[test]
fn three_askers() {
    explore::<Holder>("three waiters", Rules::mutex(3).faults(NONE));
}

#[test]
fn a_grant_that_could_stand_for_longer_than_a_lease() {
    let faults = Faults { losses: true, crashes: 1, ..NONE };
    explore::<Holder>("long grants", Rules { grant: 3, ..Rules::mutex(2) }.faults(faults));
}

#[test]
fn a_line_in_a_process() {
    let mut rules = Rules { alive: short(), ..cohort() };
    rules.seats.iter_mut().for_each(|seat| seat.ttl = short());
    explore::<Holder>("a line in a process", rules.asks(2).faults(NONE));
}

#[test]
fn two_values_of_one_namespace() {
    let mut rules = line();
    rules.seats[1].ttl = 3;
    explore::<Holder>("two values in a line", rules.asks(2).faults(Faults { losses: true, ..NONE }));
}

#[test]
fn who_is_not_polled() {
    let faults = Faults { stalls: true, losses: true, leaves: true, ..NONE };
    explore::<Holder>("a waiter that is not polled", line().faults(faults));
}

#[test]
fn a_line_that_asks_again() {
    let faults = Faults { failures: true, ..NONE };
    explore::<Holder>("a line that asks again", line().faults(faults));
}

#[test]
fn eviction() {
    let faults = Faults { evictions: 1, losses: true, ..NONE };
    explore::<Holder>("eviction", Rules::mutex(2).asks(2).faults(faults));
}

/// Until its next renewal, the holder does not know, and the answer to its acquire may even arrive after the next grant.
/// The fences of the grants tell them apart.
#[test]
fn a_lease_that_is_revoked() {
    let faults = Faults { revokes: 1, losses: true, crashes: 1, ..NONE };
    explore::<Holder>("a revoked lease", Rules::mutex(2).faults(faults).but(&[EXCLUSION, COVERED, FENCES]));
}

#[test]
fn a_permit_that_is_revoked() {
    let faults = Faults { revokes: 1, ..NONE };
    explore::<PermitHolders>("a revoked permit", permits().faults(faults).but(&[EXCLUSION, COVERED]));
}

#[test]
fn a_clock_that_is_set_back() {
    let faults = Faults { jump: -4, crashes: 1, ..NONE };
    explore::<Holder>("a clock set back", Rules::mutex(2).faults(faults));
}

#[test]
fn a_clock_that_is_set_back_beside_others() {
    let faults = Faults { jump: -4, crashes: 1, ..NONE };
    let mut rules = permits();
    rules.seats.iter_mut().for_each(|seat| seat.ttl = short());
    explore::<PermitHolders>("permits and a clock set back", rules.asks(1).faults(faults));
}

#[test]
fn a_clock_that_is_set_forward() {
    // Two may believe that they hold then. The fence tells them apart.
    let faults = Faults { jump: 4, ..NONE };
    explore::<Holder>("a clock set forward", Rules::mutex(2).faults(faults).but(&[EXCLUSION, COVERED]));
}

#[test]
fn weights() {
    explore::<PermitHolders>("weights", weighted().faults(NONE));
}

/// One flow comes twice, the other one once.
#[test]
fn flows() {
    explore::<PermitHolders>("flows", fair(&[1, 1, 2]).faults(NONE));
    let faults = Faults { losses: true, leaves: true, crashes: 1, ..NONE };
    explore::<PermitHolders>("flows and faults", fair(&[1, 2]).faults(faults));
}

/// Most of the waiters know of no flows, and come twice: one of them is served while the flow waits, and then the flow.
#[test]
fn a_flow_beside_waiters_without_one() {
    explore::<PermitHolders>("a flow beside others", fair(&[0, 0, 1]).asks(2).faults(NONE).but(&[ORDER]));
}

/// One flow wants one of two permits at a time, another one wants both at once.
#[test]
fn flows_of_different_weights() {
    let mut rules = fair(&[1, 1, 2]);
    (rules.seats[2].weight, rules.capacity) = (2, 2);
    explore::<PermitHolders>("weighted flows", rules.asks(1).faults(NONE).but(&[ORDER]));
}

#[test]
fn waiters_of_different_classes() {
    explore::<PermitHolders>("classes", classes(&[0, 0, 1]).faults(NONE));
    let faults = Faults { losses: true, leaves: true, crashes: 1, ..NONE };
    explore::<PermitHolders>("classes and faults", classes(&[0, 1]).faults(faults));
}

#[test]
fn newest_first_after_a_while() {
    explore::<PermitHolders>("newest first", newest(3).faults(NONE));
    let faults = Faults { losses: true, leaves: true, crashes: 1, ..NONE };
    explore::<PermitHolders>("newest first and faults", newest(2).faults(faults));
}

/// Two waiters that want one of two permits each, and one that wants both.
#[test]
fn newest_first_of_different_weights() {
    let mut rules = newest(3);
    (rules.seats[2].weight, rules.capacity) = (2, 2);
    explore::<PermitHolders>("newest first and weights", rules.asks(1).faults(NONE));
}

#[test]
fn readers_and_a_writer() {
    explore::<RwHolders>("readers and a writer", read_write().faults(NONE));
}

#[test]
fn completing() {
    let faults = Faults { completes: true, losses: true, ..NONE };
    explore::<Holder<false>>("completing", Rules::mutex(2).asks(2).faults(faults));
}
