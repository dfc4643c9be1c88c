//! Checks histories from outside: is there an order of the operations of a key, each between its call and its return, in
//! which a plain sequential lock or bucket would give the same answers? The search is that of the crate `todc-utils`, an
//! implementation of the algorithm of Wing, Gong and Lowe.

use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History as Actions};
use todc_utils::specifications::Specification;

use super::history::{Event, Hold, Operation, Primitive};
use super::worker::{ALONE, BURST, MAX_WAIT, PERMITS};

/// Later than all that happens: for what may happen at any time, or never.
pub(crate) const NEVER: u64 = u64::MAX;

/// An acquisition that took longer has waited for its turn, ns.
const WAITED: u64 = MAX_WAIT.as_nanos() as u64 / 2;

/// A caller that is not polled for so long may lose what it was granted, ns.
const SLOW: u64 = 100_000_000;

/// A lock of which `limit` parts can be held.
#[derive(Clone, Copy, Debug)]
enum LockStep {
    Grant {
        hold: usize,
        share: u32,
        fence: u64,
        limit: u32,
    },
    End {
        hold: usize,
    },
    /// A refusal that did not wait.
    Refuse {
        share: u32,
        limit: u32,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LockState {
    held: Vec<(usize, u32)>,
    fence: u64,
}

impl LockState {
    fn fits(&self, share: u32, limit: u32) -> bool {
        self.held.iter().map(|(_, share)| share).sum::<u32>() + share <= limit
    }
}

struct Lock;

impl Specification for Lock {
    type State = LockState;
    type Operation = LockStep;

    fn init() -> LockState {
        LockState::default()
    }

    fn apply(step: &LockStep, state: &LockState) -> (bool, LockState) {
        let mut next = state.clone();
        let valid = match *step {
            LockStep::Grant {
                hold,
                share,
                fence,
                limit,
            } => {
                next.held.push((hold, share));
                next.fence = fence;
                // Holders that share a lock have the token of the last one who was alone.
                let rises = if share == limit {
                    fence > state.fence
                } else {
                    fence >= state.fence
                };
                state.fits(share, limit) && rises
            }
            LockStep::End { hold } => {
                next.held.retain(|(other, _)| *other != hold);
                next.held.len() < state.held.len()
            }
            LockStep::Refuse { share, limit } => !state.fits(share, limit),
        };
        (valid, next)
    }
}

/// A bucket of [`BURST`] tokens that does not refill. `unheard` is the number of calls so far whose answer nobody heard: each
/// may have taken a token, and may have given it back.
#[derive(Clone, Copy, Debug)]
enum BucketStep {
    Take { remaining: u32, unheard: u32 },
    Refuse { unheard: u32 },
}

struct Bucket;

impl Specification for Bucket {
    /// The tokens, without what is not known.
    type State = u32;
    type Operation = BucketStep;

    fn init() -> u32 {
        BURST
    }

    fn apply(step: &BucketStep, tokens: &u32) -> (bool, u32) {
        match *step {
            BucketStep::Take { remaining, unheard } => {
                let possible = tokens.saturating_sub(unheard)..=*tokens;
                (
                    possible.contains(&(remaining + 1)),
                    tokens.saturating_sub(1),
                )
            }
            BucketStep::Refuse { unheard } => (*tokens <= unheard, *tokens),
        }
    }
}

/// Steps with the time before and the time after them.
pub(crate) type Steps<T> = Vec<(u64, u64, T)>;

pub(crate) fn is_linearizable<S: Specification<Operation: Clone>>(
    steps: Steps<S::Operation>,
) -> bool {
    let mut actions = Vec::new();
    for (process, (call, end, step)) in steps.into_iter().enumerate() {
        actions.push((call, process, Action::Call(step.clone())));
        actions.push((end, process, Action::Response(step)));
    }
    if actions.is_empty() {
        return true;
    }
    // Of two at the same time, the call is the first.
    actions.sort_by_key(|(at, _, action)| (*at, matches!(action, Action::Response(_))));
    let actions = actions
        .into_iter()
        .map(|(_, process, action)| (process, action))
        .collect();
    WGLChecker::<S>::is_linearizable(Actions::from_actions(actions))
}

fn bucket_steps(operations: &[&Operation]) -> Steps<BucketStep> {
    let is_heard = |operation: &Operation| {
        matches!(
            operation.answer,
            Some((_, Event::Admitted(_) | Event::Refused))
        )
    };
    let mut steps = Steps::new();
    for operation in operations {
        let Some((end, answer)) = &operation.answer else {
            continue;
        };
        let unheard = operations
            .iter()
            .filter(|other| !is_heard(other) && other.call < *end)
            .count();
        let unheard = u32::try_from(unheard).unwrap();
        let step = match answer {
            Event::Admitted(Some(remaining)) => BucketStep::Take {
                remaining: *remaining,
                unheard,
            },
            Event::Refused => BucketStep::Refuse { unheard },
            _ => continue,
        };
        steps.push((operation.call, *end, step));
    }
    steps
}

/// A lease ends after the last time at which its holder believed in it, and before its release is confirmed.
fn lock_steps(primitive: Primitive, operations: &[&Operation], holds: &[&Hold]) -> Steps<LockStep> {
    let limit = if primitive == Primitive::WaitGroup {
        PERMITS
    } else {
        ALONE
    };
    let mut steps = Steps::new();
    for (hold, lease) in holds.iter().enumerate() {
        let Hold { share, fence, .. } = **lease;
        steps.push((
            lease.call,
            lease.granted,
            LockStep::Grant {
                hold,
                share,
                fence,
                limit,
            },
        ));
        steps.push((
            lease.held,
            lease.released().unwrap_or(NEVER),
            LockStep::End { hold },
        ));
    }
    // Such a call may have been granted without anybody knowing, and be the reason for each later refusal.
    let is_unheard = |operation: &Operation| match &operation.answer {
        Some((_, Event::Granted(_))) => false,
        Some((end, Event::Refused)) => has_waited(operation, *end),
        _ => true,
    };
    let is_acquire = |operation: &Operation| matches!(operation.asked, Event::Acquire(_));
    let unheard = operations
        .iter()
        .filter(|operation| is_acquire(operation) && is_unheard(operation));
    let first_unheard = unheard
        .map(|operation| operation.call)
        .min()
        .unwrap_or(NEVER);
    for operation in operations {
        if let (Event::Acquire(share), Some((end, Event::Refused))) =
            (&operation.asked, &operation.answer)
            && !has_waited(operation, *end)
            && !is_beside_slow(operation, operations)
            && *end < first_unheard
        {
            steps.push((
                operation.call,
                *end,
                LockStep::Refuse {
                    share: *share,
                    limit,
                },
            ));
        }
    }
    steps
}

/// Whether another call is under way that takes long. What is granted to a caller that is not polled in time is released, and the
/// caller asks anew: so it may hold the lock in between, and be granted it later.
pub(crate) fn is_beside_slow(operation: &Operation, operations: &[&Operation]) -> bool {
    let end = |operation: &Operation| operation.answer.as_ref().map_or(NEVER, |(end, _)| *end);
    operations.iter().any(|other| {
        matches!(other.asked, Event::Acquire(_) | Event::AcquireAnyway)
            && !std::ptr::eq(operation, *other)
            && end(other) - other.call > SLOW
            && other.call <= end(operation)
            && operation.call <= end(other)
    })
}

pub(crate) fn has_waited(operation: &Operation, end: u64) -> bool {
    end - operation.call > WAITED
}

/// Whether the history of one key is linearizable.
pub(crate) fn check(primitive: Primitive, operations: &[&Operation], holds: &[&Hold]) -> bool {
    match primitive {
        Primitive::TokenBucket => is_linearizable::<Bucket>(bucket_steps(operations)),
        _ => is_linearizable::<Lock>(lock_steps(primitive, operations, holds)),
    }
}
