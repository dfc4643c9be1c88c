use std::time::Duration;

use super::*;
use crate::bucket::tests::fixtures::{START, left_of_each};
use crate::learn::Policy;
use crate::store::memory::manual_clock::ManualClock;
use support::patient;
use support::redis_server::RedisServer;

const NOWHERE: &str = "redis://127.0.0.1:1";

fn remembered(quotas: &str) -> Remembered {
    Remembered {
        quotas: quotas.into(),
        corrects: false,
    }
}

/// A limit per second, as a response reports it.
fn told(limit: u64) -> Learned {
    let policy = Policy {
        limit: Some(limit),
        window: Some(Duration::from_secs(1)),
        ..Policy::named("")
    };
    Learned {
        policies: vec![policy],
        ..Learned::default()
    }
}

fn quotas(limit: u64) -> Quotas {
    Plan::of(&told(limit), None).quotas.unwrap()
}

/// A process without a store, whose requests are decided under the learned quotas.
struct Process {
    learned: LearnedQuotas,
    bucket: TokenBucket,
    key: Key,
}

impl Process {
    fn knows(known: Known) -> Self {
        let learned = LearnedQuotas::new(&Store::redis(NOWHERE).unwrap(), "upstreams");
        let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", quotas(20)).unwrap();
        let this = Self {
            learned,
            bucket,
            key: Key::from("k"),
        };
        lock(&this.learned.0.known).entry(&this.key, || known, |_| false);
        this
    }

    fn known(&self) -> Known {
        lock(&self.learned.0.known).get(&self.key).unwrap().clone()
    }

    /// Learns from the response to a request that was decided at this time of the store.
    async fn learns(&self, learned: &Learned, now: i64) {
        let mut decision = self.bucket.allow("another").await.unwrap();
        decision.state.now = now;
        self.learned
            .learn(&self.bucket, &self.key, &decision, learned);
    }

    /// Whether a call was sent. It may have failed already.
    fn has_asked(&self, before: &Known) -> bool {
        let known = self.known();
        known.reading_since.or(known.learning_since).is_some() || known.read_at != before.read_at
    }
}

#[test]
fn the_number_of_known_keys_is_bounded() {
    let learned = LearnedQuotas::new(&Store::in_memory(), "upstreams");
    for key in 0..MOST as u64 + 100 {
        let quotas = learned
            .0
            .answered(&Key::from(key), Call::Read, Ok(remembered("10/s")));
        assert_eq!(
            quotas.map(|quotas| quotas.to_string()).as_deref(),
            Some("10/s"),
            "{key}"
        );
    }
    assert_eq!(lock(&learned.0.known).len(), MOST);
}

#[test]
fn in_an_outage_what_is_known_stays_and_nobody_waits_again() {
    let learned = LearnedQuotas::new(&Store::in_memory(), "upstreams");
    let (key, away) = (Key::from("k"), || {
        Err(Error::unavailable(
            crate::error::reasons::Cause::TimedOut,
            "away",
        ))
    });
    assert_eq!(learned.0.answered(&key, Call::Read, away()), None);
    assert!(
        lock(&learned.0.known).get(&key).is_some(),
        "it is read again in the background"
    );
    learned.0.answered(&key, Call::Read, Ok(remembered("10/s")));
    assert!(learned.0.answered(&key, Call::Read, away()).is_some());
    // A text of another version.
    assert_eq!(
        learned
            .0
            .answered(&key, Call::Read, Ok(remembered("10/fortnight"))),
        None
    );
}

/// Only one call per key that learns, and one that reads, is in flight at a time.
#[test]
fn calls_are_bounded() {
    for may_begin in [Known::may_read, Known::may_learn] {
        let mut known = Known::default();
        let begins: Vec<_> = [5, 5, 5 + GIVEN_UP, 6 + GIVEN_UP]
            .map(|now| may_begin(&mut known, now))
            .into_iter()
            .collect();
        assert_eq!(begins, [true, false, false, true]);
    }
    let mut known = Known::default();
    assert!(
        known.may_learn(5) && !known.may_read(5),
        "its answer says what is remembered"
    );
}

#[test]
fn keys_that_were_not_read_for_a_minute_make_room() {
    let mut all = KnownKeys::new(MOST);
    assert!((0..MOST as u64).all(|key| slot(&mut all, &Key::from(key), 0).is_some()));
    let key = Key::from("another");
    assert!(slot(&mut all, &key, UNUSED - 1).is_none());
    assert!(slot(&mut all, &key, UNUSED).is_some());
    let left = all.len();
    assert!(left < MOST);
    assert!(slot(&mut all, &Key::from("one more"), 2 * UNUSED).is_some());
    assert_eq!(all.len(), left + 1, "there is room");
}

