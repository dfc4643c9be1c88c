//! The places of waiters, the order in which they are served, and the results that report both.

#![allow(clippy::unwrap_used)]

use super::*;

/// The time until which all waiters here count as alive.
const ALIVE: i64 = 100;

const PLAIN: Order = Order {
    flow: None,
    reserve: 0,
    bound: None,
};

fn token(text: &str) -> Token {
    text.into()
}

/// A waiter arrives. Returns the result of [`Queue::line_up`].
fn comes(queue: &mut Queue, text: &str, rank: i64, order: Order, now: i64) -> (bool, Option<i64>) {
    queue.line_up(text.into(), (rank, Some(order)), ALIVE, now)
}

fn first(queue: &mut Queue, now: i64) -> String {
    queue.first(now).unwrap().to_string()
}

/// Serves one waiter after the other, all at the same time.
fn served(queue: &mut Queue, now: i64) -> String {
    let next = || {
        let token = queue.first(now)?;
        queue.serve(&token, 1, now);
        Some(token.to_string())
    };
    std::iter::from_fn(next).collect()
}

/// Also without settings, where the ranks are those of callers with and without classes.
#[test]
fn all_ranks_age() {
    let mut queue = Queue::default();
    comes(&mut queue, "b", 7, PLAIN, 0);
    comes(&mut queue, "a", 0, PLAIN, 0);
    assert_eq!(
        [9_999_999, 10_000_000].map(|now| first(&mut queue, now)),
        ["a", "b"]
    );
    queue.serve(&token("b"), 1, 10_000_000);
    comes(&mut queue, "c", 7, PLAIN, 10_000_001);
    assert_eq!(
        [20_000_000, 20_000_001].map(|now| first(&mut queue, now)),
        ["a", "c"]
    );
}

/// Also the ranks of callers of a version that has more of them.
#[test]
fn a_rank_is_one_of_nine() {
    let mut queue = Queue::default();
    ["d", "c", "b", "a"]
        .into_iter()
        .zip([99, 8, 0, -1])
        .for_each(|(token, rank)| {
            comes(&mut queue, token, rank, PLAIN, 0);
        });
    assert_eq!(served(&mut queue, 0), "badc");
}
