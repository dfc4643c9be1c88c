use std::net::TcpListener;

use futures::poll;

use super::*;
use crate::bucket::holds::OnEnd;
use crate::bucket::quota::Quota;
use crate::bucket::quotas::Quotas;
use crate::error::reasons::Cause;
use crate::store::builder::StoreBuilder;

const TTL: i64 = 90_000_000;

const LONG: Duration = Duration::from_secs(60);

const RENEWAL: Verb = Verb::Extend {
    amount: 0,
    ttl: TTL,
};

const CAPTURE: Verb = Verb::Capture { amount: 1, late: 0 };

/// The renewals of a store that never replies, and that are never woken.
fn unanswered() -> (TcpListener, Arc<Renewals>) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = StoreBuilder::default()
        .timeout(LONG)
        .connect_timeout(LONG)
        .queue_timeout(LONG);
    let store = builder
        .redis(&format!("redis://{}", silent.local_addr().unwrap()))
        .unwrap();
    let renewals = Renewals::new(&store, &Namespace::open(&store, "tokens"));
    renewals.joined.set(()).unwrap();
    (silent, renewals)
}

fn step(verb: Verb) -> HoldStep {
    HoldStep {
        quotas: Quotas::new([Quota::per_second(1)]).unwrap(),
        id: 1,
        on_end: OnEnd::Release,
        verb,
    }
}

fn due(renewals: &Renewals) -> Option<Instant> {
    lock(&renewals.table).due.first().map(|(due, _)| *due)
}

/// The number of ms until the first entry is due. Clocks differ by a ms.
fn due_in(renewals: &Renewals) -> Option<u128> {
    let due = PeriodicTask::due(renewals)?.saturating_duration_since(Instant::now());
    Some((due.as_millis() + 5) / 10 * 10)
}

/// A hold that is renewed.
fn held(renewals: &Arc<Renewals>, ttl: i64) -> Arc<Validity> {
    let (now, verb) = (clock::now(), Verb::Extend { amount: 0, ttl });
    let validity = Validity::new(now, ttl);
    renewals.hold(&Key::from("k"), step(verb), &validity, now);
    validity
}

/// A capture that is owed.
fn owed(renewals: &Arc<Renewals>, late: u32) -> Arc<Validity> {
    let validity = Validity::new(clock::now(), TTL);
    renewals.owe(Key::from("k"), step(CAPTURE), &validity, late);
    validity
}

fn count(renewals: &Renewals) -> (usize, usize, usize) {
    let table = lock(&renewals.table);
    assert_eq!(
        (table.entries.len(), table.keep_alive.is_some()),
        (table.due.len(), table.owed > 0)
    );
    (
        table.entries.len(),
        table.owed,
        renewals.store.owed().unwrap().count(),
    )
}

fn away() -> Error {
    Error::unavailable(Cause::TimedOut, "no answer")
}

#[tokio::test]
async fn a_hold_is_renewed_after_each_third_of_its_ttl() {
    let ((_silent, renewals), sent) = (unanswered(), clock::now());
    let validity = Validity::new(sent, TTL);
    renewals.hold(&Key::from("k"), step(RENEWAL), &validity, sent);
    let is_third = |since: Instant| {
        let third = since + span(TTL) / 3;
        due(&renewals).is_some_and(|due| due <= third && third - due < span(TTL) / 24)
    };
    assert!(is_third(sent));
    let renewed = sent + span(TTL) / 2;
    renewals.answered(1, renewed, false, Ok(Outcome::Held));
    assert!(is_third(renewed));
    assert_eq!(validity.until(), certain(renewed, TTL));
    renewals.stop(1);
    assert_eq!(count(&renewals), (0, 0, 0));
}

