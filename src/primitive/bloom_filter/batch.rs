//! Many items at once.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::hash::Probe;
use super::layout::{Layout, Mismatch};
use super::operations::{Answers, Probes};
use super::{BloomFilter, shard_key};
use crate::Error;
use crate::store::{Operation, Port};

/// How many calls of a batch are on their way at a time.
const UNDER_WAY: usize = 4;

/// The first places of all items. Calls that are on their way together may overtake each other, so an item that
/// stands twice is asked for once.
pub(super) fn first_places(probes: &[Probe]) -> Vec<usize> {
    let mut known = HashSet::with_capacity(probes.len());
    (0..probes.len()).filter(|&place| known.insert(probes[place].hash())).collect()
}

impl BloomFilter {
    /// Asks for the items at these places, those of a key together. The answers are in the order of the items, `false` at
    /// other places.
    pub(super) async fn ask_all<O>(
        &self,
        port: &Port<O>,
        ask: fn(Arc<Layout>, Probes) -> O,
        probes: &[Probe],
        mut places: Vec<usize>,
    ) -> Result<Vec<bool>, Error>
    where
        O: Operation<Reply = Result<Answers, Mismatch>>,
    {
        places.sort_by_key(|&place| probes[place].shard);
        let calls = places
            .chunk_by(|&a, &b| probes[a].shard == probes[b].shard)
            .flat_map(|places| places.chunks(self.layout().most_items()));
        let mut calls = stream::iter(calls)
            .map(|places| {
                let shard = places.first().map_or(0, |&place| probes[place].shard);
                let items = places.iter().map(|&place| probes[place]).collect();
                let running = port.run(shard_key(shard), ask(self.layout().clone(), items));
                async move { Ok::<_, Error>((places, running.await?)) }
            })
            .buffered(UNDER_WAY);
        let mut answers = vec![false; probes.len()];
        while let Some((places, reply)) = calls.try_next().await? {
            for (&place, answer) in places.iter().zip(self.checked(reply)?) {
                answers[place] = answer;
            }
        }
        Ok(answers)
    }
}
