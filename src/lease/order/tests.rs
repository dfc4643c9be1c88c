//! How often each waiter is served, whichever waiters arrive, wait and leave.

#![allow(clippy::unwrap_used)]

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::lease::queue::Queue;

const LATER: i64 = 1_000_000;

/// The rank and the order of a waiter of a flow.
fn order(flow: Flow) -> (i64, Option<Order>) {
    (
        0,
        Some(Order {
            flow: Some(flow),
            ..Order::ARRIVAL
        }),
    )
}

/// A queue of one rank. All shares are [`COST`], so that the weight of a waiter is its cost.
#[derive(Default)]
struct Line {
    queue: Queue,
    next: u64,
    orders: HashMap<Token, Flow>,
}

impl Line {
    fn comes(&mut self, number: i64, cost: i64) -> Token {
        let token = Token::from(self.next.to_string());
        self.next += 1;
        let flow = Flow {
            name: number as u128,
            weight: cost,
            share: COST,
        };
        self.orders.insert(token.clone(), flow);
        self.queue.line_up(token.clone(), order(flow), LATER, 0);
        token
    }

    fn leaves(&mut self, token: &Token) {
        self.orders.remove(token);
        self.queue.leave(token);
    }

    fn serves(&mut self) -> Option<(Token, Flow)> {
        let token = self.queue.first(0)?;
        self.queue.serve(&token, 1, 0);
        let flow = self.orders.remove(&token).unwrap();
        Some((token, flow))
    }

    fn waiters(&self, number: i64) -> usize {
        self.orders
            .values()
            .filter(|flow| flow.name == number as u128)
            .count()
    }
}

/// The remaining cost of a heavy waiter's flow is not before the turns that have begun meanwhile.
#[test]
fn who_follows_one_that_goes_away_comes_before_nobody_whose_turn_it_is() {
    let mut line = Line::default();
    [0, 2, 0, 2, 0, 2]
        .into_iter()
        .for_each(|number| drop(line.comes(number, COST)));
    let (heavy, _light) = (line.comes(1, 256 * COST), line.comes(1, COST));
    let mut served = || line.serves().unwrap().1.name;
    assert_eq!([served(), served(), served()], [0, 2, 0]);
    line.leaves(&heavy);
    assert_eq!(line.queue.tag_ahead(0, 1), 1);
    let mut served = || line.serves().unwrap().1.name;
    assert_eq!([served(), served(), served(), served()], [2, 1, 0, 2]);
}

#[test]
fn who_goes_away_from_behind_changes_no_turn() {
    let turns = |behind: Option<i64>| {
        let mut line = Line::default();
        (0..5).for_each(|_| drop(line.comes(0, COST)));
        line.serves();
        line.comes(1, 2 * COST);
        line.comes(2, COST);
        let behind = behind.map(|cost| line.comes(1, cost));
        behind.iter().for_each(|behind| line.leaves(behind));
        std::iter::from_fn(|| Some(line.serves()?.1.name)).collect::<Vec<_>>()
    };
    assert_eq!(
        [None, Some(1), Some(256 * COST)].map(turns),
        [(); 3].map(|()| vec![2, 0, 1, 0, 0, 0])
    );
}

/// Returns how many of 3000 turns one flow gets beside new flows with a heavy waiter each. `light`: the cost of a
/// waiter that arrives before it, and leaves.
fn turns_beside_new_flows(light: Option<i64>) -> usize {
    let (mut line, mut turns) = (Line::default(), 0);
    (0..3).for_each(|_| drop(line.comes(0, COST)));
    for number in 1..=3000 {
        let light = light.map(|cost| line.comes(number, cost));
        line.comes(number, 256 * COST);
        light.iter().for_each(|light| line.leaves(light));
        if line.serves().unwrap().1.name == 0 {
            line.comes(0, COST);
            turns += 1;
        }
    }
    turns
}

/// Light waiters that leave do not pay for heavy ones behind them.
#[test]
fn new_flows_gain_nothing_by_who_goes_away() {
    let turns = turns_beside_new_flows(None);
    assert_eq!(
        [1, COST].map(|light| turns_beside_new_flows(Some(light))),
        [turns; 2]
    );
}

/// A waiter that leaves after a heavy one was served does not refund its cost.
#[test]
fn what_was_served_is_owed_whoever_goes_away() {
    for weight in [2, 8, 256] {
        let (mut line, mut served) = (Line::default(), [0_i64, 0]);
        (0..3).for_each(|_| drop(line.comes(0, COST)));
        for round in 0..20_000 {
            if line.waiters(1) == 0 {
                let cost = if round % 2 == 0 { weight * COST } else { COST };
                line.comes(1, cost);
            }
            let (_, flow) = line.serves().unwrap();
            served[flow.name as usize] += flow.weight;
            if flow.name == 0 {
                line.comes(0, COST);
            } else {
                let again = line.comes(1, flow.weight);
                line.leaves(&again);
            }
        }
        let ratio = served[1] as f64 / served[0] as f64;
        assert!(ratio < 1.1, "{weight}: {served:?}");
    }
}

