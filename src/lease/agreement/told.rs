//! The limits that callers send: on Redis and in memory, they apply to waiters at the same time.

use std::sync::Arc;

use crate::lease::agreement::Step;
use crate::lease::agreement::busy::{Pair, SECOND};
use crate::lease::key_state::AcquireTerms;
use crate::lease::operations::{Verb, VerbOf};
use crate::lease::settings::{CallerSettings, KeyLimit, Source};
use crate::lease::token::Token;
use crate::wait_group::permits::Permits;

/// `version`: of a limit of the fleet that was undone; `None`: the limit adapts, and is 1.
fn acquire(token: &Token, version: Option<i64>) -> (Token, VerbOf<Permits>) {
    let limit = match version {
        Some(version) => KeyLimit {
            source: Source::Fleet,
            version,
            limit: None,
        },
        None => KeyLimit {
            source: Source::Adaptive,
            version: 0,
            limit: Some(1),
        },
    };
    let query = Some(CallerSettings {
        limit: Some(limit),
        rules: Arc::default(),
    });
    (
        token.clone(),
        Verb::Acquire {
            query,
            bypass: false,
        },
    )
}

/// The queue is empty once the first waiter was granted the free permits. The next caller undoes the limit, so its own
/// limit of 0 applies, and it makes way for the caller after it, of the same call.
#[tokio::test]
async fn who_lines_up_alone_by_a_limit_that_it_undoes_makes_way() {
    let mut pair = Pair::<Permits>::new(SECOND, false).await;
    let tokens = ["/4/3", "/1/3", "/1/0", "/3/3"].map(|suffix| pair.token(suffix));
    let terms = AcquireTerms {
        ttl: SECOND,
        max_waiters: 1000,
        rank: 0,
        placed: true,
    };
    for token in &tokens[..2] {
        pair.take(Step::Calls(terms, vec![acquire(token, None)]))
            .await;
    }
    pair.time.set(pair.time.now + 2 * SECOND);
    let leaves = (pair.token("/1/3"), Verb::Release { withdraws: false });
    let calls = [&tokens[2], &tokens[3]].map(|token| acquire(token, Some(4)));
    let [first, step] = [vec![leaves], calls.into()].map(|calls| Step::Calls(terms, calls));
    let answer = pair.take_in_one_call(first, step).await;
    assert_eq!(answer.matches("Queued").count(), 2, "{answer}");
    assert_eq!(pair.told().len(), 2);
}