/// Holds that begin at different times are renewed together.
#[tokio::test(start_paused = true)]
async fn renewals_of_many_holds_go_together() {
    let (_silent, renewals) = unanswered();
    for number in 0..100 {
        let now = clock::now();
        let step = HoldStep {
            id: number,
            ..step(RENEWAL)
        };
        renewals.hold(&Key::from("k"), step, &Validity::new(now, TTL), now);
        tokio::time::advance(Duration::from_millis(20)).await;
    }
    let mut times: Vec<_> = lock(&renewals.table)
        .due
        .iter()
        .map(|(due, _)| *due)
        .collect();
    times.dedup();
    assert!(times.len() <= 2, "{} times", times.len());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_sent_again_soon_and_one_that_finds_no_hold_never() {
    for (ttl, pause) in [(TTL, 1000), (900_000, 100)] {
        let (_silent, renewals) = unanswered();
        let validity = held(&renewals, ttl);
        renewals.answered(1, clock::now(), false, Err(away()));
        assert_eq!((due_in(&renewals), validity.is_held()), (Some(pause), true));
        renewals.answered(1, clock::now(), true, Ok(Outcome::Ended));
        assert!(validity.is_held(), "no capture was sent");
        renewals.answered(1, clock::now(), false, Ok(Outcome::Ended));
        assert!(!validity.is_held() && count(&renewals) == (0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_capture_is_sent_again_after_longer_pauses_until_it_is_answered() {
    let (_silent, renewals) = unanswered();
    held(&renewals, TTL);
    owed(&renewals, 0);
    let owed = || (count(&renewals), due_in(&renewals));
    assert_eq!(owed(), ((1, 1, 1), Some(100)), "instead of the renewal");
    renewals.answered(1, clock::now(), false, Ok(Outcome::Held));
    renewals.answered(2, clock::now(), true, Ok(Outcome::Held));
    renewals.send_due(false);
    assert_eq!(owed(), ((1, 1, 1), Some(100)));
    for pause in [200, 400, 800, 1000, 1000] {
        let due = due_in(&renewals).unwrap() as u64;
        tokio::time::advance(Duration::from_millis(due + 5)).await;
        renewals.send_due(false);
        assert_eq!(due_in(&renewals), Some(pause));
    }
    renewals.answered(1, clock::now(), true, Err(away()));
    assert_eq!(owed(), ((1, 1, 1), Some(1000)));
    renewals.answered(1, clock::now(), true, Ok(Outcome::Held));
    assert_eq!(count(&renewals), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_capture_is_owed_until_the_store_has_an_outcome() {
    let denied = || Error::unavailable(Cause::Denied, "not for this user");
    let outcomes = [Ok(Outcome::Held), Ok(Outcome::Ended), Err(denied())];
    for (outcome, late) in outcomes.into_iter().zip([3, 0, 3]) {
        let (_silent, renewals) = unanswered();
        owed(&renewals, late);
        renewals.answered(1, clock::now(), true, outcome);
        assert_eq!(count(&renewals), (0, 0, 0));
    }
    let (_silent, renewals) = unanswered();
    owed(&renewals, 3);
    renewals.answered(1, clock::now(), true, Ok(Outcome::Ended));
    assert_eq!(
        count(&renewals),
        (0, 1, 1),
        "the late tokens are on their way"
    );
}

/// While late tokens may be charged, a second copy of the capture could find the hold ended by the first.
#[tokio::test(start_paused = true)]
async fn a_capture_with_late_tokens_is_not_sent_again_before_it_failed() {
    let (_silent, renewals) = unanswered();
    owed(&renewals, 3);
    renewals.send_due(true);
    let late = || lock(&renewals.table).entries[&1].late;
    assert_eq!((late(), due_in(&renewals)), (3, Some(1000)));
    renewals.answered(1, clock::now(), true, Err(away()));
    assert_eq!((late(), due_in(&renewals)), (0, Some(100)));
    renewals.send_due(true);
    assert_eq!(due_in(&renewals), Some(200), "it is sent");
}

#[tokio::test]
async fn a_capture_is_not_kept_for_longer_than_its_hold() {
    let (_silent, renewals) = unanswered();
    let ended = Validity::new(clock::now(), 0);
    renewals.owe(Key::from("k"), step(CAPTURE), &ended, 0);
    renewals.send_due(true);
    assert_eq!(count(&renewals), (0, 0, 0));
}

#[tokio::test]
async fn a_bounded_number_of_captures_is_kept() {
    for (owed, kept) in [(MOST_OWED - 1, MOST_OWED), (MOST_OWED, MOST_OWED)] {
        let (_silent, renewals) = unanswered();
        lock(&renewals.table).owed = owed;
        renewals.owe(
            Key::from("k"),
            step(CAPTURE),
            &Validity::new(clock::now(), TTL),
            0,
        );
        let table = lock(&renewals.table);
        assert_eq!((table.owed, table.entries.len()), (kept, kept - owed));
    }
}

#[test]
fn no_two_holds_have_one_id() {
    let (store, id) = (Store::in_memory(), |renewals: &Renewals| renewals.next_id());
    let [one, other] = ["a", "b"].map(|name| Renewals::new(&store, &Namespace::open(&store, name)));
    let first = id(&one);
    assert_eq!([id(&one), id(&one)], [first + 1, first + 2]);
    assert_ne!(id(&other) >> 64, first >> 64, "of another process");
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_certain_until_its_renewals_are_late() {
    let ms = Duration::from_millis;
    // A hundredth of the ttl, and 2 ms.
    let certain_for = |ttl: u64| ms(ttl - ttl / 100 - 2);
    let (began, validity) = (Instant::now(), Validity::new(clock::now(), 1_000_000));
    validity.renewed(clock::now(), 500_000);
    tokio::time::advance(certain_for(1000) - ms(5)).await;
    assert!(validity.is_held(), "a renewal makes it no shorter");
    validity.renewed(clock::now(), 2_000_000);
    let mut over = Box::pin(validity.over());
    assert!(poll!(&mut over).is_pending());
    over.await;
    let lasted = began
        .elapsed()
        .abs_diff(certain_for(1000) - ms(5) + certain_for(2000));
    assert!(lasted <= ms(3), "{lasted:?}");
    validity.renewed(clock::now(), 2_000_000);
    assert!(!validity.is_held(), "it was lost");

    let validity = Validity::new(clock::now(), 1_000_000);
    let mut over = Box::pin(validity.over());
    assert!(poll!(&mut over).is_pending());
    validity.end();
    assert!(poll!(&mut over).is_ready() && !validity.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_due_before_others_is_renewed_before_them() {
    let bucket =
        crate::token_bucket::TokenBucket::new(&Store::in_memory(), "tokens", Quota::per_hour(1000))
            .unwrap();
    let with_ttl = |ms| bucket.with_hold_ttl(Duration::from_millis(ms)).unwrap();
    let (long, short) = (with_ttl(80_000_000), with_ttl(1000));
    let holds = (
        long.authorize("k", 1).await.unwrap(),
        short.authorize("k", 1).await.unwrap(),
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(holds.0.is_held() && holds.1.is_held());
    assert_eq!(bucket.peek("k").await.unwrap().held(), 2);
}
