//! What permits, mutexes and the locks of writers have in common.

use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::time::timeout;
use tower_distributed::{Key, Mutex, RwLock, WaitGroup};

use crate::kinds::{Family, each};
use crate::line::Line;
use crate::stores::{Place, SOON};
use support::eventually;

pub(crate) async fn what_is_held_is_refused(place: &Place, name: &str) {
    for family in each!(place, name) {
        let taken = family.try_take("k").await.unwrap();
        assert!(taken.is_held() && taken.key() == &Key::from("k"));
        let error = family.try_take("k").await.unwrap_err();
        assert!(
            error.is_refused() && !error.is_waited_too_long() && !error.is_queue_full(),
            "{error}"
        );
        // The end of the lease. Of permits nothing is known before one was released.
        let (from, to) = (Duration::from_secs(15), Duration::from_secs(30));
        let is_permit = matches!(family, Family::Permits(_));
        let after = error.retry_after();
        assert!(
            after.map_or(is_permit, |after| !is_permit && from < after && after <= to),
            "{after:?}"
        );
        let other = family.try_take("l").await.unwrap();
        assert_ne!(other.token(), taken.token());
        assert!(taken.release().await.unwrap());
        let again = family.try_take("k").await.unwrap();
        assert_ne!(other.token(), again.token());
        // What is extended lasts anew, and what is dropped is released.
        let (handle, until) = (again.handle(), again.until());
        eventually("it to last longer", SOON, async || {
            again.extend().await.unwrap();
            again.until() > until
        })
        .await;
        drop(again);
        handle.lost().await;
        assert!(!handle.is_held());
        family.free().await;
    }
}

pub(crate) async fn who_waits_is_served_in_the_order_of_arrival(place: &Place, name: &str) {
    for family in each!(place, name) {
        let (first, mut line) = (family.take("k").await.unwrap(), Line::of(place, &family));
        let waiters = ["a", "b", "c", "d", "e", "f"];
        for waiter in waiters {
            let family = family.clone();
            line.comes(waiter, async move { family.take("k").await })
                .await;
        }
        assert!(family.try_take("k").await.unwrap_err().is_refused());
        assert!(first.release().await.unwrap());
        assert_eq!(line.order().await, waiters, "{}", family.state());
    }
}

pub(crate) async fn nobody_waits_longer_than_the_longest_wait(place: &Place, name: &str) {
    let longest = Duration::from_millis(60);
    for family in each!(place, name, max_wait(longest)) {
        let taken = family.try_take("k").await.unwrap();
        let began = Instant::now();
        let error = family.take("k").await.unwrap_err();
        assert!(began.elapsed() >= longest);
        assert!(
            error.is_refused() && error.is_waited_too_long() && !error.is_queue_full(),
            "{error}"
        );
        place.lined_up(&family.state(), 0).await;
        assert!(taken.release().await.unwrap());
        family.free().await;
    }
}

pub(crate) async fn no_more_wait_than_the_longest_queue(place: &Place, name: &str) {
    for family in each!(place, name, max_waiters(2)) {
        let taken = family.take("k").await.unwrap();
        let mut waiters = Vec::new();
        for number in 1..=2 {
            let waiter = family.clone();
            waiters.push(
                place
                    .line_up(&family.state(), number, async move {
                        waiter.take("k").await.unwrap()
                    })
                    .await,
            );
        }
        let error = family.take("k").await.unwrap_err();
        assert!(
            error.is_refused() && error.is_queue_full() && !error.is_waited_too_long(),
            "{error}"
        );
        assert!(!family.try_take("k").await.unwrap_err().is_queue_full());

        let gone = waiters.pop().unwrap();
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        eventually("a place in the queue", SOON, async || {
            timeout(Duration::from_millis(100), family.take("k"))
                .await
                .is_err()
        })
        .await;
        assert!(taken.release().await.unwrap());
        assert!(waiters.remove(0).await.unwrap().release().await.unwrap());
    }
}