#[tokio::test]
async fn another_limit_is_learned_once_in_a_second() {
    let now = clock::micros();
    // The change that was just sent has a time in the future, because this machine may be slow. With a store that is
    // slower than the upstream, the read that was sent with the request is still in flight.
    for (changed_at, reading_since, changes) in [
        (0, None, true),
        (now + 60_000_000, None, false),
        (now - CHANGE_AFTER - 1, None, true),
        (0, Some(now), true),
    ] {
        let before = Known {
            quotas: Some(quotas(20)),
            read_at: now,
            changed_at,
            reading_since,
            ..Known::default()
        };
        let process = Process::knows(before.clone());
        process.learns(&told(30), 7).await;
        assert_eq!(process.has_asked(&before), changes, "{}", now - changed_at);
        assert_eq!(
            process.known().changed_at != changed_at,
            changes,
            "{}",
            now - changed_at
        );
        assert_eq!(
            process.known().quotas,
            Some(quotas(20)),
            "until the store answers"
        );
    }
}

#[tokio::test]
async fn what_an_undated_decision_tells_does_not_hold_before_the_store_answers() {
    for (now, holds) in [(0, false), (1, true)] {
        let process = Process::knows(Known {
            read_at: clock::micros(),
            ..Known::default()
        });
        process.learns(&told(20), now).await;
        assert_eq!(process.known().quotas.is_some(), holds);
    }
}

#[tokio::test]
async fn what_the_upstream_has_not_is_charged_to_its_quota_once() {
    let store = ManualClock::at(START).store();
    let learned = LearnedQuotas::new(&store, "upstreams");
    let policy = |name, limit, seconds, remaining| {
        let window = Some(Duration::from_secs(seconds));
        Policy {
            limit: Some(limit),
            window,
            remaining,
            ..Policy::named(name)
        }
    };
    let policies = vec![
        policy("a", 1000, 60, Some(10)),
        policy("b", 2000, 600, Some(15)),
        policy("c", 5000, 3600, None),
        policy("d", 5000, 7200, Some(40)),
    ];
    let told = Learned {
        policies,
        ..Learned::default()
    };
    let quotas = Plan::of(&told, None).quotas.unwrap();
    let bucket = TokenBucket::new(&store, "upstreams", quotas).unwrap();
    let left = || left_of_each(&bucket);
    let decision = bucket.allow("k").await.unwrap();
    assert_eq!(left().await, [10, 20, 50, 50]);
    for _ in 0..2 {
        learned.learn(&bucket, &Key::from("k"), &decision, &told);
        assert_eq!(left().await, [10, 15, 50, 40]);
    }
}

#[tokio::test]
async fn what_is_told_again_is_confirmed_until_another_process_changes_it() {
    let known = Known {
        quotas: Some(quotas(20)),
        read_at: clock::micros(),
        ..Known::default()
    };
    let process = Process::knows(known.clone());
    process.learns(&told(20), 7).await;
    process.learns(&told(20), 5).await;
    assert_eq!(process.known().confirmed, 7);
    assert!(!process.has_asked(&known), "it costs no call");
    for (limit, confirmed) in [(20, 7), (30, 0)] {
        let answer = Ok(remembered(&quotas(limit).to_string()));
        let inner = &process.learned.0;
        inner.answered(&process.key, Call::Learn, answer);
        assert_eq!(process.known().confirmed, confirmed);
    }
}

#[tokio::test]
async fn the_store_is_asked_again_after_two_seconds() {
    // The time of a read that was just done is in the future, because this machine may be slow.
    for (age, asks) in [(-60_000_000, false), (READ_AFTER + 1, true)] {
        let before = Known {
            read_at: clock::micros() - age,
            ..Known::default()
        };
        let process = Process::knows(before.clone());
        assert!(matches!(
            process.learned.of(&process.key),
            ChosenQuotas::Ready(Ok(None))
        ));
        assert_eq!(process.has_asked(&before), asks, "{age}");
    }
}

/// An older response that another process received late replaces the stored quotas, but not for long.
#[tokio::test]
async fn what_is_confirmed_is_told_to_the_store_again() {
    let server = RedisServer::start().await;
    let store = patient!(server.url());
    for (confirmed, holds) in [(0, false), (1500, false), (2500, true)] {
        let learned = LearnedQuotas::new(&store, "upstreams");
        let key = Key::from(confirmed.to_string());
        let late = Learn {
            order: 2000,
            quotas: "30/s".into(),
            corrects: false,
        };
        learned.0.client.run(key.clone(), late).await.unwrap();
        let known = Known {
            quotas: Some(quotas(20)),
            confirmed,
            ..Known::default()
        };
        lock(&learned.0.known).entry(&key, || known, |_| false);
        assert!(
            matches!(learned.of(&key), ChosenQuotas::Ready(Ok(Some(now))) if now == quotas(20))
        );
        support::eventually("the store answers", Duration::from_secs(60), async || {
            lock(&learned.0.known).get(&key).unwrap().read_at > 0
        })
        .await;
        let expected = if holds {
            quotas(20)
        } else {
            "30/s".parse().unwrap()
        };
        assert_eq!(learned.known(&key), Some(expected), "{confirmed}");
        assert_eq!(
            lock(&learned.0.known).get(&key).unwrap().reading_since,
            None
        );
    }
}
