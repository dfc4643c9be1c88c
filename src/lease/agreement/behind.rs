//! Waiters that are put behind all others, because a grant of their process has expired: on Redis and in memory, each
//! of them returns to the line of its rank.

use crate::lease::agreement::busy::{Pair, SECOND};
use crate::lease::agreement::{Step, Tried};
use crate::lease::operations::Verb;
use crate::lease::token::Token;
use crate::rw_lock::holders::ReadWrite;
use crate::wait_group::permits::Permits;

/// The first waiter of a process is granted a lease, which expires, while these wait behind it: each with its suffix
/// and rank.
struct Paused<K: Tried> {
    pair: Pair<K>,
    waiters: Vec<Token>,
    /// Has held since then, in another process.
    held: Token,
}

fn other(id: u64, suffix: &str) -> Token {
    format!("bbbbbbbbbbbbbbbb-{id:x}.1c9c380{suffix}")
        .as_str()
        .into()
}

impl<K: Tried> Paused<K> {
    async fn new(first: (&str, i64), waiters: &[(&str, i64)]) -> Self {
        let mut pair = Pair::new(30 * SECOND, false).await;
        let (held, granted) = (other(1, first.0), pair.token(first.0));
        pair.holds(&held, first.1).await;
        pair.acquire(&granted, first.1).await;
        let mut waiting = Vec::new();
        for (suffix, rank) in waiters {
            waiting.push(pair.token(suffix));
            let answer = pair.acquire(waiting.last().unwrap(), *rank).await;
            assert!(answer.contains("Queued"), "{answer}");
        }
        pair.release(&held, first.1).await;
        assert_eq!(pair.told().len(), 1);
        pair.time.set(pair.time.now + 2 * SECOND);
        let held = other(2, first.0);
        pair.holds(&held, first.1).await;
        Self {
            pair,
            waiters: waiting,
            held,
        }
    }

    /// Releases the lease and returns the next waiter that is served, until there is none.
    async fn served(mut self) -> Vec<usize> {
        let mut served = Vec::new();
        loop {
            // A waiter that waits until no permit is held holds nothing.
            self.pair
                .call(&self.held, Verb::Release { withdraws: false }, 0)
                .await;
            let told = self.pair.told();
            let id = |token: &Token| format!("ids: [{}]", token.waiter().unwrap().1);
            let is_told = |token: &Token| told.iter().any(|told| told.contains(&id(token)));
            let Some(next) = self.waiters.iter().position(is_told) else {
                return served;
            };
            served.push(next);
            self.held = self.waiters[next].clone();
        }
    }
}

async fn come_back<K: Tried>(waiters: &[(&str, i64)], order: &[usize], expected: &[usize]) {
    let mut paused = Paused::<K>::new(waiters[0], waiters).await;
    let back: Vec<_> = order
        .iter()
        .map(|nth| paused.waiters[*nth].clone())
        .collect();
    let answer = paused.pair.take(Step::Heartbeat(back)).await;
    assert!(!answer.contains("Refused"), "{answer}");
    assert_eq!(paused.served().await, expected, "{waiters:?}, {order:?}");
}

#[tokio::test]
async fn each_comes_back_to_the_line_of_its_rank() {
    let classes = [
        ("/1/1", 0),
        ("/1/1", 3),
        ("/1/1", 7),
        ("/idle", 8),
        ("/1/1", 0),
    ];
    come_back::<Permits>(&classes, &[0, 1, 2, 3, 4], &[0, 4, 1, 2, 3]).await;
    come_back::<Permits>(&classes, &[3, 2, 4, 1, 0], &[4, 0, 1, 2, 3]).await;
    let flows = [
        ("/1/1/1.1..", 0),
        ("/1/1/1.1..", 0),
        ("/1/1/2.1..", 0),
        ("/1/1/3.1..", 0),
        ("/1/1/1.1..", 3),
    ];
    for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 1, 3, 0]] {
        let mut paused = Paused::<Permits>::new(flows[0], &flows).await;
        let back = order.map(|nth| paused.waiters[nth].clone());
        paused.pair.take(Step::Heartbeat(back.into())).await;
        let served = paused.served().await;
        assert_eq!((served.len(), served.last()), (5, Some(&4)), "{served:?}");
    }
    let writers_first = [("/w9", 0), ("/r", 1), ("/w9", 0)];
    come_back::<ReadWrite>(&writers_first, &[0, 1, 2], &[0, 2, 1]).await;
    come_back::<ReadWrite>(&writers_first, &[1, 2, 0], &[2, 0, 1]).await;
}

/// Waiters that never come back are forgotten, even if the clock was set back meanwhile.
#[tokio::test]
async fn who_never_comes_back_is_forgotten() {
    for by in [8 * SECOND, -3600 * SECOND] {
        let mut paused = Paused::<Permits>::new(("/1/1", 0), &[("/1/1", 0), ("/1/1", 3)]).await;
        let waits = other(3, "/1/1");
        paused.pair.time.set(paused.pair.time.now + by);
        paused.pair.acquire(&waits, 0).await;
        paused.pair.take(Step::Heartbeat(vec![waits])).await;
        let answer = paused
            .pair
            .take(Step::Heartbeat(paused.waiters.clone()))
            .await;
        assert!(
            answer.contains("Refused") && !answer.contains("Queued"),
            "{answer}"
        );
    }
}
