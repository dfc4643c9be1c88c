//! The script calls for the operations of a batch: which operations are sent in one call, and the command of each call.

use std::collections::HashMap;

use redis::Cmd;
use smallvec::SmallVec;

use crate::store::operation::{Argument, Arguments, Operation, packed};
use crate::store::redis::batch::{Call, Item, Run, Runs};
use crate::store::redis::library::Loaded;
use crate::store::redis::names::KeySpace;
use crate::store::redis::slots;

/// The maximum payload of a call in bytes, unless it has only one operation.
const MOST_PAYLOAD: usize = 64 << 10;

/// The calls for some operations, and the order of the operations in them. Operations of one group and key keep their
/// order. The ranges of all runs, one call after the other, are contiguous.
pub(super) struct Plan {
    pub(super) calls: SmallVec<[Call; 1]>,
    pub(super) order: SmallVec<[usize; 1]>,
}

impl Plan {
    /// Plans the calls for the operations that still must be sent.
    pub(super) fn new<O: Operation>(script: &Loaded, space: &KeySpace, items: &[Item<O>]) -> Self {
        let mut order: SmallVec<[usize; 1]> = (0..items.len())
            .filter(|at| items[*at].is_wanted() && items[*at].operation.is_some())
            .collect();
        let groups = if order.len() > 1 {
            groups(items)
        } else {
            Vec::new()
        };
        if order.len() > 1 {
            // Sorts operations that can be sent in one call next to each other.
            order.sort_by_key(|at| {
                let item = &items[*at];
                let rank = item.operation.as_ref().map(O::rank);
                (item.slot, groups[*at], item.key.as_bytes(), rank)
            });
        }
        let pending = Pending {
            items,
            order: &order,
            groups: &groups,
        };
        let mut calls = SmallVec::new();
        let mut start = 0;
        while start < order.len() {
            let slot = items[order[start]].slot;
            let runs = pending.runs(start);
            start = runs.last().map_or(order.len(), |last| last.at.end);
            let command = pending.command(script, space, &runs);
            calls.push(Call {
                command,
                slot,
                runs,
                repeat: O::REPEAT,
            });
        }
        Self { calls, order }
    }
}

/// Returns the group in which each operation is sent, by number: groups are sent in the order in which their first
/// operations were submitted. Operations without a group join the first group that is sent to their slot. So a release
/// is sent before later acquires of its key.
fn groups<O: Operation>(items: &[Item<O>]) -> Vec<usize> {
    let own = |item: &Item<O>| {
        item.operation
            .as_ref()
            .filter(|_| item.is_wanted())
            .and_then(O::group)
    };
    let mut numbers = HashMap::new();
    let mut last = None;
    let mut groups: Vec<Option<usize>> = Vec::with_capacity(items.len());
    for item in items {
        let group = own(item);
        // Usually all operations have the same group.
        if last.is_none_or(|(known, _)| known != group) {
            let next = numbers.len();
            last = Some((
                group,
                group.map(|group| *numbers.entry(group).or_insert(next)),
            ));
        }
        groups.push(last.and_then(|(_, number)| number));
    }
    let mut first = HashMap::new();
    if groups.contains(&None) {
        for (item, group) in items.iter().zip(&groups) {
            if let Some(group) = *group {
                let least: &mut usize = first.entry(item.slot).or_insert(group);
                *least = group.min(*least);
            }
        }
    }
    let joined = |item: &Item<O>| first.get(&item.slot).copied().unwrap_or(0);
    items
        .iter()
        .zip(groups)
        .map(|(item, group)| group.unwrap_or_else(|| joined(item)))
        .collect()
}

/// Operations in the order of a plan, and the group of each item if there are several.
struct Pending<'a, O: Operation> {
    items: &'a [Item<O>],
    order: &'a [usize],
    groups: &'a [usize],
}

