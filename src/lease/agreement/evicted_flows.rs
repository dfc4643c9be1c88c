//! Flows whose tags were evicted alone, or whose first waiters were written by a version that gives these no scores of their
//! own. The order is that of the step, which loses nothing.

use std::sync::Arc;

use super::busy::{Pair, SECOND};
use super::{Step, Tried as _};
use crate::lease::key_state::{Terms, Was};
use crate::lease::operations::{Verb, What};
use crate::lease::token::Token;
use crate::wait_group::holders::Permits;

const QUEUE: &str = "td:{agreement:sequence 0}:permits:waiters";
const FLOWS: &str = "td:{agreement:sequence 0}:permits:flows";
const HEADS: i64 = 1 << 47;
const LINES: i64 = 1 << 48;

/// The only permit is held, and two flows wait: of each the first one, and some behind it.
struct Crowd {
    pair: Pair<Permits>,
    held: Arc<str>,
    waiters: Vec<Arc<str>>,
}

impl Crowd {
    async fn new(flows: &[i64]) -> Self {
        let mut pair = Pair::new(30 * SECOND, false).await;
        let held = pair.token("/1/1/9.400.");
        pair.holds(&held, 0).await;
        let mut crowd = Self { pair, held, waiters: Vec::new() };
        crowd.wait(flows).await;
        crowd
    }

    async fn wait(&mut self, flows: &[i64]) {
        for flow in flows {
            let token = self.pair.token(&format!("/1/1/{flow}.400."));
            assert!(self.pair.acquire(&token, 0).await.contains("Queued"));
            self.waiters.push(token);
        }
    }

    fn run(&mut self, command: &[&str]) {
        self.pair.time.server.query::<()>(redis::cmd(command[0]).arg(&command[1..])).unwrap();
    }

    /// Moves the first waiter of a flow to the front of its line, where older versions have it.
    fn lose_head(&mut self, flow: i64, token: &Arc<str>) {
        let score = LINES + (flow << 26);
        self.run(&["ZADD", QUEUE, &score.to_string(), token]);
    }

    /// Releases, and returns the position of the waiter that holds then.
    async fn next(&mut self) -> usize {
        self.pair.release(&self.held.clone(), 0).await;
        let told = self.pair.told();
        let id = |token: &str| format!("ids: [{}]", Token::parse(token).unwrap().id);
        let next = self.waiters.iter().position(|token| told[0].contains(&id(token))).unwrap();
        self.held = Arc::clone(&self.waiters[next]);
        next
    }

    async fn all(&mut self, count: usize) -> Vec<usize> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.next().await);
        }
        all
    }

    fn score(&mut self, key: &str, member: &str) -> Option<i64> {
        let score = self.pair.time.server.query::<Option<f64>>(redis::cmd("ZSCORE").arg(key).arg(member));
        score.unwrap().map(|score| score as i64)
    }
}

/// Who leads a flow keeps its turn, and the tags come back with the next grant.
#[tokio::test]
async fn turns_outlive_their_tags() {
    let mut crowd = Crowd::new(&[1, 1, 1, 2, 2]).await;
    assert_eq!(crowd.next().await, 0);
    crowd.run(&["DEL", FLOWS]);
    assert_eq!(crowd.all(4).await, [3, 1, 4, 2]);
}

/// Also if a first waiter goes away.
#[tokio::test]
async fn tags_come_back_where_a_waiter_goes_away() {
    for leaves in [0, 3] {
        let mut crowd = Crowd::new(&[1, 1, 1, 2]).await;
        crowd.run(&["DEL", FLOWS]);
        let waiter = Arc::clone(&crowd.waiters[leaves]);
        let answer = crowd.pair.call(&waiter, Verb::Release { withdraws: false }, 0).await;
        assert!(answer.contains(&format!("{:?}", What::Released(Was::Waiting))), "{answer}");
        // The one behind it has its turn, which is before that of the other flow by their tokens.
        assert_eq!(crowd.all(3).await, if leaves == 0 { [1, 3, 2] } else { [0, 1, 2] });
    }
}

