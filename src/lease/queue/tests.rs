//! Where waiters stand, who is served next, and what is told of both.

#![allow(clippy::unwrap_used)]

use super::super::flows::Flow;
use super::super::settings::{Rules, Told};
use super::*;

/// Until when all waiters here count as alive.
const ALIVE: i64 = 100;

const PLAIN: Order = Order { flow: None, reserve: 0, bound: None };

fn token(text: &str) -> Token {
    text.into()
}

fn of_flow(name: u128) -> Order {
    Order { flow: Some(Flow { name, share: 1024, weight: 4 }), ..PLAIN }
}

fn queue_with(aging: i64, newest: i64) -> Queue {
    let mut queue = Queue::default();
    set(&mut queue, aging, newest);
    queue
}

fn set(queue: &mut Queue, aging: i64, newest: i64) {
    queue.settings = Settings::default();
    let rules = Rules { aging, newest, ..Rules::default() };
    queue.settings.take_over(&Told { limit: None, rules: rules.into() }, 0);
}

/// A waiter comes. Returns what [`Queue::line_up`] does.
fn comes(queue: &mut Queue, text: &str, rank: i64, order: Order, now: i64) -> (bool, Option<i64>) {
    queue.line_up(text.into(), (rank, Some(order)), ALIVE, now)
}

fn first(queue: &mut Queue, now: i64) -> String {
    queue.first(now).unwrap().to_string()
}

/// Serves one after the other, all at the same time.
fn served(queue: &mut Queue, now: i64) -> String {
    let next = || {
        let token = queue.first(now)?;
        queue.serve(&token, 1, now);
        Some(token.to_string())
    };
    std::iter::from_fn(next).collect()
}

