//! How operations become calls, and how their replies become results.

mod calls;
pub(super) mod mutants;
mod plans;
mod queues;
#[cfg(all(feature = "cluster", feature = "pools"))]
mod sources;
mod stores;

use std::sync::Arc;

use super::batch::{Item, Phase};
use super::queue::RedisClient;
use crate::store::Store;
use crate::store::builder::StoreBuilder;
use crate::store::client::{Client, Namespace};
use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Rights, Script,
};

/// An operation whose reply is the sum of its fields, and its place in its run.
#[derive(Clone, Debug)]
struct Ask<const IN_ORDER: bool = false, const ONE_KEY: bool = false> {
    group: Option<u128>,
    rank: u8,
    size: usize,
    payload: usize,
    reserved: bool,
    /// `None`: no argument.
    word: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct Nothing;

impl Cell for Nothing {
    fn is_idle(&self, _: i64) -> bool {
        true
    }
}

const SHARED: &str = "shared";

impl<const IN_ORDER: bool, const ONE_KEY: bool> Operation for Ask<IN_ORDER, ONE_KEY> {
    type Cell = Nothing;
    type Reply = (i64, usize);
    type Undo = Self;
    const SCRIPT: Script = Script {
        words: &[],
        pieces: &[],
        rights: Rights::Writes,
    };
    const PARTS: &'static [&'static str] = &["x"];
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = 4;
    const MOST_REPEATS: usize = 3;
    const IN_ORDER: bool = IN_ORDER;
    const ONE_KEY: bool = ONE_KEY;

    fn is_reserved(&self) -> bool {
        self.reserved
    }

    fn payload(&self) -> usize {
        self.payload
    }

    fn group(&self) -> Option<u128> {
        self.group
    }

    fn size(&self) -> usize {
        self.size
    }

    fn rank(&self) -> (u8, u128) {
        (self.rank, 0)
    }

    /// An equal one, or one with the next word.
    fn repeats(&self, next: &Self) -> bool {
        self.word == next.word || self.word.map(|word| word + 1) == next.word
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        call.word(SHARED);
        call.integer(self.group.map_or(-1, |group| group as i64));
    }

    fn own(&self, count: usize, call: &mut Arguments<'_>) {
        if let Some(word) = self.word {
            call.integer(word);
            call.integer(count as i64);
        }
    }

    fn decode(self, nth: usize, _: i64, mut fields: Fields<'_>) -> Result<(i64, usize), Garbled> {
        let mut sum = 0;
        while fields.len() > 0 {
            sum += fields.integer()?;
        }
        Ok((sum, nth))
    }

    fn apply(self, _: &mut Nothing, _: i64) -> (i64, usize) {
        (0, 0)
    }
}

fn ask<const IN_ORDER: bool, const ONE_KEY: bool>(word: i64) -> Ask<IN_ORDER, ONE_KEY> {
    Ask {
        group: Some(0),
        rank: 0,
        size: 1,
        payload: 0,
        reserved: false,
        word: Some(word),
    }
}

/// A client of a server that does not exist.
fn client<O: Operation<Cell = Nothing>>(builder: StoreBuilder) -> Arc<RedisClient<O>> {
    match Namespace::<Nothing>::open(&builder.redis("redis://127.0.0.1:1").unwrap(), "n").client() {
        Client::Redis(client) => client,
        Client::InMemory(_) => unreachable!(),
    }
}

fn waiting<O: Operation>(key: &str, operation: O) -> Item<O> {
    let phase = Phase::Waiting(None);
    Item {
        operation: Some(operation),
        key: key.into(),
        slot: None,
        owed: false,
        weight: 0,
        reserved: false,
        phase,
    }
}