/// A heartbeat brings back the tags themselves.
#[tokio::test]
async fn heartbeats_bring_back_tags() {
    let mut crowd = Crowd::new(&[1, 1, 2]).await;
    let lines = [1, 2].map(|flow| ((LINES >> 26) + flow).to_string());
    let tags = lines.each_ref().map(|line| crowd.score(FLOWS, line));
    assert!(tags.iter().all(Option::is_some));
    crowd.run(&["DEL", FLOWS]);
    let waiters = crowd.waiters.clone();
    crowd.pair.take(Step::Heartbeat(waiters)).await;
    assert_eq!(lines.each_ref().map(|line| crowd.score(FLOWS, line)), tags);
    assert_eq!(crowd.all(3).await.len(), 3);
}

/// A flow that comes while the tags are gone is not before all others; nor where a heartbeat has brought them back, or who
/// went away.
#[tokio::test]
async fn new_flows_come_after_those_whose_tags_are_gone() {
    for between in 0..3 {
        let mut crowd = Crowd::new(&[1, 1, 1, 1, 1, 1, 2, 2, 2]).await;
        crowd.all(4).await;
        crowd.wait(&[4, 4]).await;
        crowd.run(&["DEL", FLOWS]);
        let waiters = crowd.waiters.clone();
        match between {
            0 => {}
            1 => drop(crowd.pair.take(Step::Heartbeat(waiters[4..].to_vec())).await),
            _ => drop(crowd.pair.call(&waiters[9], Verb::Release { withdraws: false }, 0).await),
        }
        let token: Arc<str> = "bbbbbbbbbbbbbbbb-77.1c9c380/1/1/3.400.".into();
        crowd.pair.acquire(&token, 0).await;
        let first = waiters.iter().filter_map(|token| crowd.score(QUEUE, token)).min();
        let mine = crowd.score(QUEUE, &token);
        assert!(first.is_some() && mine > first && mine < Some(LINES), "{between}: {mine:?}, {first:?}");
    }
}

/// A flow whose first waiter kept its turn has no second one.
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
        assert_eq!(crowd.all(9 - usize::from(serves)).await, expected[usize::from(serves)..]);
    }
}

/// All first waiters are where older versions have them.
#[tokio::test]
async fn waiters_of_older_versions_are_served_in_turn() {
    let mut crowd = Crowd::new(&[1, 1, 2, 2]).await;
    for (flow, at) in [(1, 0), (2, 2)] {
        let token = Arc::clone(&crowd.waiters[at]);
        crowd.lose_head(flow, &token);
    }
    let mut served = crowd.all(4).await;
    assert!(served[0] % 2 == 0 && served[1] % 2 == 0, "{served:?}");
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2, 3]);
}

/// One of them is, beside a flow that is served all the time; also if its tag is gone.
#[tokio::test]
async fn a_heartbeat_finds_the_first_waiter_of_a_flow() {
    for evicts in [false, true] {
        let mut crowd = Crowd::new(&[1, 1, 1, 2]).await;
        let lost = Arc::clone(&crowd.waiters[3]);
        crowd.lose_head(2, &lost);
        assert!(crowd.score(QUEUE, &lost) >= Some(LINES));
        if evicts {
            crowd.run(&["DEL", FLOWS]);
        }
        crowd.pair.take(Step::Heartbeat(vec![Arc::clone(&lost)])).await;
        crowd.pair.release(&crowd.held.clone(), 0).await;
        crowd.pair.take(Step::Heartbeat(vec![Arc::clone(&lost)])).await;
        let score = crowd.score(QUEUE, &lost);
        assert!(score >= Some(HEADS) && score < Some(LINES), "{evicts}: {score:?}");
    }
}

/// One of them is, and nobody waits for long enough to send a heartbeat.
#[tokio::test]
async fn grants_find_the_first_waiter_of_a_flow() {
    let mut flows = [1; 100];
    flows[0] = 2;
    let mut crowd = Crowd::new(&flows).await;
    let lost = Arc::clone(&crowd.waiters[0]);
    crowd.lose_head(2, &lost);
    let mut held = Arc::clone(&crowd.held);
    for next in crowd.waiters.clone().into_iter().skip(1).take(90) {
        let release = (std::mem::replace(&mut held, next), Verb::Release { withdraws: false });
        let release = Step::Calls(Terms::usual(SECOND), vec![release]);
        // The step, which loses nothing, would go another way.
        crowd.pair.lua.take(Permits::key(0), release, 0).await;
        if crowd.score(QUEUE, &lost) < Some(LINES) {
            return;
        }
    }
    panic!("the flow never has its turn");
}
