//! Calls with many items.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::hash::Probe;
use super::layout::{Layout, Mismatch};
use super::operations::{Answers, Probes};
use super::{BloomFilter, shard_key};
use crate::Error;
use crate::store::{Client, Operation};

/// How many calls of a batch run at a time.
const UNDER_WAY: usize = 4;

/// Returns the first place of each item. Calls that run at the same time can overtake each other, so an item that
/// occurs twice is sent only once.
pub(super) fn first_places(probes: &[Probe]) -> Vec<usize> {
    let mut known = HashSet::with_capacity(probes.len());
    (0..probes.len()).filter(|&place| known.insert(probes[place].hash())).collect()
}

impl BloomFilter {
    /// Runs an operation for the items at these places. The items of a key go in one call, up to `most_items`. The
    /// answers are in the order of all items, with `false` at the other places.
    pub(super) async fn ask_all<O>(
        &self,
        port: &Client<O>,
        ask: fn(Arc<Layout>, Probes) -> O,
        probes: &[Probe],
        mut places: Vec<usize>,
    ) -> Result<Vec<bool>, Error>
    where
        O: Operation<Reply = Result<Answers, Mismatch>>,
    {
        places.sort_by_key(|&place| probes[place].shard);
        let mut answers = vec![false; probes.len()];
        let mut under_way = VecDeque::new();
        let mut rest = &places[..];
        loop {
            while let (true, Some(&first)) = (under_way.len() < UNDER_WAY, rest.first()) {
                let shard = probes[first].shard;
                let alike = rest.iter().take_while(|&&place| probes[place].shard == shard);
                let (call, later) = rest.split_at(alike.take(self.layout().most_items()).count());
                let items = call.iter().map(|&place| probes[place]).collect();
                under_way.push_back((call, port.run(shard_key(shard), ask(self.layout().clone(), items))));
                rest = later;
            }
            let Some((call, running)) = under_way.pop_front() else { return Ok(answers) };
            for (&place, answer) in call.iter().zip(self.checked(running.await?)?) {
                answers[place] = answer;
            }
        }
    }
}
