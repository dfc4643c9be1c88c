//! The steady traffic, which feeds every panel while somebody looks.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::bursts;
use super::fleet::Fleet;

/// The time of a turn. Each limit gets a request each turn: 12.5 per second.
const TURN: Duration = Duration::from_millis(80);
/// The address that most of the traffic comes from: 127.0.0.2.
const BUSY: u8 = 2;
/// An address that asks less often than its limit allows: 127.0.0.3.
const MODEST: u8 = 3;
/// How many turns are between two requests of the modest address.
const MODEST_EVERY: usize = 6;
/// What is sent at once from time to time: every so many turns, from this turn on.
const BURSTS: [(&str, usize, usize); 5] = [
    ("export", 100, 0),
    ("report", 50, 1),
    ("document", 45, 2),
    ("webhook", 100, 3),
    ("billing", 160, 4),
];

/// Each time that somebody begins to look, the traffic begins anew: no panel is empty for long.
pub(super) async fn keep_calling(fleet: Arc<Fleet>) {
    let mut ticks = tokio::time::interval(TURN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut turn = 0;
    loop {
        ticks.tick().await;
        if fleet.has_traffic() {
            send(&fleet, turn);
            turn += 1;
        } else {
            turn = 0;
        }
    }
}

fn send(fleet: &Arc<Fleet>, turn: usize) {
    for call in bursts::each_turn(turn, BUSY) {
        fleet.send(call);
    }
    if turn.is_multiple_of(MODEST_EVERY) {
        fleet.send(bursts::limited(turn / MODEST_EVERY, MODEST));
    }
    for (what, every, first) in BURSTS {
        if turn % every == first {
            let calls = bursts::calls(what, fleet.board().now(), BUSY);
            calls
                .into_iter()
                .flatten()
                .for_each(|call| fleet.send(call));
        }
    }
    // Without the store nobody waits.
    if !fleet.has_no_store() {
        fleet.queues().calls(turn).for_each(|call| fleet.send(call));
    }
}