/// In a rank first come those without a flow, then the first ones of all flows, then the others flow by flow.
#[test]
fn a_position_counts_the_waiters_with_a_lower_score() {
    let mut queue = Queue::default();
    for (token, rank, order) in [
        ("c", 0, of_flow(2)),
        ("a", 0, PLAIN),
        ("e", 0, of_flow(2)),
        ("h", 1, PLAIN),
        ("d", 0, of_flow(5)),
        ("b", 0, PLAIN),
        ("f", 0, of_flow(2)),
        ("g", 0, of_flow(5)),
        ("i", 1, of_flow(0)),
        ("j", 1, of_flow(0)),
    ] {
        comes(&mut queue, token, rank, order, 0);
    }
    let position = |token: char| queue.position(&token.to_string().into());
    assert_eq!("abcdefghij".chars().map(position).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(position('z'), 0);
    assert_eq!([-1, 0, 1, 8].map(|rank| queue.ahead(rank)), [0, 7, 10, 10]);
    assert_eq!(
        [0, 1, 2].map(|rank| queue.first_of(rank).map(Token::to_string)),
        [Some("a".into()), Some("h".into()), None]
    );
    // Flows take turns. Here, those without a flow pay as much as many turns of others.
    assert_eq!(served(&mut queue.clone(), 0), "acdegfbhij");
    // Who goes away is before nobody.
    for token in ["a", "c", "h"] {
        assert_eq!(queue.leave(&token.into()), Some(ALIVE));
    }
    assert_eq!(queue.leave(&token("a")), None);
    let position = |token: char| queue.position(&token.to_string().into());
    assert_eq!("bdefgij".chars().map(position).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
    assert_eq!([0, 1].map(|rank| queue.ahead(rank)), [5, 7]);
    assert_eq!(served(&mut queue, 0), "bdefgij");
    assert!(queue.is_empty() && !queue.has_places());
}

/// A class that has waited for longer than the waiters before it accept is served before them, the one that has waited
/// longest first.
#[test]
fn a_rank_that_waits_for_too_long_is_served_first() {
    let mut queue = queue_with(10, 0);
    assert_eq!(comes(&mut queue, "z", 8, PLAIN, 1), (true, None));
    assert_eq!(comes(&mut queue, "c", 2, PLAIN, 5), (true, None));
    assert_eq!(comes(&mut queue, "b", 1, PLAIN, 7), (true, None));
    assert_eq!(comes(&mut queue, "d", 2, PLAIN, 8), (false, None));
    assert_eq!(comes(&mut queue, "a", 0, PLAIN, 8), (true, None));
    assert_eq!([14, 15, 17, 50].map(|now| first(&mut queue, now)), ["a", "c", "c", "c"]);
    assert_eq!([14, 15].map(|now| queue.due(0, now)), [None, Some(2)]);
    assert_eq!([16, 17].map(|now| queue.due(0, now)), [Some(2), Some(2)]);
    assert_eq!([1, 2, 7].map(|rank| queue.due(rank, 50)), [Some(2), None, None]);
    set(&mut queue, 100, 0);
    assert_eq!(queue.due(0, 50), None);
    set(&mut queue, 0, 0);
    assert_eq!(queue.due(0, 50), None, "the usual aging is 10 s");
    set(&mut queue, 10, 0);
    // After one was served its rank waits anew. The time of a rank without waiters says nothing.
    queue.serve(&token("c"), 1, 17);
    assert_eq!((first(&mut queue, 17), queue.due(0, 17)), ("b".into(), Some(1)));
    queue.serve(&token("b"), 1, 17);
    assert_eq!([17, 26, 27].map(|now| first(&mut queue, now)), ["a", "a", "d"]);
    queue.leave(&token("d"));
    assert_eq!(served(&mut queue, 90), "az");
}

/// Also without settings, where the ranks are those of callers with and without classes.
#[test]
fn all_ranks_age() {
    let mut queue = Queue::default();
    comes(&mut queue, "b", 7, PLAIN, 0);
    comes(&mut queue, "a", 0, PLAIN, 0);
    assert_eq!([9_999_999, 10_000_000].map(|now| first(&mut queue, now)), ["a", "b"]);
    queue.serve(&token("b"), 1, 10_000_000);
    comes(&mut queue, "c", 7, PLAIN, 10_000_001);
    assert_eq!([20_000_000, 20_000_001].map(|now| first(&mut queue, now)), ["a", "c"]);
}

/// Also the ranks of callers that know more of them.
#[test]
fn a_rank_is_one_of_nine() {
    let mut queue = Queue::default();
    ["d", "c", "b", "a"].into_iter().zip([99, 8, 0, -1]).for_each(|(token, rank)| {
        comes(&mut queue, token, rank, PLAIN, 0);
    });
    assert_eq!(served(&mut queue, 0), "badc");
}

#[test]
fn the_newest_is_served_first_once_there_have_been_waiters_for_a_while() {
    let mut queue = queue_with(0, 10);
    comes(&mut queue, "x", 0, PLAIN, 0);
    assert_eq!(comes(&mut queue, "a", 1, PLAIN, 20), (true, None));
    assert_eq!(comes(&mut queue, "b", 1, PLAIN, 21), (false, None));
    assert_eq!(comes(&mut queue, "c", 1, PLAIN, 29), (false, None));
    // It is told that only those of lower ranks come before it.
    assert_eq!(comes(&mut queue, "d", 1, PLAIN, 30), (false, Some(1)));
    assert_eq!(comes(&mut queue, "e", 1, PLAIN, 30), (false, Some(1)));
    assert_eq!(first(&mut queue, 30), "x");
    queue.leave(&token("x"));
    assert_eq!([29, 30].map(|now| first(&mut queue, now)), ["a", "e"]);
    // Who does not send heartbeats any more loses its place.
    assert_eq!(first(&mut queue, ALIVE), "a");
    assert!(queue.heartbeat(&token("a"), ALIVE + 1) && !queue.heartbeat(&token("q"), ALIVE + 1));
    assert_eq!(first(&mut queue, ALIVE), "e");
    assert_eq!(served(&mut queue, 30), "edcba");
    // The time counts while there are waiters.
    comes(&mut queue, "p", 1, PLAIN, 40);
    comes(&mut queue, "n", 1, PLAIN, 45);
    queue.leave(&token("p"));
    comes(&mut queue, "m", 1, PLAIN, 46);
    assert_eq!([49, 50].map(|now| first(&mut queue, now)), ["n", "m"]);
    // A time ahead of the clock is from before the clock was set back.
    assert_eq!([39, 48, 49].map(|now| first(&mut queue, now)), ["n", "n", "m"]);
    // Without the setting, they are served in the order of arrival.
    set(&mut queue, 0, 0);
    assert_eq!(first(&mut queue, 60), "n");
}

/// At most as many of each flow come before a waiter as of its own, after all of lower ranks, and never more than there are.
#[test]
fn the_place_in_a_flow_is_told() {
    let mut queue = Queue::default();
    comes(&mut queue, "a", 0, PLAIN, 0);
    comes(&mut queue, "b", 0, PLAIN, 0);
    let of = |queue: &mut Queue, token, flow| comes(queue, token, 1, of_flow(flow), 0);
    assert_eq!(of(&mut queue, "c", 1), (true, Some(2)));
    for (token, flow, place) in
        [("d", 1, 3), ("e", 1, 4), ("f", 1, 5), ("g", 2, 3), ("h", 2, 5), ("i", 3, 4), ("j", 1, 9)]
    {
        assert_eq!(of(&mut queue, token, flow), (false, Some(place)), "{token}");
    }
    // The first flow of another rank: its keys are to be kept.
    assert_eq!(comes(&mut queue, "k", 2, of_flow(1), 0), (true, Some(10)));
}

#[test]
fn a_place_that_was_evicted_is_taken_by_another() {
    let (mut queue, [a, b]) = (Queue::default(), ["a", "b"].map(token));
    comes(&mut queue, "a", 0, PLAIN, 0);
    assert!(queue.has_place(&a) && queue.has_places() && !queue.is_evicted());
    queue.evict();
    assert!(!queue.has_place(&a) && !queue.has_places() && queue.is_evicted() && queue.contains(&a));
    assert_eq!(comes(&mut queue, "b", 0, PLAIN, 0), (true, None));
    assert!(queue.has_place(&b) && !queue.has_place(&a) && queue.is_evicted());
    assert_eq!((queue.leave(&a), queue.ahead(0)), (Some(ALIVE), 1));
    assert!(queue.has_place(&b) && !queue.is_evicted() && !queue.contains(&a));
}

#[test]
fn who_sends_no_heartbeats_is_dropped() {
    let mut queue = Queue::default();
    for token in ["a", "b", "c"] {
        comes(&mut queue, token, 0, PLAIN, 0);
    }
    queue.heartbeat(&token("b"), ALIVE + 1);
    queue.drop_dead(ALIVE - 1);
    assert_eq!(queue.ahead(0), 3);
    assert_eq!([ALIVE - 1, ALIVE].map(|now| queue.is_alive(&token("a"), now)), [true, false]);
    queue.drop_dead(ALIVE);
    assert_eq!(served(&mut queue, ALIVE), "b");
}

/// Each process gets one message, with the ids of all its waiters in the order of their places.
#[test]
fn a_queue_that_is_dismissed_tells_each_process_once() {
    let [first, other] = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"];
    let mut queue = Queue::default();
    for (process, id, rank) in [(first, 1, 1), (other, 2, 0), (first, 3, 0), (other, 10, 0)] {
        comes(&mut queue, &format!("{process}-{id:x}"), rank, PLAIN, 0);
    }
    comes(&mut queue, "of another program", 0, PLAIN, 0);
    let expected = |news: &News| [vec![2, 10], vec![3, 1]].map(|ids| Push { ids, news: news.clone() });
    assert_eq!(queue.clone().dismiss(None), expected(&News::Gone));
    let told = Arc::from(&b"told"[..]);
    assert_eq!(queue.dismiss(Some(Arc::clone(&told))), expected(&News::Told(told)));
    assert!(queue.is_empty() && !queue.has_places() && queue.ahead(8) == 0);
}
