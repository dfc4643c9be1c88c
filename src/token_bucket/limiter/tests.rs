use super::*;
use crate::bucket::quota::Quota;
use crate::bucket::tests::fixtures::one;
use crate::store::Store;

fn bucket(quota: Quota) -> TokenBucket {
    TokenBucket::new(&Store::in_memory(), "test", quota)
        .unwrap()
        .with_max_wait(Duration::ZERO)
}

/// The immediate result of a request.
fn told(
    limiter: &Limiter,
    quotas: Option<&Quotas>,
    key: Key,
    cost: u32,
    is_read: bool,
) -> &'static str {
    match limiter.begin(quotas, key.clone(), cost, is_read) {
        Begun::Admitted => "admitted",
        Begun::Decided(decided, of) => {
            assert_eq!(of, key);
            match decided {
                Ok(decision) if decision.is_admitted() => "admitted, with the decision",
                Ok(_) => "refused",
                Err(error) if error.is_exceeds_limit() => "impossible",
                Err(error) => panic!("{error}"),
            }
        }
        Begun::Pending(_) => "it waits",
    }
}

#[tokio::test]
async fn a_request_is_decided_at_once_in_memory_unless_it_waits() {
    let bucket = bucket(Quota::per_hour(10));
    let (limiter, raised) = (Limiter::One(bucket.clone()), one(Quota::per_hour(20)));
    for (is_read, admitted) in [(false, "admitted"), (true, "admitted, with the decision")] {
        let told = |quotas, cost| told(&limiter, quotas, "k".into(), cost, is_read);
        assert_eq!(
            [told(None, 4), told(None, 7), told(None, 6)],
            [admitted, "refused", admitted]
        );
        assert_eq!([told(None, 11), told(Some(&raised), 21)], ["impossible"; 2]);
        assert_eq!(
            [told(Some(&raised), 11), told(Some(&raised), 10)],
            ["refused", admitted]
        );
        bucket.reset("k").await.unwrap();
        let told = |wait, cost| {
            self::told(
                &limiter.with_max_wait(Duration::from_secs(wait)),
                None,
                "k".into(),
                cost,
                is_read,
            )
        };
        assert_eq!(
            [told(3600, 9), told(3600, 2)],
            ["admitted, with the decision", "it waits"]
        );
        assert_eq!([told(1, 10), told(3600, 11)], ["refused", "impossible"]);
        bucket.reset("k").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_acts_at_its_time_or_gives_its_tokens_back() {
    let bucket = bucket(Quota::per_second(1).burst(1));
    let limiter = Limiter::One(bucket.with_max_wait(Duration::from_secs(5)));
    let pending = || match limiter.begin(None, "k".into(), 1, true) {
        Begun::Pending(acquire) => acquire,
        _ => panic!("it does not wait"),
    };
    assert_eq!(
        told(&limiter, None, "k".into(), 1, true),
        "admitted, with the decision"
    );
    let (began, first) = (tokio::time::Instant::now(), pending());
    drop(pending());
    let second = limiter.acquire(None, "k".into(), 1);
    for (acquire, expected) in [(first, 100), (second, 200)] {
        assert!(acquire.await.unwrap().is_admitted());
        assert_eq!(began.elapsed().as_millis() / 10, expected);
    }
}
