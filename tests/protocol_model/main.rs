//! The admission protocol as a model, every reachable state of which is looked at.
//!
//! Who wants a lease on a key sends an *acquire* with a token that is never used twice. The answer says that the
//! token holds, or that it has a place in the queue. Every script, a *release* above all, *grants* what is free to
//! the first in the queue: a *claim*, which is a short lease, and a *push* that tells the waiter of it, who makes
//! a full lease of it by its first *renewal*. Waiters *beat*: who does not is dropped, and the answer tells of a
//! grant of which the push was lost. Who is done, gives up or is in doubt sends a release. It leaves a
//! *tombstone*, so that an acquire which it has overtaken is refused.
//!
//! Nothing in between can be relied upon: requests are executed late, or when their sender has gone; answers and
//! pushes come late, or never; askers crash. What an asker may believe therefore hangs on moments that do not
//! depend on any arrival. A lease that an answer tells of is valid until `sent + (expiry − now)`: when the asker
//! sent the call, and what time it was on the server when that was executed. A pushed claim comes with its expiry
//! in server time, and is valid until `sent + (expiry − now)` just so, of the earlier call by whose answer the
//! waiter learned that it is queued: its *anchor*. Counting from when something arrives is the trap, in each of
//! its forms a [`Flaw`] that the checker must find.
//!
//! # What is modelled
//!
//! * [`server`]: one key. There is one clock, which ticks, and all times are kept as what is left of them; so
//!   the model is finite without an end of time. That clocks do not run alike is what the drift allowance is for.
//! * [`asker`]: each asks once, and is a process of its own. Who asks again, also because it lost its place,
//!   takes a new token, and that is another asker.
//! * [`world`]: what can happen, in every order. What is under way is kept with the asker that it comes from or
//!   goes to. A message that is never delivered is lost. Timers are no events: a beat or a renewal may be sent
//!   at any time, and a belief ends by itself, whatever is awaited.
//!
//! Left out are the order of `RwLock` (writers first), the end of tombstones and of fences, asking without
//! waiting, and what happens when the server loses its state.
//!
//! # What is checked
//!
//! [`properties`] lists it: above all that those who *believe* that they hold never exceed the capacity. [`calm`]
//! is about nobody waiting for ever. Nothing bounds the depth, and each exploration is also asked for examples of
//! what makes the protocol hard, so that it says something. `MODEL_SIZE` tells how far to go:
//!
//! | `MODEL_SIZE` | states | processor time | memory |
//! |---|---|---|---|
//! | 1, the default | 1.5 million | 30 s, or 5 s with `--release` | 60 MB |
//! | 2 | 7 million | 30 s with `--release` | 100 MB |
//! | 3 | 34 million | 200 s with `--release` | 3 GB |
//!
//! ```sh
//! MODEL_SIZE=2 cargo test --release --test protocol_model -- --nocapture
//! ```
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod asker;
mod calm;
mod properties;
mod rules;
mod server;
mod world;

use std::collections::BTreeSet;
use std::{env, thread};

use stateright::{Checker, HasDiscoveries, Model};

use properties::{EXCLUSION, FENCES, ORDER, RELEASED, SERVED};
use rules::{Faults, Flaw, Rules, Times};
use world::{LookFor, Protocol};

const SHORT: Times = Times { lease: 2, claim: 1, life: 2 };
const LONG: Times = Times { lease: 3, claim: 2, life: 2 };

#[test]
fn two_askers() {
    explore(Rules::mutex(2, LONG).faults(Faults { resends: false, ..Faults::ALL }));
}

#[test]
fn two_askers_who_send_an_acquire_again() {
    explore(match size() {
        ..=1 => Rules::mutex(2, SHORT).faults(Faults { repeats: false, ..Faults::ALL }),
        _ => Rules::mutex(2, LONG).faults(Faults::ALL),
    });
}

