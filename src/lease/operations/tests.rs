//! How the operations are sent, and what their replies say.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redis::Value;

use super::*;
use crate::single_flight::answer::{self, Flight};

const NOW: i64 = 7_000_000;

fn scene() -> Arc<Scene<Flight>> {
    let spans = Spans { grant: 1, alive: 2, tombstone: 3 };
    Arc::new(Scene { channels: "channels".into(), spans, scope: "text/1+".into() })
}

fn call(verb: VerbOf<Flight>, ttl: i64) -> AcquireRelease<Flight> {
    AcquireRelease { scene: scene(), token: "token".into(), verb, terms: Terms::usual(ttl) }
}

fn acquire() -> VerbOf<Flight> {
    Verb::Acquire { query: None, bypass: false }
}

fn release() -> VerbOf<Flight> {
    Verb::Release { withdraws: false }
}

fn complete(again: bool) -> VerbOf<Flight> {
    let (fresh, stale) = (Duration::from_secs(1), Duration::from_secs(2));
    Verb::Complete { entry: answer::Entry { fresh, stale, bytes: Arc::from(*b"an answer") }, again }
}

/// What a reply says to a call with this verb. `None`: nothing.
fn read(verb: VerbOf<Flight>, twice: bool, reply: &[i64]) -> Option<What> {
    let values: Vec<_> = reply.iter().chain(&[0, 0]).map(|value| Value::Int(*value)).collect();
    read_values(verb, twice, &values)
}

fn read_values(verb: VerbOf<Flight>, twice: bool, values: &[Value]) -> Option<What> {
    let answer = call(verb, 1000).decode(0, NOW, Fields::new(values, twice)).ok()?;
    let now = if matches!(answer.what, What::Released(_)) { 0 } else { NOW };
    assert_eq!((answer.now, answer.twice, answer.found, answer.heard.len()), (now, twice, None, 0));
    Some(answer.what)
}

/// What ends a lease has a place where acquires are refused. Acquires of other terms leave in a call of their own.
#[test]
fn releases_leave_with_all_others_and_have_places_of_their_own() {
    let [usual, other] = [1000, 2000].map(|ttl| call(acquire(), ttl));
    assert!(!usual.is_reserved() && usual.payload() == 0);
    assert!(usual.group().is_some() && usual.group() == call(acquire(), 1000).group());
    assert!(usual.group() != other.group());
    for (verb, payload) in [(release(), false), (complete(false), true)] {
        let call = call(verb, 1000);
        assert!(call.is_reserved() && call.group().is_none() && (call.payload() > 0) == payload, "{call:?}");
    }
}

#[test]
fn the_scripts_have_the_same_spans() {
    let spans = crate::lease::admission::spans(&crate::Store::in_memory());
    for (name, span) in [("alive", spans.alive), ("tombstone", spans.tombstone)] {
        assert!(include_str!("../../../lua/queue.lua").contains(&format!("\n  {name} = {span},")), "{name}");
    }
    assert_eq!(&*spans.with("td:wake:"), format!("{} td:wake:", spans.grant));
}

#[test]
fn a_lease_that_a_copy_released_was_held() {
    for (again, twice, status, held) in [
        (false, false, 1, true),
        (false, false, 0, false),
        (true, false, 0, true),
        (false, true, 0, true),
        (true, true, 2, false),
        (true, false, 1, true),
    ] {
        let what = read(complete(again), twice, &[status, 7, 0, 0]);
        assert_eq!(what, Some(What::Completed(held, 7)), "{again} {twice} {status}");
    }
    assert_eq!(read(complete(true), false, &[-1, 0, 0, 0]), None);
    assert_eq!(read(complete(true), false, &[1, -7, 0, 0]), Some(What::Completed(true, 0)));
}
