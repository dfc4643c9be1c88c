//! Flows whose tags and numbers alone were evicted, and tickets and numbers at their maximum. The order is that of the
//! step in Rust, which loses nothing.

use crate::lease::agreement::busy::{Pair, SECOND};
use crate::lease::agreement::{Step, Tried as _};
use crate::lease::key_state::{AcquireTerms, TokenState};
use crate::lease::operations::{ReplyKind, Verb};
use crate::lease::token::Token;
use crate::wait_group::permits::Permits;

const QUEUE: &str = "td:{agreement:sequence 0}:permits:waiters";
const FLOWS: &str = "td:{agreement:sequence 0}:permits:flows";
const BEATS: &str = "td:{agreement:sequence 0}:permits:beats";
const HEADS: i64 = 1 << 47;
const LINES: i64 = 1 << 48;

/// The only permit is held, and two flows wait: the first waiter of each, and some behind it.
struct Crowd {
    pair: Pair<Permits>,
    held: Token,
    waiters: Vec<Token>,
}

impl Crowd {
    async fn new(flows: &[i64]) -> Self {
        let mut pair = Pair::new(30 * SECOND, false).await;
        let held = pair.token("/1/1/9.1..");
        pair.holds(&held, 0).await;
        let mut crowd = Self {
            pair,
            held,
            waiters: Vec::new(),
        };
        crowd.wait(flows).await;
        crowd
    }

    async fn wait(&mut self, flows: &[i64]) {
        for flow in flows {
            let share = if *flow == 3 { 4 } else { 1 };
            self.comes(&format!("/1/1/{flow}.{share}..")).await;
        }
    }

    /// Adds a waiter.
    async fn comes(&mut self, suffix: &str) {
        let token = self.pair.token(suffix);
        assert!(self.pair.acquire(&token, 0).await.contains("Queued"));
        self.waiters.push(token);
    }

    fn run(&mut self, command: &[&str]) {
        self.pair
            .time
            .server
            .query::<()>(redis::cmd(command[0]).arg(&command[1..]))
            .unwrap();
    }

    /// Releases, and returns the position of the waiter that holds next.
    async fn next(&mut self) -> usize {
        self.pair.release(&self.held.clone(), 0).await;
        let told = self.pair.told();
        let id = |token: &Token| format!("ids: [{}]", token.waiter().unwrap().1);
        let next = self
            .waiters
            .iter()
            .position(|token| told[0].contains(&id(token)))
            .unwrap();
        self.held = self.waiters[next].clone();
        next
    }

    async fn all(&mut self, count: usize) -> Vec<usize> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.next().await);
        }
        all
    }

    /// Returns the place of a waiter.
    fn place(&mut self, waiter: usize) -> Option<i64> {
        let token = self.waiters[waiter].text();
        self.score(QUEUE, &token)
    }

    /// A waiter leaves.
    async fn leaves(&mut self, waiter: usize) -> String {
        let token = self.waiters[waiter].clone();
        self.pair
            .call(&token, Verb::Release { withdraws: false }, 0)
            .await
    }

    fn score(&mut self, key: &str, member: &str) -> Option<i64> {
        let score = self
            .pair
            .time
            .server
            .query::<Option<f64>>(redis::cmd("ZSCORE").arg(key).arg(member));
        score.unwrap().map(|score| score as i64)
    }
}

fn tag(flow: i64) -> String {
    format!("0:{flow:x}")
}

/// Also if a first waiter leaves.
#[tokio::test]
async fn tags_come_back_where_a_waiter_goes_away() {
    for leaves in [0, 3] {
        let mut crowd = Crowd::new(&[1, 1, 1, 2]).await;
        crowd.run(&["DEL", FLOWS]);
        let answer = crowd.leaves(leaves).await;
        assert!(
            answer.contains(&format!("{:?}", ReplyKind::Released(TokenState::Waiting))),
            "{answer}"
        );
        // The waiter behind it is served, before the other flow because of their tokens.
        assert_eq!(
            crowd.all(3).await,
            if leaves == 0 { [1, 3, 2] } else { [0, 1, 2] }
        );
    }
}

/// A flow that arrives while the tags are gone is not before all others; nor if one has left meanwhile.
#[tokio::test]
async fn new_flows_come_after_those_whose_tags_are_gone() {
    for between in 0..2 {
        let mut crowd = Crowd::new(&[1, 1, 1, 1, 1, 1, 2, 2, 2]).await;
        crowd.all(4).await;
        crowd.wait(&[4, 4]).await;
        crowd.run(&["DEL", FLOWS]);
        if between == 1 {
            crowd.leaves(9).await;
        }
        let token: Token = "bbbbbbbbbbbbbbbb-77.1c9c380/1/1/3.1..".into();
        crowd.pair.acquire(&token, 0).await;
        let first = (0..crowd.waiters.len())
            .filter_map(|waiter| crowd.place(waiter))
            .min();
        let mine = crowd.score(QUEUE, &token.text());
        assert!(
            first.is_some() && mine > first && mine < Some(LINES),
            "{between}: {mine:?}, {first:?}"
        );
    }
}

