//! The script calls for the operations of a batch: which operations are sent in one call, and the command of each call,
//! as a function or as a script.

use std::collections::HashMap;
use std::sync::OnceLock;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::{self, Cmd};
use smallvec::SmallVec;

use crate::store::operation::{Argument, Arguments, Operation, Script, packed};
use crate::store::redis::batch::{Call, Item, Run, Runs};
use crate::store::redis::library::{Clock, Library};
use crate::store::redis::names::KeySpace;
use crate::store::redis::slots;

/// The maximum payload of a call in bytes, unless it has only one operation.
const MOST_PAYLOAD: usize = 64 << 10;

/// The calls for some operations, and the order of the operations in them. Operations of one group and key keep their
/// order. The ranges of all runs, one call after the other, are contiguous.
pub(super) struct Calls {
    pub(super) list: SmallVec<[Call; 1]>,
    pub(super) order: SmallVec<[usize; 1]>,
}

impl Calls {
    /// Callss the calls for the operations that still must be sent.
    pub(super) fn new<O: Operation>(script: &Loaded, space: &KeySpace, items: &[Item<O>]) -> Self {
        let mut order: SmallVec<[usize; 1]> = SmallVec::new();
        for (at, item) in items.iter().enumerate() {
            if item.is_wanted() && item.operation.is_some() {
                order.push(at);
            }
        }
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
        let mut list = SmallVec::new();
        let mut start = 0;
        while start < order.len() {
            let slot = items[order[start]].slot;
            let runs = pending.runs(start);
            start = runs.last().map_or(order.len(), |last| last.at.end);
            let command = pending.command(script, space, &runs);
            list.push(Call {
                command,
                slot,
                runs,
                repeat: O::REPEAT,
            });
        }
        Self { list, order }
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

/// Operations in the order of their calls, and the group of each item if there are several.
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
        let mut keys = 0;
        for run in named {
            let key = &self.item(run.at.start).key;
            keys += space.width(key.as_bytes(), O::PARTS.len());
        }
        let mut bytes = 0;
        for run in runs {
            if let Some(operation) = &self.item(run.at.start).operation {
                bytes += operation.payload();
            }
        }
        let arguments = self.arguments(runs);
        let mut command = script.call(keys, keys + arguments.len(), bytes);
        for run in named {
            let key = &self.item(run.at.start).key;
            space.keys(key.as_bytes(), O::PARTS, &mut |name| {
                command.arg(name);
            });
        }
        command.arg(script.script.words);
        let slot = self.item(runs[0].at.start).slot;
        for argument in &arguments {
            argument.add_to(&mut command, slot);
        }
        command
    }

    /// Returns the arguments of a call: those that its operations share, and those of each run, or of all runs once if
    /// they are equal.
    fn arguments(&self, runs: &[Run]) -> Vec<Argument> {
        let mut arguments = Vec::with_capacity(8 + 8 * runs.len());
        let mut sharing = None;
        for run in runs {
            let operation = self.item(run.at.start).operation.as_ref();
            if sharing.is_none() {
                sharing = operation;
            }
            // An operation without a group accepts the shared arguments of any group.
            if operation.and_then(O::group).is_some() {
                sharing = operation;
                break;
            }
        }
        if let Some(operation) = sharing {
            operation.shared(&mut Arguments::new(&mut arguments));
        }
        let shared = arguments.len();
        for run in runs {
            let Some(first) = &self.item(run.at.start).operation else {
                continue;
            };
            let others = (run.at.start + 1..run.at.end)
                .map(|at| self.item(at).operation.as_ref().unwrap_or(first));
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
        arguments
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
            Self::Channels(all) => match slot.and_then(|slot| slots::prefix(all, slot)) {
                Some(channels) => command.arg(channels),
                None => command.arg(&**all),
            },
            Self::Bytes(bytes) => command.arg(&**bytes),
        };
    }
}

/// The approximate size of a key or an argument in bytes.
const TEXT: usize = 40;

/// An operation's function and script, with the clock of a store.
pub(crate) struct Loaded {
    pub(super) name: String,
    script: Script,
    clock: Clock,
    function: String,
    /// Made on first use.
    text: OnceLock<Text>,
    /// The number of calls that were started.
    #[cfg(test)]
    begun: AtomicUsize,
}

/// The text of a script, and its digest.
struct Text {
    text: String,
    sha: String,
}

/// The form in which a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Function,
    /// By the digest of the script.
    Digest,
    /// With the text of the script.
    Full,
}

impl Loaded {
    pub(super) fn new(clock: Clock, script: Script, library: &Library) -> Self {
        let function = library.function(script.rights);
        Self {
            name: script.name(),
            script,
            clock,
            function,
            text: OnceLock::new(),
            #[cfg(test)]
            begun: Default::default(),
        }
    }

    /// Returns the form of a call to a server with or without functions. With the clock of a test, every second call of
    /// an operation is sent as a script: the agreement tests then cover both forms, and states that one form has
    /// written and the other reads.
    pub(super) fn form(&self, has_functions: bool) -> Form {
        #[cfg(test)]
        let has_functions = has_functions
            && (self.clock.is_none() || self.begun.fetch_add(1, Relaxed).is_multiple_of(2));
        if has_functions {
            Form::Function
        } else {
            Form::Digest
        }
    }

    /// Starts a call. The caller adds the keys, then the first arguments of the script and the others: `texts` in
    /// total, with payloads of `bytes`.
    pub(super) fn call(&self, keys: usize, texts: usize, bytes: usize) -> Cmd {
        let mut call = Cmd::with_capacity(5 + texts, 96 + TEXT * texts + bytes);
        call.arg("FCALL").arg(&self.function).arg(keys);
        call
    }

    /// Returns a call that was made as a function in another form.
    pub(super) fn in_form(&self, call: &Cmd, form: Form) -> Cmd {
        let mut other = Cmd::new();
        match form {
            Form::Function => other.arg("FCALL").arg(&self.function),
            Form::Full => other.arg("EVAL").arg(&self.text().text),
            Form::Digest => other.arg("EVALSHA").arg(&self.text().sha),
        };
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                other.arg(bytes);
            }
        }
        other
    }

    /// Returns the text of the error for an invalid reply to a call of this form.
    pub(super) fn unexpected(&self, form: Form) -> String {
        let Self { name, function, .. } = self;
        match form {
            Form::Function => format!(
                "the operation {name} returned an unexpected reply: if FUNCTION LIST shows the function {function} in \
                 another library, delete that one"
            ),
            Form::Digest | Form::Full => format!("the script {name} returned an unexpected reply"),
        }
    }

    fn text(&self) -> &Text {
        self.text.get_or_init(|| {
            let text = self.script.text(self.clock);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Text { text, sha }
        })
    }
}