#[test]
fn flows_that_only_came_are_forgotten() {
    let mut line = Line::default();
    line.comes(0, COST);
    for number in 1..1000 {
        let tokens = [2 * COST, COST].map(|cost| line.comes(number, cost));
        tokens.iter().for_each(|token| line.leaves(token));
    }
    assert_eq!(line.queue.known_flows(), 1);
    // Each is served once while the first flow always waits, and leaves.
    for number in 1..1000 {
        let (first, second) = (line.comes(number, 2 * COST), line.comes(number, COST));
        line.comes(0, COST);
        while line.orders.contains_key(&first) {
            line.serves();
            line.comes(0, COST);
        }
        line.leaves(&second);
    }
    assert!(
        line.queue.known_flows() < 10,
        "{}",
        line.queue.known_flows()
    );
}

/// While a waiter is the first of its flow, each other flow passes it at most twice, if all cost the same: the second
/// time only if both have the same tag.
#[test]
fn each_flow_passes_a_waiter_twice_at_most() {
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..3000 {
        let mut line = Line::default();
        let mut tokens: [Vec<Token>; 4] = Default::default();
        let mut passed: HashMap<(Token, u128), u32> = HashMap::new();
        for _ in 0..60 {
            let number = rng.random_range(0..4);
            match rng.random_range(0..5) {
                0 | 1 => tokens[number].push(line.comes(number as i64, COST)),
                2 if !tokens[number].is_empty() => {
                    let at = rng.random_range(0..tokens[number].len());
                    line.leaves(&tokens[number].remove(at));
                }
                _ => {
                    let Some((token, flow)) = line.serves() else {
                        continue;
                    };
                    assert_eq!(tokens[flow.name as usize].remove(0), token, "SEED={seed}");
                    for (other, waiting) in tokens.iter().enumerate() {
                        let Some(first) = waiting.first().filter(|_| other as u128 != flow.name)
                        else {
                            continue;
                        };
                        let times = passed.entry((first.clone(), flow.name)).or_default();
                        *times += 1;
                        assert!(
                            *times <= 2,
                            "SEED={seed}: {first} of {other} by {}",
                            flow.name
                        );
                    }
                }
            }
        }
    }
}

/// The waiters without a flow get half of the turns at most, however many other flows there are, and these get the
/// other half.
#[test]
fn who_has_no_flow_gets_half_of_the_turns() {
    for flows in [1, 2, 7, 30] {
        let (mut line, mut turns) = (Line::default(), [0, 0]);
        let plain = |line: &mut Line| {
            let token = Token::from(format!("plain {}", line.next));
            line.next += 1;
            line.queue
                .line_up(token, (0, Some(Order::ARRIVAL)), LATER, 0);
        };
        for number in 0..flows {
            (0..2).for_each(|_| drop(line.comes(number, COST)));
        }
        (0..2).for_each(|_| plain(&mut line));
        for _ in 0..3000 {
            let token = line.queue.first(0).unwrap();
            line.queue.serve(&token, 1, 0);
            match line.orders.remove(&token) {
                Some(flow) => {
                    line.comes(flow.name as i64, COST);
                    turns[0] += 1;
                }
                None => {
                    plain(&mut line);
                    turns[1] += 1;
                }
            }
        }
        assert!(
            turns.iter().all(|turns| (1450..=1550).contains(turns)),
            "{flows}: {turns:?}"
        );
    }
}

/// The share of a flow is that of its newest waiter, also for the waiters before it.
#[test]
fn a_share_that_is_changed_counts_at_once() {
    let turns = |last: i64| {
        let (mut queue, mut turns) = (Queue::default(), 0);
        let mut comes = |id: i64, name, share| {
            let order = order(Flow {
                name,
                share,
                weight: 1,
            });
            queue.line_up(Token::from(id.to_string()), order, LATER, 0);
        };
        for id in 100..200 {
            comes(id, 1, 1);
            comes(id + 100, 2, 1);
        }
        comes(300, 1, last);
        for _ in 0..60 {
            let token = queue.first(0).unwrap();
            turns += usize::from(token.to_string().starts_with('1'));
            queue.serve(&token, 1, 0);
        }
        turns
    };
    assert_eq!([1, 2, 5].map(turns), [30, 40, 50]);
}