/// A flow whose first waiter kept its turn does not get a second one.
#[tokio::test]
async fn a_flow_whose_tag_is_gone_has_one_turn() {
    for serves in [false, true] {
        let mut crowd = Crowd::new(&[1, 1, 1, 1, 1, 2]).await;
        crowd.run(&["DEL", FLOWS]);
        if serves {
            assert_eq!(crowd.next().await, 0);
        }
        crowd.wait(&[2, 2, 2]).await;
        let expected = [0, 5, 1, 6, 2, 7, 3, 8, 4];
        assert_eq!(
            crowd.all(9 - usize::from(serves)).await,
            expected[usize::from(serves)..]
        );
    }
}

/// The last ticket of a line is used: the waiters behind the first one get new tickets.
#[tokio::test]
async fn tickets_begin_again() {
    let mut crowd = Crowd::new(&[1, 1, 1]).await;
    let (line, last) = (LINES, crowd.waiters[2].clone());
    for ticket in [(1 << 26) - 2, (1 << 26) - 1] {
        crowd.run(&["ZADD", QUEUE, &(line + ticket).to_string(), &last.text()]);
        crowd.comes("/1/1/1.1..").await;
        let expected = if ticket == (1 << 26) - 2 {
            ticket + 1
        } else {
            3
        };
        assert_eq!(crowd.place(crowd.waiters.len() - 1), Some(line + expected));
    }
    assert_eq!(crowd.all(5).await, [0, 1, 2, 3, 4]);
}

/// Tags are near their maximum: all are lowered, and the order stays, whether a waiter is served, arrives or leaves.
#[tokio::test]
async fn tags_begin_again() {
    for what in 0..3 {
        let mut crowd = Crowd::new(&[1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3]).await;
        assert_eq!(crowd.all(2).await, [7, 8]);
        let more = HEADS - 4000;
        for member in ["v0".to_owned(), tag(1), tag(2), tag(3)] {
            crowd.run(&["ZINCRBY", FLOWS, &more.to_string(), &member]);
        }
        for head in [0, 4, 9] {
            let token = crowd.waiters[head].clone();
            crowd.run(&["ZINCRBY", QUEUE, &more.to_string(), &token.text()]);
        }
        // The first one lowers the tags, the second one is before others.
        for suffix in ["/4/1/7.1..", "/1/1/8.10.."].iter().filter(|_| what == 1) {
            crowd.comes(suffix).await;
        }
        if what == 2 {
            let heavy = crowd.pair.token("/1/1/9.1..");
            crowd.pair.acquire(&heavy, 0).await;
            crowd.comes("/4/1/9.1..").await;
            crowd
                .pair
                .call(&heavy, Verb::Release { withdraws: false }, 0)
                .await;
        }
        for flow in 16..22 {
            crowd.next().await;
            crowd.comes(&format!("/1/1/{flow:x}.10..")).await;
        }
        assert!(
            crowd.score(FLOWS, "v0") < Some(HEADS - 100_000),
            "they were not lowered"
        );
        crowd.all(crowd.waiters.len() - 2 - 6).await;
    }
}

/// The last number is used: all flows get new numbers, and keep their lines.
#[tokio::test]
async fn numbers_begin_again() {
    let mut crowd = Crowd::new(&[1, 1, 2, 2, 3]).await;
    let end = (1_i64 << 52) + (1 << 22);
    crowd.run(&["ZADD", FLOWS, &(end - 1).to_string(), "N0"]);
    crowd.wait(&[4, 4]).await;
    assert_eq!(crowd.place(6), Some(LINES + (((1 << 22) - 1) << 26)));
    crowd.wait(&[5, 5]).await;
    for (waiter, number) in [(1, 0), (3, 1), (6, 3), (8, 4)] {
        let place = Some(LINES + (number << 26));
        assert_eq!(crowd.place(waiter), place, "{waiter}");
    }
    assert_eq!(crowd.all(9).await.len(), 9);
}

/// The tags of thousands of flows are restored at once.
#[tokio::test]
async fn the_tags_of_thousands_of_flows_come_back() {
    let mut crowd = Crowd::new(&[1]).await;
    let first = crowd.waiters[0].clone();
    let flows: Vec<i64> = (16..2116).collect();
    let beat = crowd.score(BEATS, &first.text()).unwrap();
    for (key, score, more) in [(QUEUE, HEADS, 2), (BEATS, beat, 0)] {
        let more = flows.iter().flat_map(|flow| {
            let score = score + more * flow;
            [
                score.to_string(),
                format!("bbbbbbbbbbbbbbbb-{flow:x}.1c9c380/1/1/{flow:x}.1.."),
            ]
        });
        let command: Vec<_> = ["ZADD", key]
            .map(str::to_owned)
            .into_iter()
            .chain(more)
            .collect();
        crowd.run(&command.iter().map(String::as_str).collect::<Vec<_>>());
    }
    crowd.run(&["DEL", FLOWS]);
    // The step in Rust does not know these waiters.
    let release = Step::Calls(
        AcquireTerms::usual(SECOND),
        vec![(first, Verb::Release { withdraws: false })],
    );
    crowd.pair.lua.take(Permits::key(0), release, 0).await;
    for flow in flows {
        assert_eq!(crowd.score(FLOWS, &tag(flow)), Some(2 * flow));
    }
}