#[test]
fn three_askers() {
    let faults = Faults { crashes: true, losses: true, ..Faults::NONE };
    explore(match size() {
        ..=1 => Rules::mutex(3, SHORT).faults(faults),
        2 => Rules::mutex(3, LONG).faults(faults),
        _ => Rules::mutex(3, LONG).faults(Faults { repeats: true, ..faults }),
    });
}

#[test]
fn three_askers_with_weights() {
    let faults = Faults { crashes: true, ..Faults::NONE };
    explore(match size() {
        ..=1 => Rules::weighted(SHORT).faults(faults),
        2 => Rules::weighted(LONG).faults(faults),
        _ => Rules::weighted(LONG).faults(Faults { losses: true, repeats: true, ..faults }),
    });
}

#[test]
fn a_reply_that_is_valid_from_its_arrival_lets_two_hold_at_once() {
    find(EXCLUSION, Rules::mutex(2, LONG).flaw(Flaw::ReplyValidFromArrival));
}

#[test]
fn a_push_that_is_valid_from_its_arrival_lets_two_hold_at_once() {
    find(EXCLUSION, Rules::mutex(3, SHORT).flaw(Flaw::PushValidFromArrival));
}

#[test]
fn an_anchor_taken_when_the_reply_arrives_lets_two_hold_at_once() {
    find(EXCLUSION, Rules::mutex(3, SHORT).flaw(Flaw::AnchorAtArrival));
}

#[test]
fn a_holder_that_answers_a_push_with_a_release_lets_two_hold_at_once() {
    find(EXCLUSION, Rules::mutex(3, SHORT).flaw(Flaw::HolderAnswersPush));
}

#[test]
fn serving_whoever_fits_lets_the_small_overtake() {
    find(ORDER, Rules::weighted(SHORT).flaw(Flaw::SmallGoesFirst));
}

#[test]
fn the_clock_alone_gives_two_grants_one_fence() {
    find(FENCES, Rules::mutex(2, SHORT).flaw(Flaw::FenceIsTheClock));
}

#[test]
fn without_a_tombstone_a_late_acquire_undoes_the_release() {
    find(RELEASED, Rules::mutex(2, SHORT).flaw(Flaw::NoTombstone));
}

#[test]
fn a_tombstone_only_for_the_unknown_is_enough_unless_an_acquire_is_sent_again() {
    let rules = Rules::mutex(2, LONG).flaw(Flaw::TombstoneOnlyForUnknown);
    explore(rules.faults(Faults { resends: false, ..Faults::ALL }));
    find(RELEASED, rules.faults(Faults { resends: true, ..Faults::NONE }));
}

#[test]
fn if_beats_grant_nothing_a_crash_lets_the_others_wait_for_ever() {
    find(
        SERVED,
        Rules::mutex(2, SHORT).faults(Faults { crashes: true, ..Faults::NONE }).flaw(Flaw::BeatGrantsNothing),
    );
}

fn size() -> u8 {
    env::var("MODEL_SIZE").map_or(1, |size| size.parse().expect("MODEL_SIZE is a number"))
}

/// Visits all states, and finds nothing that must not be, and everything that must be possible.
fn explore(rules: Rules) {
    let threads = thread::available_parallelism().map_or(1, Into::into);
    let witnesses = Protocol { rules, look_for: LookFor::Witnesses };
    witnesses.checker().threads(threads).spawn_bfs().join().assert_properties();
    let violations = Protocol { rules, look_for: LookFor::Violations };
    let checker = violations.checker().threads(threads).symmetry().spawn_dfs().join();
    assert!(checker.is_done());
    checker.assert_properties();
    println!("{} states and nothing wrong: {rules:?}", checker.unique_state_count());
}

/// Finds a way in which a property is violated; breadth first, so that it is short.
fn find(property: &'static str, rules: Rules) {
    let model = Protocol { rules, look_for: LookFor::Violations };
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let way = checker.assert_any_discovery(property).into_actions();
    println!("Not so: {property}: {way:?} with {rules:?}");
}
