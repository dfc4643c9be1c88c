//! The model of the flights of one key: which run leads, and which answer is stored.
//!
//! * A run leads from its begin on. A later run takes the lead, and then the earlier one publishes nothing: its lease was lost.
//! * A caller in another process than that of the run gets the answer that is stored at some time of its call. So there is a time
//!   at which the run was done and still led, and published it; no later answer has replaced it since then, and no `forget`.
//! * Callers of one process that call at one time share a call of the store, which may have begun before some of them called. So
//!   what they get was stored at some time since the first of them called. But once `forget` has returned in their process, later
//!   callers join no call that began before; other processes learn of it by a message, which may come later.
//! * A caller in the process of the run may have joined the run, which needs no store. Its answers are judged by their age alone, as
//!   of the first call that it may have joined. So are those of a process that serves a stale answer while its own run is under
//!   way.
//! * Nobody gets an answer that no run of the key has made before: that is judged under each fault.
//! * A run may have published, or not, if nobody in another process got its answer. A `forget` whose answer was lost may have been
//!   carried out, or not. Neither makes an answer wrong.

use std::collections::HashMap;
use std::time::Duration;

use super::history::{Event, Hold, Operation, Primitive};
use super::linearizable::{NEVER, Steps, is_linearizable};
use todc_utils::specifications::Specification;

#[derive(Clone, Copy, Debug)]
enum Step {
    Lead(usize),
    Publish(usize, u64),
    Get(u64),
    Forget,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Flight {
    leader: Option<usize>,
    answer: Option<u64>,
}

impl Specification for Flight {
    type State = Self;
    type Operation = Step;

    fn init() -> Self {
        Self::default()
    }

    fn apply(step: &Step, flight: &Self) -> (bool, Self) {
        let mut next = flight.clone();
        let valid = match *step {
            Step::Lead(run) => {
                next.leader = Some(run);
                true
            }
            Step::Publish(run, answer) => {
                next.answer = Some(answer);
                next.leader.take() == Some(run)
            }
            Step::Get(answer) => flight.answer == Some(answer),
            Step::Forget => {
                next.answer = None;
                true
            }
        };
        (valid, next)
    }
}

/// How many callers got an answer that nobody had made for this key.
pub(crate) fn invented(operations: &[&Operation], runs: &[&Hold]) -> usize {
    let is_made = |(end, answer): (u64, u64)| {
        runs.iter().any(|run| {
            run.made
                .is_some_and(|(made, _)| made == answer && made <= end)
        })
    };
    operations
        .iter()
        .filter_map(|operation| got(operation))
        .filter(|got| !is_made(*got))
        .count()
}

/// Counts the callers whose answer was too old when the first call began that they may have joined. A process may stop after an
/// answer has arrived; then others join that call before it reads the answer.
pub(crate) fn overdue(operations: &[&Operation], oldest: Duration) -> usize {
    let is_over = |operation: &&&Operation| {
        let Some((_, made)) = got(operation) else {
            return false;
        };
        let is_older = |asked: u64| Duration::from_nanos(asked.saturating_sub(made)) > oldest;
        // The first look spares most searches: nobody joins a call that is yet to come.
        is_older(operation.call) && is_older(joined(operation, operations))
    };
    operations.iter().filter(is_over).count()
}

pub(crate) fn check(primitive: Primitive, operations: &[&Operation], runs: &[&Hold]) -> bool {
    is_linearizable::<Flight>(steps(primitive, operations, runs))
}

fn got(operation: &Operation) -> Option<(u64, u64)> {
    let (end, Event::Got(answer)) = operation.answer.as_ref()? else {
        return None;
    };
    Some((*end, *answer))
}

/// When the first call began that a caller may have joined.
fn joined(caller: &Operation, operations: &[&Operation]) -> u64 {
    let own = || {
        operations
            .iter()
            .filter(|other| other.process == caller.process)
    };
    let end = |other: &Operation| other.answer.as_ref().map_or(NEVER, |(end, _)| *end);
    let forgets = own().filter(|other| other.asked == Event::Forget && end(other) < caller.call);
    let since = forgets.map(|forget| forget.call).max().unwrap_or(0);
    let calls = own().filter(|other| other.asked == Event::Ask && end(other) >= caller.call);
    calls
        .map(|other| other.call)
        .filter(|call| *call >= since)
        .min()
        .unwrap_or(caller.call)
        .min(caller.call)
}

fn steps(primitive: Primitive, operations: &[&Operation], runs: &[&Hold]) -> Steps<Step> {
    let by_answer: HashMap<u64, usize> = runs
        .iter()
        .enumerate()
        .filter_map(|(number, run)| Some((run.made?.0, number)))
        .collect();
    // Until when a stale answer is served without the store.
    let end = |run: &Hold| run.made.map_or(NEVER, |(_, at)| at);
    let runs_at = |operation: &Operation, until: u64| {
        let own = runs.iter().filter(|run| run.process == operation.process);
        own.into_iter()
            .any(|run| run.call <= until && end(run) >= operation.call)
    };
    let mut steps = Steps::new();
    let mut first_got: HashMap<usize, u64> = HashMap::new();
    for operation in operations {
        if let (Event::Forget, Some((end, Event::Forgotten(_)))) =
            (&operation.asked, &operation.answer)
        {
            steps.push((operation.call, *end, Step::Forget));
        }
        let Some((end, answer)) = got(operation) else {
            continue;
        };
        let Some(&run) = by_answer.get(&answer) else {
            continue;
        };
        let is_stored = runs[run].process != operation.process
            && (primitive == Primitive::SingleFlight || !runs_at(operation, end));
        if is_stored {
            steps.push((joined(operation, operations), end, Step::Get(answer)));
            let first = first_got.entry(run).or_insert(end);
            *first = end.min(*first);
        }
    }
    for (number, run) in runs.iter().enumerate() {
        steps.push((run.call, run.granted, Step::Lead(number)));
        if let (Some((answer, _)), Some(first)) = (run.made, first_got.get(&number)) {
            // The answer is its time.
            steps.push((answer, *first, Step::Publish(number, answer)));
        }
    }
    steps
}
