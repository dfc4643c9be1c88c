//! A leader that hangs is given up.

use std::time::Duration;

use crate::flights::{builder, call, ended, lead};
use crate::places::{Place, SOON};
use crate::work::Work;
use support::eventually;

const LONGEST: Duration = Duration::from_millis(300);

/// One takes over: in the process of the leader, or in another.
#[tokio::test]
async fn one_who_waits_takes_over_from_a_leader_that_hangs() {
    for place in [Place::redis(2).await, Place::in_memory(1)] {
        for follower in 0..place.stores.len() {
            let key = format!("k{follower}");
            let flight =
                |store: usize| builder().max_run(LONGEST).build(&place.stores[store], "flights").unwrap();
            let (leads, follows) = (flight(0), flight(follower));
            let (hangs, works) = (Work::shut(), Work::open());
            let leader = lead(&leads, &key, &hangs).await;
            let mut followers: Vec<_> = (0..3).map(|_| tokio::spawn(call(&follows, &key, &works))).collect();
            for caller in followers.drain(..) {
                assert_eq!(ended(caller).await.unwrap(), 1, "more than one took over");
            }
            // What comes of it in the end is for its own caller.
            assert!(!leader.is_finished());
            hangs.let_go(1);
            assert_eq!(ended(leader).await.unwrap(), 1);
            assert_eq!(
                ended(tokio::spawn(call(&follows, &key, &works))).await.unwrap(),
                1,
                "it was published"
            );
            assert_eq!(works.runs(), 1);
        }
    }
}

/// What was given up ends with its caller.
#[tokio::test]
async fn what_was_given_up_ends_with_its_caller() {
    let place = Place::in_memory(1);
    let flight = builder().max_run(LONGEST).build(&place.stores[0], "flights").unwrap();
    let (hangs, works) = (Work::shut(), Work::open());
    let leader = lead(&flight, "k", &hangs).await;
    assert_eq!(ended(tokio::spawn(call(&flight, "k", &works))).await.unwrap(), 1);
    assert_eq!(hangs.running(), 1);
    leader.abort();
    eventually("the work to be dropped", SOON, async || hangs.running() == 0).await;
}
