//! The results of an acquire, and the end of a lease that was acquired without waiting.

#![allow(clippy::unwrap_used)]

use futures::FutureExt as _;

use super::*;
use crate::error::reasons::Subject;
use crate::lease::holders::Exclusive;
use crate::lease::token::Suffix;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::scheduler::{PeriodicTask as _, Signal};
use crate::telemetry;

fn leases_with(options: LeaseOptions) -> Leases<Exclusive> {
    let store = &Store::in_memory();
    let namespace = || Namespace::new(store, "m").unwrap();
    Leases::shared(
        store,
        "m",
        namespace,
        options,
        telemetry::Leases::new("mutex", "m"),
    )
}

fn leases() -> Leases<Exclusive> {
    leases_with(LeaseOptions::default())
}

fn ask(wait: Option<Patience>, early: Option<u32>) -> AcquireRequest {
    AcquireRequest {
        early,
        ..AcquireRequest::new((), Subject::Lock, Suffix::default(), 0, wait)
    }
}

/// Acquires without waiting.
async fn acquire(leases: &Leases<Exclusive>) -> Result<Lease, Error> {
    let Acquired::Lease(lease, _) = leases.acquire("k".into(), ask(None, None)).await?;
    Ok(lease)
}

/// The estimate depends on the recent hold times, and on the number of waiters ahead.
#[tokio::test(start_paused = true)]
async fn a_wait_that_would_take_too_long_is_refused_at_once() {
    let (leases, ms) = (leases(), Duration::from_millis);
    let refused = |early, before, twice, deadline: Option<u64>| {
        let answer = Answer::acquired(0, Position::Queued { soonest: 0, before }, None, twice);
        let deadline = deadline.map(|after| Instant::now() + ms(after));
        let refusal =
            leases
                .namespace
                .too_late(&ask(Some(Patience::FOR_EVER), early), &answer, deadline)?;
        refusal.retry_after()
    };
    // No hold time is known.
    assert_eq!(refused(Some(2), 5, false, Some(0)), None);
    leases.namespace.hold_time.note(ms(1000));
    for (early, before, twice, deadline, retry_after) in [
        // Six turns, of which two run at the same time.
        (Some(2), 5, false, Some(3001), None),
        (Some(2), 5, false, Some(3000), Some(500)),
        (Some(2), 5, false, Some(2600), Some(500)),
        (Some(2), 5, false, Some(2000), Some(1000)),
        (Some(0), 5, false, Some(2000), Some(4000)),
        (Some(2), -1, false, Some(100), Some(500)),
        (Some(2), 5, true, Some(0), None), // its place is not known
        (Some(2), 5, false, None, None),
        (None, 5, false, Some(0), None),
    ] {
        let told = refused(early, before, twice, deadline);
        assert_eq!(
            told,
            retry_after.map(ms),
            "{early:?} {before} {twice} {deadline:?}"
        );
    }
    // Without a release, one waiter per second waits anyway, to measure a new hold time.
    tokio::time::advance(ms(1000)).await;
    let told = [(); 2].map(|()| refused(Some(2), 5, false, Some(2600)));
    assert_eq!(told, [None, Some(ms(500))]);
}

/// The store may hold it for its whole ttl from the last copy on.
#[test]
fn an_acquire_is_withdrawn_for_as_long_as_it_may_hold() {
    let leases = leases();
    let (key, token) = (&"k".into(), &"token".into());
    let (namespace, options, is_armed) = (&leases.namespace, leases.options(), false);
    let undo = WithdrawOnDrop {
        namespace,
        options,
        key,
        token,
        is_armed,
    };
    let releases = [true, false].map(|withdrawn| undo.release(withdrawn));
    assert_eq!(releases[0].left, Duration::from_secs(37));
    assert!(releases[0].withdrawn && !releases[1].withdrawn);
}

/// Whether any lease has a planned renewal.
fn is_renewed(leases: &Leases<Exclusive>) -> bool {
    lock(&leases.namespace.tokens).tokens.due().is_some()
}

/// A lease that was acquired without waiting, and another one that was moved to the tokens since.
async fn both() -> [(Leases<Exclusive>, Lease); 2] {
    let [new_leases, old] = [leases(), leases()];
    let (lease, other) = (
        acquire(&new_leases).await.unwrap(),
        acquire(&old).await.unwrap(),
    );
    old.namespace.move_to_process(other.state.grant.id);
    assert!(new_leases.namespace.due().is_some() && is_renewed(&old));
    [(new_leases, lease), (old, other)]
}

#[tokio::test]
async fn a_handle_that_is_kept_does_not_keep_its_namespace() {
    for (leases, lease) in both().await {
        let (namespace, handle) = (Arc::downgrade(&leases.namespace), lease.handle());
        drop(leases);
        assert!(namespace.upgrade().is_some() && lease.release().await.unwrap());
        // The scheduler holds a reference while it plans.
        let is_gone = async || namespace.strong_count() == 0;
        support::eventually("the namespace to be gone", Duration::from_secs(20), is_gone).await;
        assert!(!handle.is_held());
    }
}

