//! Rules that are deliberately broken. Each flaw is found, by a violation of the property that its test names.
//!
//! The model cannot find these flaws:
//!
//! * Two names that share a part of their state: the model has one key. The names of keys have their own tests.
//! * A hand-over of a lease that is about to end: a line hands on for 2 ms after a grant, which is less than a tick.
//! * Renewals that shorten a lease, alone: no lease outlives its ttl, so there is nothing to shorten. This flaw needs
//!   longer grants as well.
//! * A grant that outlives the ttl of its waiter, alone: the waiter cuts it to its ttl.
//! * Processes that ignore an earlier end, and renewals whose replies arrive in another order than they were sent: the
//!   end that the server returns only grows. `store::validity` has tests of both.
//! * A place that is lost while its waiter is between two tokens: the waiter acquires again, at the end of the queue.

use super::properties::*;
use super::rules::Flaw::*;
use crate::lease::holders::Holder;
use crate::lease::model::rules::{Faults, Rules};
use crate::lease::model::settings::{
    NONE, busy, classes, cohort, ending, newest, permits, weighted,
};
use crate::wait_group::permits::PermitHolders;

/// Each process has a line of its own for each of its waiters.
fn lines_of_ones_own() -> Rules {
    let mut rules = cohort();
    (rules.seats[1].line, rules.seats[2].line) = (1, 2);
    rules
}

macro_rules! find {
    ($($name:ident = $property:expr, $holders:ty, $rules:expr;)+) => {
        $(#[test] fn $name() { super::find::<$holders>($property, $rules); })+
    };
}

find! {
    a_reply_that_is_valid_from_its_arrival = COVERED, Holder, Rules::mutex(2).flaws(&[ReplyValidFromArrival]);
    a_push_that_is_valid_from_its_arrival = COVERED, Holder, Rules::mutex(2).flaws(&[PushValidFromArrival]);
    an_anchor_taken_when_the_reply_arrives = COVERED, Holder, Rules::mutex(2).flaws(&[AnchorAtArrival]);
    a_holder_that_answers_a_push_with_a_release = COVERED, Holder, Rules::mutex(2).flaws(&[HolderAnswersPush]);
    a_grant_that_outlives_a_lease = COVERED, Holder,
        Rules { grant: 3, ..Rules::mutex(2) }.flaws(&[LongGrant, RenewalShortens, BeliefIsNotCut]);
    a_cut_that_counts_from_an_old_anchor = PROMPT, Holder, Rules::mutex(2).flaws(&[PushCutAtAnchor]);
    what_ran_out_on_its_way = GOOD, Holder, Rules::mutex(2).flaws(&[LateGrantIsTaken]);

    a_clock_that_is_set_forward = EXCLUSION, Holder, Rules::mutex(2).faults(Faults { jump: 2, ..NONE });
    beliefs_that_are_not_cut = BOUNDED, Holder,
        Rules::mutex(2).faults(Faults { jump: -4, ..NONE }).flaws(&[BeliefIsNotCut]);
    leases_that_are_not_cut = SERVED, Holder,
        Rules::mutex(2).faults(Faults { jump: -9, crashes: 1, losses: true, ..NONE }).flaws(&[SoonestIsNotCut]);
    a_lease_from_before_the_clock_was_set_back_beside_one_from_after = BESIDE, PermitHolders,
        permits().faults(Faults { jump: -10, crashes: 1, losses: true, ..NONE }).flaws(&[SoonestIsNotCut]);

    who_is_not_polled = SERVED, Holder,
        Rules::mutex(3).faults(Faults { stalls: true, losses: true, ..NONE }).flaws(&[OfferIsRenewed]);
    heartbeats_that_grant_nothing = SERVED, Holder,
        Rules::mutex(2).faults(Faults { crashes: 1, losses: true, ..NONE }).flaws(&[HeartbeatGrantsNothing]);
    an_eviction_that_goes_unnoticed = SERVED, Holder,
        Rules::mutex(2).asks(2).faults(Faults { evictions: 1, losses: true, ..NONE }).flaws(&[EvictionUnnoticed]);

    a_line_of_ones_own = FAIR, Holder, lines_of_ones_own();
    one_fence_for_a_line = FENCES, Holder, cohort().flaws(&[HandOnSameFence]);
    the_clock_alone_as_the_fence = FENCES, Holder, Rules::mutex(2).flaws(&[FenceIsTheClock]);
    the_small_overtake = ORDER, PermitHolders, weighted().flaws(&[SmallGoesFirst]);
    the_newest_first_at_once = ORDER, PermitHolders, Rules { newest: 2, ..newest(3) }.flaws(&[NewestAtOnce]);
    classes_that_do_not_age = AGED, PermitHolders, classes(&[0, 0, 1]).flaws(&[ClassesDoNotAge]);

    no_tombstones = RELEASED, Holder,
        Rules::mutex(2).faults(Faults { failures: true, resends: true, ..NONE }).flaws(&[NoTombstone]);
    a_copy_that_is_forgotten = RELEASED, Holder,
        Rules::mutex(2).faults(Faults { failures: true, resends: true, ..NONE }).flaws(&[TwiceForgotten]);
    tombstones_that_end_before_a_late_call_runs = RELEASED, Holder,
        Rules { late: Some(3), ..ending(Rules::mutex(2)) }.faults(Faults { failures: true, ..NONE });
    a_busy_queue_that_is_not_kept = PLACES, Holder, busy().flaws(&[BusyQueueIsNotKept]);
    a_completion_that_sends_nobody_away = DONE, Holder<false>,
        Rules::mutex(2).faults(Faults { completes: true, losses: true, ..NONE }).flaws(&[NobodyDismissed]);
}
