//! What a layer tells: the decision to the request and the response, and to the bucket what the response said.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer as _, ServiceExt as _};
use tower_distributed::token_bucket::Decision;
use tower_distributed::{Key, RateLimitLayer, Refusal};

use crate::probe::Probe;
use crate::stores::{HOUR, SOON, Stores, at_most, on_each_store};
use support::eventually;

on_each_store!(
    requests_and_responses_are_shown_the_decision,
    refusals_are_shown_with_their_requests,
    in_shadow_mode_all_pass,
    the_longest_block_counts,
);

fn everything(_: &Vec<String>) -> &'static str {
    "everything"
}

async fn requests_and_responses_are_shown_the_decision(stores: Stores) {
    let note = |what: &'static str| {
        move |decision: &Decision, lines: &mut Vec<String>| {
            lines.push(format!(
                "{what}: {} of {}",
                decision.remaining(),
                decision.state.tightest().limit
            ));
        }
    };
    let layer = RateLimitLayer::new(at_most(3, &stores.open()), everything)
        .cost(|_: &Vec<String>| 2)
        .on_response(note("first response"))
        .on_admit(note("first request"))
        .on_admit(note("second request"))
        .on_response(note("second response"));
    let lines = layer
        .layer(Probe::default())
        .oneshot(Vec::new())
        .await
        .unwrap();
    assert_eq!(
        lines,
        [
            "first request: 1 of 3",
            "second request: 1 of 3",
            "first response: 1 of 3",
            "second response: 1 of 3"
        ]
    );
}

/// And to nobody else.
async fn refusals_are_shown_with_their_requests(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    bucket.allow("everything").await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let seen = Arc::clone(&seen);
        move |request: &Vec<String>, key: &Key, decision: &Decision| {
            assert_eq!(
                (decision.key.as_ref(), decision.remaining()),
                (Some(key), 0)
            );
            let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
            seen.lock().unwrap().push(format!(
                "{who}: {request:?} {key} {}",
                decision.is_admitted()
            ));
        }
    };
    let layer = RateLimitLayer::new(bucket, everything)
        .on_refused(note("first"))
        .on_admit(|_: &_, _: &mut Vec<String>| panic!("a refused request"))
        .on_response(|_: &_, _: &mut Vec<String>| panic!("the response to a refused request"))
        .block_on_response(|_: &Vec<String>| -> Option<Duration> {
            panic!("the response to a refused request")
        })
        .on_refused(note("second"))
        .reject_with(|refusal: Refusal| vec![refusal.to_string()]);
    let lines = layer
        .layer(Probe::default())
        .oneshot(vec!["b".into()])
        .await
        .unwrap();
    assert!(lines[0].starts_with("rate limit exceeded"), "{lines:?}");
    let seen = seen.lock().unwrap().clone();
    assert_eq!(
        seen,
        [
            "first: [\"b\"] everything false",
            "second: [\"b\"] everything false"
        ]
    );
}

/// It decides, and refuses nothing; nor does anybody wait.
async fn in_shadow_mode_all_pass(stores: Stores) {
    let bucket = at_most(1, &stores.open());
    let [admitted, refused] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let (admits, refuses) = (Arc::clone(&admitted), Arc::clone(&refused));
    let layer = RateLimitLayer::new(bucket.clone(), everything)
        .max_wait(100 * HOUR)
        .cost(|lines: &Vec<String>| if lines.is_empty() { 1 } else { 7 })
        .on_admit(move |_: &_, _: &mut Vec<String>| {
            admits.fetch_add(1, Ordering::SeqCst);
        })
        .on_refused(move |_: &_, _: &_, _: &_| {
            refuses.fetch_add(1, Ordering::SeqCst);
        })
        .shadow();
    let probe = Probe::default();
    let service = layer.layer(probe.clone());
    for _ in 0..3 {
        service.clone().oneshot(Vec::new()).await.unwrap();
    }
    // What can never be admitted passes as well.
    service.oneshot(vec!["dear".into()]).await.unwrap();
    assert_eq!(probe.calls(), 4);
    assert_eq!(
        (
            admitted.load(Ordering::SeqCst),
            refused.load(Ordering::SeqCst)
        ),
        (1, 2)
    );
    let after = bucket
        .peek("everything")
        .await
        .unwrap()
        .available_after(1)
        .unwrap();
    assert!(after <= HOUR, "only what fits is charged");
}

/// In all processes.
async fn the_longest_block_counts(stores: Stores) {
    let bucket = at_most(9, &stores.open());
    let layer = RateLimitLayer::new(at_most(9, &stores.open()), everything)
        .block_on_response(|_: &Vec<String>| Some(HOUR))
        .block_on_response(|_: &Vec<String>| Some(3 * HOUR))
        .block_on_response(|_: &Vec<String>| None)
        .block_on_response(|_: &Vec<String>| Some(2 * HOUR));
    layer
        .layer(Probe::default())
        .oneshot(Vec::new())
        .await
        .unwrap();
    let mut blocked = Duration::ZERO;
    eventually("the block", SOON, async || {
        blocked = bucket.peek("everything").await.unwrap().blocked_for();
        !blocked.is_zero()
    })
    .await;
    assert!(blocked > 2 * HOUR && blocked <= 3 * HOUR, "{blocked:?}");
}
