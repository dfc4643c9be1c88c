//! How the operations are sent, and how their replies are parsed.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redis::Value;

use super::*;
use crate::single_flight::answer;
use crate::single_flight::answer::Flight;

const NOW: i64 = 7_000_000;

fn call(verb: VerbOf<Flight>) -> AcquireRelease<Flight> {
    let spans = Spans {
        grant: 1,
        alive: 2,
        tombstone: 3,
    };
    let context = Arc::new(ScriptContext {
        channels: "channels".into(),
        spans,
        scope: "text/1+".into(),
    });
    AcquireRelease {
        context,
        token: "token".into(),
        verb,
        terms: AcquireTerms::usual(1000),
    }
}

fn complete(again: bool) -> VerbOf<Flight> {
    let (fresh, stale) = (Duration::from_secs(1), Duration::from_secs(2));
    Verb::Complete {
        entry: answer::Entry {
            fresh,
            stale,
            bytes: Arc::from(*b"an answer"),
        },
        again,
    }
}

/// Operations that end a lease are accepted when acquires are refused, and are sent with any other call.
#[test]
fn what_ends_a_lease_has_places_of_its_own() {
    let acquire = call(Verb::Acquire {
        query: None,
        bypass: false,
    });
    assert!(!acquire.is_reserved() && acquire.payload() == 0 && acquire.group().is_some());
    for (verb, payload) in [
        (Verb::Release { withdraws: false }, false),
        (complete(false), true),
    ] {
        let call = call(verb);
        assert!(
            call.is_reserved() && call.group().is_none() && (call.payload() > 0) == payload,
            "{call:?}"
        );
    }
}

#[test]
fn the_scripts_have_the_same_spans() {
    let spans = crate::lease::options::spans(&crate::store::Store::in_memory());
    for (name, span) in [("alive", spans.alive), ("tombstone", spans.tombstone)] {
        assert!(
            include_str!("../../../lua/queue.lua").contains(&format!("\n  {name} = {span},")),
            "{name}"
        );
    }
    assert_eq!(
        &*spans.with("td:wake:"),
        format!("{} td:wake:", spans.grant)
    );
}

#[test]
fn a_lease_that_a_copy_released_was_held() {
    for (again, twice, status, level, completed) in [
        (false, false, 1, 7, Some(ReplyKind::Completed(true, 7))),
        (false, false, 0, 7, Some(ReplyKind::Completed(false, 7))),
        (true, false, 0, 7, Some(ReplyKind::Completed(true, 7))),
        (false, true, 0, 7, Some(ReplyKind::Completed(true, 7))),
        (true, true, 2, 7, Some(ReplyKind::Completed(false, 7))),
        (true, false, 1, 7, Some(ReplyKind::Completed(true, 7))),
        (true, false, 1, -7, Some(ReplyKind::Completed(true, 0))),
        (true, false, -1, 0, None),
    ] {
        let values = [status, level, 0, 0, 0, 0].map(Value::Int);
        let answer = call(complete(again))
            .decode(0, NOW, Fields::new(&values, twice))
            .ok();
        assert_eq!(
            answer.map(|answer| answer.what),
            completed,
            "{again} {twice} {status} {level}"
        );
    }
}