pub(crate) async fn close_sends_away_who_waits(place: &Place, name: &str) {
    for (family, other) in each!(place, name).into_iter().zip(each!(place, name)) {
        let taken = family.take("k").await.unwrap();
        let mut waiters = Vec::new();
        for number in 1..=2 {
            let waiter = family.clone();
            let call = async move { waiter.take("k").await.map(drop).unwrap_err() };
            waiters.push(
                place
                    .line_up(&family.state(), family.places(number), call)
                    .await,
            );
        }
        family.clone().close();
        for waiter in waiters {
            assert!(waiter.await.unwrap().is_interrupted());
        }
        assert!(family.take("l").await.unwrap_err().is_interrupted());
        assert!(taken.is_held() && taken.extend().await.is_ok());
        assert!(taken.release().await.unwrap());
        other.free().await;
    }
}

pub(crate) async fn what_is_not_renewed_runs_out(place: &Place, name: &str) {
    let ttl = Duration::from_secs(1);
    let hold = async |family: Family| {
        let began = Instant::now();
        let taken = family.take("k").await.unwrap();
        let waiter = family.clone();
        let waiting = async move { waiter.take("k").await.unwrap() };
        let waiter = place
            .line_up(&family.state(), family.places(1), waiting)
            .await;
        taken.lost().await;
        assert!(!taken.is_held());
        // Nobody releases it; whoever waits gets it all the same, and not too early.
        let next = waiter.await.unwrap();
        assert!(began.elapsed() >= ttl, "{:?}", began.elapsed());
        assert!(taken.extend().await.unwrap_err().is_lost());
        assert!(!taken.release().await.unwrap(), "it was not held any more");
        assert!(next.is_held());
    };
    join_all(
        each!(place, name, ttl(ttl), watchdog(false))
            .into_iter()
            .map(hold),
    )
    .await;
}

/// Where there are servers to take it from.
pub(crate) async fn what_was_taken_away_is_lost(place: &Place, name: &str) {
    let hold = async |family: Family| {
        let taken = family.take("k").await.unwrap();
        let until = taken.until();
        if !place.take_away(&family.state()) {
            return;
        }
        taken.lost().await;
        assert!(
            tokio::time::Instant::now() < until,
            "it was noticed, and did not run out"
        );
        assert!(!taken.is_held());
        assert!(taken.extend().await.unwrap_err().is_lost());
        let next = family.try_take("k").await.unwrap();
        assert!(!taken.release().await.unwrap());
        assert!(
            next.release().await.unwrap(),
            "and what others got since was left alone"
        );
    };
    join_all(
        each!(place, name, ttl(Duration::from_secs(6)))
            .into_iter()
            .map(hold),
    )
    .await;
}

/// A name may be used for several kinds of things, each of which is its own.
pub(crate) async fn kinds_of_one_name_are_apart(place: &Place, name: &str) {
    let [permits, mutex, writers] = &[
        Family::Permits(WaitGroup::new(place, name, 1).unwrap()),
        Family::Mutex(Mutex::new(place, name).unwrap()),
        Family::Writers(RwLock::new(place, name).unwrap()),
    ];
    for (holder, visitor) in [
        (mutex, permits),
        (permits, mutex),
        (writers, mutex),
        (mutex, writers),
        (permits, writers),
        (writers, permits),
    ] {
        let (held, other) = (holder.take("k").await.unwrap(), holder.clone());
        let (state, places) = (holder.state(), holder.places(1));
        let waiter = place
            .line_up(
                &state,
                places,
                async move { other.take("k").await.unwrap() },
            )
            .await;
        let visit = visitor.try_take("k").await.unwrap_or_else(|error| {
            panic!(
                "{visitor:?} is not free: {error}; {holder:?} served meanwhile: {}",
                waiter.is_finished()
            )
        });
        assert!(visit.release().await.unwrap());
        assert!(held.is_held() && held.extend().await.is_ok());
        assert!(
            !waiter.is_finished(),
            "{visitor:?} has let in who waits for {holder:?}"
        );
        assert!(held.release().await.unwrap());
        assert!(waiter.await.unwrap().release().await.unwrap());
    }
}
