//! When a breaker opens and closes, and how long the pauses are.

use super::*;

fn outage() -> Outage {
    Outage {
        cause: Cause::TimedOut,
        text: "too slow".into(),
        source: None,
    }
}

#[tokio::test(start_paused = true)]
async fn opens_after_failures_in_a_row_and_probes_by_time() {
    let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
    let fail = async || {
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        breaker.failed(sent, &outage(), false);
    };
    fail().await;
    fail().await;
    assert!(!breaker.succeeded());
    fail().await;
    fail().await;
    assert!(breaker.check().is_ok());
    fail().await;
    let error = breaker.check().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("too slow"),
        "{error}"
    );
    assert_eq!(breaker.state(), BreakerState::Open);
    tokio::time::advance(PAUSE).await;
    assert!(breaker.check().is_ok(), "the probe");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert!(breaker.check().is_err(), "one probe at a time");
    // The probe never ends.
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(breaker.check().is_ok(), "another probe");
    fail().await;
    assert!(breaker.check().is_err());
    tokio::time::advance(2 * PAUSE).await;
    assert!(breaker.check().is_ok());
    assert!(breaker.succeeded());
    assert!(breaker.check().is_ok() && breaker.check().is_ok());
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_together_are_one_failure() {
    let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
    let sent = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    for _ in 0..100 {
        breaker.failed(sent, &outage(), false);
    }
    assert!(breaker.check().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_took_long_is_not_repeated_at_once() {
    let breaker = Breaker::new(Duration::from_secs(2), Server::new("test"));
    // The first one opens the breaker; the second is a probe, and so on. The pauses have not grown until then.
    for _ in 0..3 {
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(2)).await;
        breaker.failed(sent, &outage(), true);
        tokio::time::advance(LONGEST_PAUSE / 8 - Duration::from_millis(1)).await;
        assert!(breaker.check().is_err());
        tokio::time::advance(LONGEST_PAUSE).await;
        assert!(breaker.check().is_ok(), "the probe");
    }
}

#[test]
fn pauses_grow_and_differ() {
    for failures in [0, 3, 100] {
        let most = PAUSE
            .saturating_mul(1 << failures.min(10))
            .min(LONGEST_PAUSE);
        let pauses: Vec<_> = (0..20).map(|_| pause(failures)).collect();
        assert!(
            pauses.iter().all(|pause| (most / 8..=most).contains(pause)),
            "{pauses:?}"
        );
        assert!(
            pauses.iter().any(|pause| *pause < most / 2)
                && pauses.iter().any(|pause| *pause > most / 2)
        );
    }
}

async fn paused(failures: &mut Failures, attempt: Attempt) -> Duration {
    let began = Instant::now();
    failures.pause(attempt).await;
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn only_what_lasted_comes_back_at_once() {
    const ALMOST_AT_ONCE: Duration = Duration::from_millis(26);
    let mut failures = Failures::default();
    for lasted in [LASTED, 10 * LASTED] {
        for _ in 0..20 {
            let paused = paused(&mut failures, Attempt::Lasted(lasted)).await;
            assert!(
                !paused.is_zero() && paused <= ALMOST_AT_ONCE,
                "{paused:?} after {lasted:?}"
            );
        }
    }
    for lasted in [Duration::ZERO, LASTED / 2] {
        let began = Instant::now();
        for _ in 0..100 {
            tokio::time::advance(lasted).await;
            failures.pause(Attempt::Lasted(lasted)).await;
        }
        let each = began.elapsed() / 100;
        assert!(
            each >= FORGIVEN / 2,
            "one in {each:?} if each lasts for {lasted:?}"
        );
    }
    assert!(
        paused(&mut failures, Attempt::Lasted(LASTED)).await <= ALMOST_AT_ONCE,
        "the failures before were counted"
    );
}

/// A refusal may be permanent, or an operator may end it.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_tried_less_and_less_often() {
    let mut failures = Failures::default();
    let first = paused(&mut failures, Attempt::Refused).await;
    assert!(first <= REFUSED, "{first:?}");
    let began = Instant::now();
    for _ in 0..10 {
        let paused = paused(&mut failures, Attempt::Refused).await;
        assert!(
            paused >= REFUSED * 3 / 4 && paused <= LONGEST_REFUSED,
            "{paused:?}"
        );
    }
    assert!(
        began.elapsed() > 5 * LONGEST_REFUSED,
        "{:?}",
        began.elapsed()
    );
    paused(&mut failures, Attempt::FAILED).await;
    assert!(
        paused(&mut failures, Attempt::Refused).await <= REFUSED,
        "an outage came between"
    );
}
