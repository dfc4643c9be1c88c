//! The settings that are explored.

use crate::lease::holders::Holder;
use crate::lease::model::properties::{COVERED, EXCLUSION, ORDER};
use crate::lease::model::rules::{Faults, Rules, SEAT, Seat, Tokens, one_each};
use crate::rw_lock::holders::RwHolders;
use crate::wait_group::permits::PermitHolders;

pub(super) const NONE: Faults = Faults {
    crashes: 0,
    losses: false,
    resends: false,
    failures: false,
    leaves: false,
    stalls: false,
    evictions: 0,
    jump: 0,
    completes: false,
};
const LOSSES: Faults = Faults {
    losses: true,
    ..NONE
};
const SOME: Faults = Faults {
    leaves: true,
    crashes: 1,
    ..LOSSES
};
const SET_BACK: Faults = Faults {
    jump: -4,
    crashes: 1,
    ..NONE
};

/// Two waiters in a line of one process, and one waiter in another process.
pub(super) fn cohort() -> Rules {
    let other = Seat {
        line: 1,
        process: 1,
        ..SEAT
    };
    Rules::new(vec![SEAT, SEAT, other], Tokens::Mutex).asks(2)
}

/// Two waiters in a line of one process.
pub(super) fn line() -> Rules {
    Rules::new(vec![SEAT, SEAT], Tokens::Mutex).asks(2)
}

/// Two waiters in a line of one process. The second one requests a longer lease.
fn two_values() -> Rules {
    Rules::new(vec![SEAT, Seat { ttl: 3, ..SEAT }], Tokens::Mutex).asks(2)
}

/// Two waiters for one of two permits each, and one for both.
pub(super) fn weighted() -> Rules {
    one_wants_both(permits())
}

fn one_wants_both(mut rules: Rules) -> Rules {
    (rules.seats[2].weight, rules.capacity) = (2, 2);
    rules.asks(1)
}

/// Three waiters for one of two permits each.
pub(super) fn permits() -> Rules {
    Rules {
        capacity: 2,
        ..Rules::new(one_each(3, |_, _| ()), Tokens::Permits)
    }
    .asks(1)
}

/// Waiters for the only permit, each of a flow.
fn fair(flows: &[i64]) -> Rules {
    let seats = one_each(flows.len(), |line, seat| {
        (seat.ttl, seat.flow) = (1, flows[line])
    });
    Rules::new(seats, Tokens::Permits)
}

/// Waiters for the only permit, each of a class. After a tick, a class is served before those above it.
pub(super) fn classes(ranks: &[i64]) -> Rules {
    let seats = one_each(ranks.len(), |line, seat| {
        (seat.ttl, seat.rank) = (1, ranks[line])
    });
    Rules {
        aging: 1,
        alive: 3,
        ..Rules::new(seats, Tokens::Permits)
    }
}

/// Waiters that want the only permit, one after the other or, once there have been waiters for a tick, the newest
/// first.
pub(super) fn newest(seats: usize) -> Rules {
    Rules {
        newest: 1,
        alive: 3,
        ..fair(&vec![0; seats])
    }
}

/// Two readers and a writer.
fn read_write() -> Rules {
    let seats = one_each(3, |line, seat| {
        seat.ttl = 1;
        (seat.weight, seat.rank) = if line == 2 { (2, 0) } else { (1, 1) };
    });
    Rules {
        capacity: 2,
        ..Rules::new(seats, Tokens::ReadWrite)
    }
    .asks(1)
}

/// All leases are short, for settings with many states.
fn brief(mut rules: Rules) -> Rules {
    rules.seats.iter_mut().for_each(|seat| seat.ttl = 1);
    let asks = rules.asks;
    rules.asks(asks)
}

/// Tombstones last for 3 ticks. A call that has not run after 2 ticks is lost.
pub(super) fn ending(rules: Rules) -> Rules {
    Rules {
        tombstone: 3,
        late: Some(2),
        ..rules
    }
}

/// Waiters line up behind others. The queue is kept for 3 ticks, unless a waiter extends that.
pub(super) fn busy() -> Rules {
    Rules {
        late: Some(1),
        ..ending(Rules::mutex(3))
    }
}

macro_rules! explore {
    ($($(#[$about:meta])* $name:ident = $holders:ty, $rules:expr;)+) => {
        $($(#[$about])* #[test] fn $name() { super::explore::<$holders>($rules); })+
    };
}

explore! {
    two_askers = Holder, Rules::mutex(2).faults(Faults { failures: true, ..SOME });
    three_askers = Holder, Rules::mutex(3);
    calls_that_are_sent_twice = Holder, Rules::mutex(2).faults(Faults { resends: true, ..LOSSES });
    tombstones_that_end = Holder,
        ending(brief(Rules::mutex(2))).faults(Faults { resends: true, failures: true, ..NONE });
    tombstones_that_end_in_a_line = Holder, ending(brief(line())).faults(Faults { failures: true, ..NONE });
    /// The holder renews its lease. The others wait, with or without heartbeats.
    a_queue_that_is_busy_for_longer_than_a_tombstone_lasts = Holder, busy();
    a_grant_that_could_stand_for_longer_than_a_lease = Holder,
        Rules { grant: 3, ..Rules::mutex(2) }.faults(Faults { crashes: 1, ..LOSSES });
    a_line_in_a_process = Holder, Rules { alive: 1, ..brief(cohort()) };
    two_values_of_one_namespace = Holder, two_values().faults(LOSSES);
    who_is_not_polled = Holder, line().faults(Faults { stalls: true, leaves: true, ..LOSSES });
    a_line_that_asks_again = Holder, line().faults(Faults { failures: true, ..NONE });
    eviction = Holder, Rules::mutex(2).asks(2).faults(Faults { evictions: 1, ..LOSSES });
    completing = Holder<false>, Rules::mutex(2).asks(2).faults(Faults { completes: true, ..LOSSES });

    a_clock_that_is_set_back = Holder, Rules::mutex(2).faults(SET_BACK);
    a_clock_that_is_set_back_beside_others = PermitHolders, brief(permits()).faults(SET_BACK);
    /// In this case two processes may treat their lease as valid. The fence distinguishes them.
    a_clock_that_is_set_forward = Holder,
        Rules::mutex(2).faults(Faults { jump: 4, ..NONE }).but(&[EXCLUSION, COVERED]);

    readers_and_a_writer = RwHolders, read_write();
    weights = PermitHolders, weighted();
    /// One flow has two waiters, the other one has one.
    flows = PermitHolders, fair(&[1, 1, 2]);
    flows_and_faults = PermitHolders, fair(&[1, 2]).faults(SOME);
    /// Most of the waiters have no flow, and arrive twice: one of them is served while the flow waits, and then the
    /// flow.
    a_flow_beside_waiters_without_one = PermitHolders, fair(&[0, 0, 1]).asks(2).but(&[ORDER]);
    /// One flow requests one of two permits at a time, another one requests both.
    flows_of_different_weights = PermitHolders, one_wants_both(fair(&[1, 1, 2])).but(&[ORDER]);
    waiters_of_different_classes = PermitHolders, classes(&[0, 0, 1]);
    classes_and_faults = PermitHolders, classes(&[0, 1]).faults(SOME);
    newest_first_after_a_while = PermitHolders, newest(3);
    newest_first_and_faults = PermitHolders, newest(2).faults(SOME);
    newest_first_of_different_weights = PermitHolders, one_wants_both(newest(3));
}