/// The lease is kept in the stripe of the thread that acquired it.
#[tokio::test]
async fn a_lease_of_another_thread_is_renewed_and_released_here() {
    let leases = leases();
    let (now, mut acquired) = (clock::now(), Vec::new());
    for _ in 0..20 {
        let there = leases.clone();
        let lease = std::thread::spawn(move || acquire(&there).now_or_never().unwrap().unwrap());
        let lease = lease.join().unwrap();
        assert!(leases.namespace.due().is_some());
        if acquired.len() % 2 == 1 {
            leases.namespace.move_to_process(lease.state.grant.id);
        }
        acquired.push(lease.handle());
        assert!(lease.is_held() && lease.release().await.unwrap());
    }
    for lease in acquired {
        assert!(!lease.is_held() && lease.until() > now);
    }
    assert!(!is_renewed(&leases));
    for new_leases in leases.namespace.new_leases.iter() {
        assert!(lock(new_leases).take_due(None).is_empty());
    }
}

#[tokio::test]
async fn a_lease_that_the_store_has_released_is_over() {
    for (leases, lease) in both().await {
        while clock::now() == lease.state.grant.at {}
        let handle = lease.handle();
        lease.settled();
        assert!(!handle.is_held());
        assert!(leases.namespace.hold_time.average() > Some(Duration::from_nanos(1)));
        leases.namespace.handle(Event::Signal(Signal::Due));
        assert!(!is_renewed(&leases));
    }
}

#[tokio::test]
async fn a_lease_that_is_left_to_others_stays_held() {
    for (leases, lease) in both().await {
        let handle = lease.handle();
        let (_, token) = lease.into_token();
        assert!(!handle.is_held() && acquire(&leases).await.is_err());
        let release = Release::new(&"k".into(), &token, false, leases.options().ttl, ALIVE);
        leases.namespace.release_later(release);
        assert!(acquire(&leases).await.is_ok());
    }
}

/// During the minimum hold time, no other holder gets a lease that its holder has released. A lost lease has no holder.
#[tokio::test]
async fn a_lease_is_held_at_least_as_long_as_the_settings_say() {
    let long = Duration::from_secs(20);
    for (by_options, is_lost) in [(true, false), (false, false), (true, true)] {
        let at_least_for = if by_options { long } else { Duration::ZERO };
        let leases = leases_with(LeaseOptions {
            at_least_for,
            ..LeaseOptions::default()
        });
        let mut lease = acquire(&leases).await.unwrap();
        if !by_options {
            lease.hold_at_least(long);
        }
        assert_eq!(lease.at_least_for(), long);
        assert_eq!(lease.ttl(), Duration::from_secs(30));
        if is_lost {
            lease.state.lose();
        }
        lease.release().await.unwrap();
        leases.namespace.handle(Event::Signal(Signal::ShutDown));
        assert_eq!(acquire(&leases).await.is_ok(), is_lost);
    }
}

/// A lease is extended for its whole ttl from now on. One that has ended here never revives, whatever the store
/// replies. No work ran under a declined lease.
#[tokio::test]
async fn a_lease_that_was_lost_cannot_be_extended() {
    for (_leases, lease) in both().await {
        let until = lease.until();
        lease.extend().await.unwrap();
        assert!(lease.until() > until);
    }
    let leases = leases();
    let lease = acquire(&leases).await.unwrap();
    lease.state.lose();
    assert!(lease.extend().await.unwrap_err().is_lost());
    let release = lease.state.release(ALIVE, clock::now());
    leases.namespace.release_token(&release).await.unwrap();
    assert!(lease.release_checked().await.unwrap_err().is_lost());
    let leases = self::leases();
    acquire(&leases).await.unwrap().decline();
    assert_eq!(leases.namespace.hold_time.average(), None);
    assert!(acquire(&leases).await.is_ok());
}

#[tokio::test]
async fn a_waiter_that_goes_away_leaves_the_others_in_line() {
    for cohorts in [false, true] {
        let leases = leases_with(LeaseOptions {
            cohorts,
            ..LeaseOptions::default()
        });
        let waiting = async || leases.namespace.look("k".into()).await.unwrap().waiting;
        let held = acquire(&leases).await.unwrap();
        let mut waits = [(); 3]
            .map(|()| Box::pin(leases.acquire("k".into(), ask(Some(Patience::FOR_EVER), None))));
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        let [first, second, third] = waits;
        assert_eq!(waiting().await, if cohorts { 1 } else { 3 });
        drop(second);
        assert_eq!(waiting().await, if cohorts { 1 } else { 2 });
        drop(held);
        drop(first.await.unwrap());
        drop(third.await.unwrap());
        assert_eq!(waiting().await, 0);
    }
}
