//! Calls with many items.

use std::collections::{HashSet, VecDeque};

use super::hash::Probe;
use super::operations::{OnShard, Step};
use super::{BloomFilter, shard_key};
use crate::Error;
use crate::store::Client;

/// How many calls of a batch run at a time.
const UNDER_WAY: usize = 4;

/// Returns the first place of each item. Calls that run at the same time can overtake each other, so an item that
/// occurs twice is sent only once.
pub(super) fn first_places(probes: &[Probe]) -> Vec<usize> {
    let mut known = HashSet::with_capacity(probes.len());
    (0..probes.len())
        .filter(|&place| known.insert(probes[place].hash()))
        .collect()
}

impl BloomFilter {
    /// Runs a step for the items at these places. The items of a key go in one call, up to `most_items`. Returns
    /// whether each item was contained, in the order of all items, with `true` at the other places.
    pub(super) async fn ask_all<S: Step>(
        &self,
        client: &Client<OnShard<S>>,
        probes: &[Probe],
        mut places: Vec<usize>,
    ) -> Result<Vec<bool>, Error> {
        self.open().await?;
        places.sort_by_key(|&place| probes[place].shard);
        let mut seen = vec![true; probes.len()];
        let mut under_way = VecDeque::new();
        let mut rest = &places[..];
        loop {
            while let (true, Some(&first)) = (under_way.len() < UNDER_WAY, rest.first()) {
                let shard = probes[first].shard;
                let alike = rest
                    .iter()
                    .take_while(|&&place| probes[place].shard == shard);
                let (call, later) = rest.split_at(alike.take(self.layout().most_items()).count());
                let items = call.iter().map(|&place| probes[place]).collect();
                under_way.push_back((call, client.run(shard_key(shard), self.on_shard(items))));
                rest = later;
            }
            let Some((call, running)) = under_way.pop_front() else {
                return Ok(seen);
            };
            for (&place, answer) in call.iter().zip(self.checked(running.await?)?) {
                seen[place] = answer == 1;
            }
        }
    }
}
