//! How the operations are sent, and what their replies say.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redis::Value;

use super::*;
use crate::lease::holder::Exclusive;
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

fn integers(values: &[i64]) -> Vec<Value> {
    values.iter().map(|value| Value::Int(*value)).collect()
}

/// What a reply says to a call with this verb. `None`: nothing.
fn read(verb: VerbOf<Flight>, twice: bool, reply: &[i64]) -> Option<What> {
    read_values(verb, twice, &integers(&[reply, &[0, 0]].concat()))
}

fn read_alone(verb: VerbOf<Flight>) -> Option<What> {
    read_values(verb, false, &[])
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

/// The scripts read these by their places.
#[test]
fn calls_have_the_arguments_of_their_scripts() {
    let written = |write: &dyn Fn(&mut Arguments<'_>)| {
        let mut written = Vec::new();
        write(&mut Arguments::new(&mut written));
        format!("{written:?}").replace("Integer", "").replace("Text", "").replace("Word", "")
    };
    let shared = r#"[Channels("channels"), ("text/1+")]"#;
    let with_terms = r#"[Channels("channels"), ("text/1+"), (1000), (1), (137438953440)]"#;
    let verbs = [
        (acquire(), with_terms, r#"[("acquire"), ("token")]"#),
        (Verb::Acquire { query: None, bypass: true }, with_terms, r#"[("bypass"), ("token")]"#),
        (release(), shared, r#"[("release"), ("token")]"#),
        (Verb::Release { withdraws: true }, shared, r#"[("withdraw"), ("token")]"#),
    ];
    for (verb, shared, own) in verbs {
        let call = call(verb, 1000);
        assert_eq!([written(&|to| call.shared(to)), written(&|to| call.own(0, to))], [shared, own]);
    }
    let complete = call(complete(false), 1000);
    assert!(written(&|to| complete.own(0, to)).starts_with(r#"[("complete"), ("token"), "#));
    let renew = Renew::<Exclusive> { token: "token".into(), ttl: 1000, fence: 7, kind: PhantomData };
    assert_eq!(written(&|to| renew.own(0, to)), r#"[("token"), (1000), (7)]"#);
    let heartbeat = Heartbeat { scene: scene(), limit: None, tokens: ["a", "b"].map(Token::from).to_vec() };
    assert_eq!(written(&|to| heartbeat.own(0, to)), r#"[(""), ("a"), ("b")]"#);
    assert_eq!(written(&|to| heartbeat.shared(to)), r#"[Channels("channels")]"#);
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
fn a_reply_says_how_a_token_stands() {
    let standing = |reply: [i64; 4]| read(acquire(), false, &reply);
    let acquired = |standing| Some(What::Acquired(standing));
    assert_eq!(standing([1, 9, 5, 0]), acquired(Standing::Held { expiry: 9, fence: 5 }));
    assert_eq!(standing([2, 9, 0, 4]), acquired(Standing::Queued { soonest: 9, before: 4 }));
    assert_eq!(standing([3, 0, 0, 0]), acquired(Standing::Done));
    assert_eq!(standing([-2, 0, 0, 0]), acquired(Standing::Withdrawn));
    assert_eq!(standing([0, 9, 0, 4]), acquired(Standing::Refused { soonest: 9, before: 4 }));
    assert_eq!(standing([-1, 0, 0, 0]), None);
    for (time, soonest) in [(-5, 0), (i64::MAX, 1 << 53)] {
        assert_eq!(standing([0, time, 0, 0]), acquired(Standing::Refused { soonest, before: 0 }));
    }
    let was = |status| read(release(), true, &[status, 0, 0, 0]);
    let all = [Was::Held, Was::Waiting, Was::Neither].map(|was| Some(What::Released(was)));
    assert_eq!([was(1), was(2), was(0)], all);
    assert_eq!(was(-1), None);
}

/// If the call was sent twice, the first copy may have released the lease. Then nobody else has it.
#[test]
fn a_reply_without_numbers_says_that_all_went_as_usual() {
    let granted = Standing::Held { expiry: NOW + 1000, fence: NOW };
    for (verb, what) in [
        (acquire(), What::Acquired(granted)),
        (release(), What::Released(Was::Held)),
        (complete(false), What::Completed(true, 0)),
    ] {
        assert_eq!(read_alone(verb.clone()), Some(what));
        assert_eq!(read(verb, false, &[USUAL, 0, 0, 0]), Some(what), "beside others that went another way");
    }
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

#[test]
fn a_reply_contains_messages_and_what_was_found() {
    let text = |text: &str| Value::BulkString(text.into());
    let read = |heard: Vec<Value>| {
        let values = [integers(&[3, 0, 0, 0]), vec![Value::Array(heard), text("other")]].concat();
        call(acquire(), 1000).decode(0, NOW, Fields::new(&values, false)).ok()
    };
    let mut reply = read(vec![text("5 6 a"), text("0 0 b c")]).unwrap();
    assert_eq!(reply.found, Some(answer::Found::Foreign));
    let ids = AcquireRelease::<Flight>::pushes(&mut reply).into_iter().map(|push| push.ids);
    assert_eq!((ids.collect::<Vec<_>>(), reply.heard.len()), (vec![vec![10], vec![11, 12]], 0));
    assert!(read(vec![Value::Int(5)]).is_none() && read(vec![text("5")]).is_none());
}

#[test]
fn a_renewal_says_until_when_the_lease_lasts() {
    let read = |reply: &[i64]| {
        let renew = Renew::<Exclusive> { token: "token".into(), ttl: 1000, fence: 0, kind: PhantomData };
        renew.decode(0, NOW, Fields::new(&integers(reply), false)).ok()
    };
    assert_eq!([&[1, 9][..], &[0, 0], &[-1, 0]].map(read), [Some((NOW, Some(9))), Some((NOW, None)), None]);
}

#[test]
fn a_heartbeat_says_how_each_waiter_stands() {
    let read = |soonest, each: &[i64]| {
        let tokens = ["a", "b"].map(Token::from).to_vec();
        let values = [integers(&[soonest]), vec![Value::Array(integers(each))], integers(&[0])].concat();
        let heartbeat = Heartbeat { scene: scene(), limit: None, tokens };
        heartbeat.decode(0, NOW, Fields::new(&values, false)).ok().map(|read| (read.soonest, read.each))
    };
    let each = vec![Standing::Held { expiry: 9, fence: 5 }, Standing::Queued { soonest: 0, before: 0 }];
    for soonest in [0, 4] {
        assert_eq!(read(soonest, &[1, 9, 5, 2, 0, 0]), Some((soonest, each.clone())));
    }
    let granted = vec![Push { ids: vec![1], news: crate::store::News::Gone }];
    let mut standings = Standings { now: NOW, soonest: 0, each, granted: granted.clone() };
    assert_eq!((Heartbeat::<Flight>::pushes(&mut standings), standings.granted.len()), (granted, 0));
    assert_eq!(read(-1, &[1, 9, 5, 2, 0, 0]), None);
    assert_eq!(read(4, &[1, 9, 5]), None, "one is missing");
}