impl<O: Operation> Pending<'_, O> {
    fn item(&self, position: usize) -> &Item<O> {
        &self.items[self.order[position]]
    }

    /// Returns the runs of the call that begins with the operation at `start`, at least one.
    fn runs(&self, start: usize) -> Runs {
        let first = self.item(start);
        let mut room = 0;
        let mut bytes = 0;
        let mut runs = Runs::new();
        for at in start..self.order.len() {
            let item = self.item(at);
            let Some(operation) = &item.operation else {
                break;
            };
            let together =
                at == start || self.groups[self.order[at]] == self.groups[self.order[start]];
            if item.slot != first.slot || !together || (O::ONE_KEY && item.key != first.key) {
                break;
            }
            let repeats = |run: &Run| {
                let last = self.item(run.at.end - 1);
                last.key == item.key
                    && last
                        .operation
                        .as_ref()
                        .is_some_and(|last| last.repeats(operation))
            };
            let size = operation.size();
            match runs.last_mut() {
                Some(run) if run.at.len() < O::MOST_REPEATS && repeats(run) => run.at.end = at + 1,
                Some(_) if size > room || bytes + operation.payload() > MOST_PAYLOAD => break,
                last => {
                    if last.is_none() {
                        room = operation.most_runs();
                    }
                    room = room.saturating_sub(size);
                    bytes += operation.payload();
                    runs.push(Run {
                        at: at..at + 1,
                        size,
                    });
                }
            }
        }
        runs
    }

    fn command(&self, script: &Loaded, space: &KeySpace, runs: &[Run]) -> Cmd {
        let named = if O::ONE_KEY { &runs[..1] } else { runs };
        let slot = runs.first().and_then(|run| self.item(run.at.start).slot);
        let mut arguments = Vec::with_capacity(8 + 8 * runs.len());
        let operation = |at: usize| self.item(at).operation.as_ref();
        let operations = runs
            .iter()
            .filter_map(|run| Some((operation(run.at.start)?, run)));
        let mut of_groups = operations
            .clone()
            .filter(|(operation, _)| operation.group().is_some());
        if let Some((operation, _)) = of_groups.next().or_else(|| operations.clone().next()) {
            operation.shared(&mut Arguments::new(&mut arguments));
        }
        let shared = arguments.len();
        let mut bytes = 0;
        for (first, run) in operations {
            bytes += first.payload();
            let others = (run.at.start + 1..run.at.end).map(|at| operation(at).unwrap_or(first));
            first.own_run(others, &mut Arguments::new(&mut arguments));
        }
        let own = &arguments[shared..];
        let each = own.len() / runs.len().max(1);
        if O::SAME_ONCE
            && runs.len() > 1
            && each > 0
            && own.chunks_exact(each).all(|chunk| chunk == &own[..each])
        {
            arguments.truncate(shared + each);
        }
        let width = |run: &Run| space.width(self.item(run.at.start).key.as_bytes(), O::PARTS.len());
        let keys = named.iter().map(width).sum();
        let mut command = script.call(keys, keys + arguments.len(), bytes);
        for run in named {
            space.keys(
                self.item(run.at.start).key.as_bytes(),
                O::PARTS,
                &mut |key| {
                    command.arg(key);
                },
            );
        }
        for word in script.words() {
            command.arg(word);
        }
        arguments
            .iter()
            .for_each(|argument| argument.add_to(&mut command, slot));
        command
    }
}

impl Argument {
    /// Adds the argument to the command of a call to a slot.
    pub(crate) fn add_to(&self, command: &mut Cmd, slot: Option<u16>) {
        match self {
            Self::Integer(integer) => command.arg(integer),
            Self::Numbers(numbers) => command.arg(&*packed(*numbers)),
            Self::Word(word) => command.arg(word),
            Self::Text(text) => command.arg(&**text),
            Self::Channels(all) => match slots::prefix(all, slot) {
                Some(channels) => command.arg(channels),
                None => command.arg(&**all),
            },
            Self::Bytes(bytes) => command.arg(&**bytes),
        };
    }
}
