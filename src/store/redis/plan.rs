//! How operations that leave together are laid out as script calls.

use std::ops::Range;

use deadpool_redis::redis::Cmd;

use super::Loaded;
use super::queue::Pending;
use crate::store::key::RedisKey;
use crate::store::namespace::Namespace;
use crate::store::operation::{Argument, Arguments, Operation};

/// One script call: the runs in the order of its keys.
pub(super) struct Call {
    pub(super) command: Cmd,
    /// On a Cluster.
    pub(super) slot: Option<u16>,
    /// The beginning of its first key.
    pub(super) key: RedisKey,
    pub(super) runs: Vec<Run>,
}

/// Equal operations that stand side by side.
pub(super) struct Run {
    pub(super) at: Range<usize>,
    /// How many runs it is as good as.
    pub(super) size: usize,
}

/// Sorts the operations, those of one key staying in their order, and divides them into calls. The ranges
/// of all runs, one call after the other, follow each other without a gap.
pub(super) fn plan<O: Operation>(
    script: &Loaded,
    namespace: &Namespace<O::Cell>,
    pending: &mut [Pending<O>],
) -> Vec<Call> {
    if pending.len() > 1 {
        pending.sort_by(|a, b| a.place().cmp(&b.place()));
    }
    let mut calls = Vec::new();
    let mut start = 0;
    while start < pending.len() {
        let runs = runs(pending, start);
        start = runs.last().map_or(pending.len(), |last| last.at.end);
        let first = &pending[runs.first().map_or(0, |run| run.at.start)];
        let (slot, key) = (first.slot, namespace.redis_key(&first.key));
        calls.push(Call { command: command(script, namespace, pending, &runs), slot, key, runs });
    }
    calls
}

/// The runs of the call that begins with the operation at `start`: at least one.
fn runs<O: Operation>(pending: &[Pending<O>], start: usize) -> Vec<Run> {
    let first = &pending[start];
    let mut room = first.operation.most_runs();
    let mut runs: Vec<Run> = Vec::new();
    for (at, item) in pending.iter().enumerate().skip(start) {
        let together = item.slot == first.slot
            && item.operation.group() == first.operation.group()
            && (!O::ONE_KEY || item.key == first.key);
        if !together {
            break;
        }
        let size = item.operation.size();
        match runs.last_mut() {
            Some(run) if run.at.len() < O::MOST_REPEATS && pending[run.at.start].is_repeated_by(item) => {
                run.at.end = at + 1;
            }
            Some(_) if size > room => break,
            _ => {
                room = room.saturating_sub(size);
                runs.push(Run { at: at..at + 1, size });
            }
        }
    }
    runs
}

fn command<O: Operation>(
    script: &Loaded,
    namespace: &Namespace<O::Cell>,
    pending: &[Pending<O>],
    runs: &[Run],
) -> Cmd {
    let named = if O::ONE_KEY { &runs[..1] } else { runs };
    let mut command = script.call(named.len() * O::PARTS.len());
    for run in named {
        namespace.redis_keys(&pending[run.at.start].key, O::PARTS, |key| {
            command.arg(key);
        });
    }
    let mut shared = Vec::new();
    let mut own = Vec::new();
    for (position, run) in runs.iter().enumerate() {
        let operation = &pending[run.at.start].operation;
        if position == 0 {
            operation.shared(&mut Arguments::new(&mut shared));
        }
        operation.own(run.at.len(), &mut Arguments::new(&mut own));
    }
    let each = own.len() / runs.len().max(1);
    if O::SAME_ONCE && each > 0 && own.chunks_exact(each).all(|chunk| chunk == &own[..each]) {
        own.truncate(each);
    }
    for argument in shared.iter().chain(&own) {
        match argument {
            Argument::Integer(integer) => command.arg(integer),
            Argument::Word(word) => command.arg(word),
            Argument::Text(text) => command.arg(&**text),
            Argument::Bytes(bytes) => command.arg(&**bytes),
        };
    }
    command
}
