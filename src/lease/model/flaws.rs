//! Rules that are broken on purpose. Each flaw is found, by a violation of the property that its test names.
//!
//! The model cannot find these flaws:
//!
//! * Two names that share a part of their state: the model has one key. The names of keys have their own tests.
//! * A hand-over of a lease that is about to end: a line hands on for 2 ms after a grant, which is less than a
//!   tick.
//! * Renewals that shorten a lease, alone: no lease outlives its ttl, so there is nothing to shorten. It takes
//!   longer grants as well.
//! * A grant that outlives the ttl of its waiter, alone: the waiter cuts it to its ttl.
//! * Beliefs that ignore an earlier end, alone: the end that the server returns only grows.
//! * Renewals whose answers arrive in another order than they were sent: for the same reason.
//! * A place that is given away while its waiter is between two tokens: the waiter asks again, at the end of the
//!   queue.

use super::find;
use super::properties::*;
use super::rules::Flaw::*;
use super::rules::{Faults, Rules};
use super::settings::{NONE, busy, classes, cohort, ending, line, newest, permits, weighted};
use crate::lease::holder::Holder;
use crate::wait_group::holders::PermitHolders;

#[test]
fn a_reply_that_is_valid_from_its_arrival() {
    find::<Holder>(COVERED, Rules::mutex(2).flaws(&[ReplyValidFromArrival]));
}

#[test]
fn a_push_that_is_valid_from_its_arrival() {
    find::<Holder>(COVERED, Rules::mutex(2).flaws(&[PushValidFromArrival]));
}

#[test]
fn an_anchor_taken_when_the_reply_arrives() {
    find::<Holder>(COVERED, Rules::mutex(2).flaws(&[AnchorAtArrival]));
}

#[test]
fn a_holder_that_answers_a_push_with_a_release() {
    find::<Holder>(COVERED, Rules::mutex(2).flaws(&[HolderAnswersPush]));
}

#[test]
fn a_grant_that_outlives_a_lease() {
    let rules = || Rules { grant: 3, ..Rules::mutex(2) };
    find::<Holder>(COVERED, rules().flaws(&[LongGrant, RenewalShortens, BeliefIsNotCut]));
    find::<Holder>(COVERED, rules().flaws(&[LongGrant, RenewalShortens, BeliefIsNotCut, BeliefOnlyGrows]));
}

#[test]
fn a_cut_that_counts_from_an_old_anchor() {
    find::<Holder>(PROMPT, Rules::mutex(2).flaws(&[PushCutAtAnchor]));
}

#[test]
fn beliefs_that_are_not_cut() {
    let faults = Faults { jump: -4, ..NONE };
    find::<Holder>(BOUNDED, Rules::mutex(2).faults(faults).flaws(&[BeliefIsNotCut]));
}

#[test]
fn leases_that_are_not_cut() {
    let faults = Faults { jump: -9, crashes: 1, losses: true, ..NONE };
    find::<Holder>(SERVED, Rules::mutex(2).faults(faults).flaws(&[SoonestIsNotCut]));
}

#[test]
fn a_clock_that_is_set_forward() {
    find::<Holder>(EXCLUSION, Rules::mutex(2).faults(Faults { jump: 2, ..NONE }));
}

#[test]
fn a_lease_from_before_the_clock_was_set_back_beside_one_from_after() {
    let faults = Faults { jump: -10, crashes: 1, losses: true, ..NONE };
    find::<PermitHolders>(BESIDE, permits().faults(faults).flaws(&[SoonestIsNotCut]));
}

#[test]
fn what_ran_out_on_its_way() {
    find::<Holder>(GOOD, Rules::mutex(2).flaws(&[LateGrantIsTaken]));
}

#[test]
fn who_is_not_polled() {
    let faults = Faults { stalls: true, losses: true, ..NONE };
    find::<Holder>(SERVED, Rules::mutex(3).faults(faults).flaws(&[OfferIsRenewed]));
    find::<Holder>(SERVED, line().faults(faults).flaws(&[AbandonedUnnoticed]));
}

#[test]
fn a_line_of_ones_own() {
    let mut rules = cohort();
    rules.seats[1].line = 1;
    rules.seats[2].line = 2;
    find::<Holder>(FAIR, rules);
}

#[test]
fn one_fence_for_a_line() {
    find::<Holder>(FENCES, cohort().flaws(&[HandOnSameFence]));
}

#[test]
fn the_clock_alone_as_the_fence() {
    find::<Holder>(FENCES, Rules::mutex(2).flaws(&[FenceIsTheClock]));
}

#[test]
fn the_small_overtake() {
    find::<PermitHolders>(ORDER, weighted().flaws(&[SmallGoesFirst]));
}

#[test]
fn classes_that_do_not_age() {
    find::<PermitHolders>(AGED, classes(&[0, 0, 1]).flaws(&[ClassesDoNotAge]));
}

#[test]
fn the_newest_first_at_once() {
    find::<PermitHolders>(ORDER, Rules { newest: 2, ..newest(3) }.flaws(&[NewestAtOnce]));
}

#[test]
fn no_tombstones() {
    let faults = Faults { failures: true, resends: true, ..NONE };
    find::<Holder>(RELEASED, Rules::mutex(2).faults(faults).flaws(&[NoTombstone]));
    find::<Holder>(RELEASED, Rules::mutex(2).faults(faults).flaws(&[TwiceForgotten]));
    find::<Holder>(RELEASED, line().faults(faults).flaws(&[RetryForgotten]));
}

#[test]
fn tombstones_that_end_before_a_late_call_runs() {
    let rules = || Rules { late: Some(3), ..ending(Rules::mutex(2)) };
    find::<Holder>(RELEASED, rules().faults(Faults { failures: true, ..NONE }));
    find::<Holder>(RELEASED, rules().faults(Faults { resends: true, ..NONE }));
}

#[test]
fn a_busy_queue_that_is_not_kept() {
    find::<Holder>(PLACES, busy().flaws(&[BusyQueueIsNotKept]));
}

#[test]
fn heartbeats_that_grant_nothing() {
    let faults = Faults { crashes: 1, losses: true, ..NONE };
    find::<Holder>(SERVED, Rules::mutex(2).faults(faults).flaws(&[HeartbeatGrantsNothing]));
}

#[test]
fn an_eviction_that_goes_unnoticed() {
    let faults = Faults { evictions: 1, losses: true, ..NONE };
    find::<Holder>(SERVED, Rules::mutex(2).asks(2).faults(faults).flaws(&[EvictionUnnoticed]));
}

#[test]
fn a_completion_that_sends_nobody_away() {
    let faults = Faults { completes: true, losses: true, ..NONE };
    find::<Holder<false>>(DONE, Rules::mutex(2).faults(faults).flaws(&[NobodyDismissed]));
}

#[test]
fn values_that_make_two_holders_one() {
    find::<Holder>(COVERED, Rules::mutex(2).asks(2).flaws(&[ValueIsTheHolder]));
}
