//! The model of claims on one item: who holds the claim, and whether the item is known.
//!
//! * A claim is granted if nobody holds one and the item is not known; `claim_anyway` also if it is known.
//! * "Duplicate" needs a known item, "in flight" a holder. "In flight" is judged as a refusal of a lock is: not after a wait, and
//!   not once the answer to another claim was lost, and not beside a claim that takes long: those may hold it.
//! * A confirmation makes the item known, also if its claim was lost. If it answers `true`, the claim was held until then, and
//!   nobody else got it in between.
//! * `forget` says whether the item was known, and makes it new.
//! * A claim ends between the last time when its holder believed in it and the answer to its release. Without an answer it may
//!   end at any time after that belief: it expires.
//! * A confirmation whose answer was lost is sent again. So from its call on, the item may become known at any time.
//! * A `forget` whose answer was lost is not sent again. So at one time after its call, the item may become new.

use super::history::{Event, Hold, Operation};
use super::linearizable::{NEVER, Steps, has_waited, is_beside_slow, is_linearizable};
use todc_utils::specifications::Specification;

#[derive(Clone, Copy, Debug)]
enum Step {
    Claim { hold: usize, anyway: bool },
    End { hold: usize },
    Confirm { hold: usize, was_held: bool },
    Forget { was_known: bool },
    Duplicate,
    InFlight { anyway: bool },
    UnheardConfirm,
    UnheardForget,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Item {
    holder: Option<usize>,
    known: bool,
    /// A confirmation may be carried out at any time.
    may_be_known: bool,
    /// How often it may be forgotten.
    may_be_new: u32,
}

impl Item {
    /// Makes use of an unheard `forget`, if the item is known. Returns whether it is new.
    fn is_new(&mut self) -> bool {
        if self.known && self.may_be_new > 0 {
            self.may_be_new -= 1;
            self.known = false;
        }
        !self.known
    }

    fn is_known(&mut self) -> bool {
        self.known |= self.may_be_known;
        self.known
    }
}

impl Specification for Item {
    type State = Self;
    type Operation = Step;

    fn init() -> Self {
        Self::default()
    }

    fn apply(step: &Step, item: &Self) -> (bool, Self) {
        let mut next = item.clone();
        let valid = match *step {
            Step::Claim { hold, anyway } => {
                next.holder = Some(hold);
                item.holder.is_none() && (anyway || next.is_new())
            }
            Step::End { hold } => next.holder.take_if(|holder| *holder == hold).is_some(),
            Step::Confirm { hold, was_held } => {
                next.known = true;
                next.holder.take_if(|holder| *holder == hold).is_some() == was_held
            }
            Step::Forget { was_known } => {
                let valid = if was_known {
                    next.is_known()
                } else {
                    next.is_new()
                };
                next.known = false;
                valid
            }
            Step::Duplicate => next.is_known(),
            Step::InFlight { anyway } => item.holder.is_some() && (anyway || next.is_new()),
            Step::UnheardConfirm => {
                next.may_be_known = true;
                true
            }
            Step::UnheardForget => {
                next.may_be_new += 1;
                true
            }
        };
        (valid, next)
    }
}

pub(crate) fn check(operations: &[&Operation], holds: &[&Hold]) -> bool {
    is_linearizable::<Item>(steps(operations, holds))
}

fn steps(operations: &[&Operation], holds: &[&Hold]) -> Steps<Step> {
    let mut steps = Steps::new();
    for (hold, claim) in holds.iter().enumerate() {
        steps.push((
            claim.call,
            claim.granted,
            Step::Claim {
                hold,
                anyway: claim.anyway,
            },
        ));
        let ending = claim
            .ending
            .and_then(|ending| Some((ending, ending.answer?)));
        steps.extend(
            match ending {
                Some((ending, (at, true))) if !ending.confirms => {
                    [Some((ending.call, at, Step::End { hold })), None]
                }
                Some((ending, (at, was_held))) => {
                    let confirm = ending.confirms.then_some((
                        ending.call,
                        at,
                        Step::Confirm { hold, was_held },
                    ));
                    [
                        (!was_held).then_some((claim.held, at, Step::End { hold })),
                        confirm,
                    ]
                }
                None => [Some((claim.held, NEVER, Step::End { hold })), None],
            }
            .into_iter()
            .flatten(),
        );
    }
    let first_unheard = operations
        .iter()
        .filter(|operation| is_unheard_claim(operation));
    let first_unheard = first_unheard
        .map(|operation| operation.call)
        .min()
        .unwrap_or(NEVER);
    for operation in operations {
        let call = operation.call;
        steps.extend(match (&operation.asked, &operation.answer) {
            (Event::Forget, Some((end, Event::Forgotten(was_known)))) => Some((
                call,
                *end,
                Step::Forget {
                    was_known: *was_known,
                },
            )),
            (Event::Forget, _) => Some((call, call, Step::UnheardForget)),
            (Event::Confirm, Some((_, Event::Released(_)))) => None,
            (Event::Confirm, _) => Some((call, call, Step::UnheardConfirm)),
            (_, Some((end, Event::Duplicate))) => Some((call, *end, Step::Duplicate)),
            (asked, Some((end, Event::Refused)))
                if !has_waited(operation, *end)
                    && !is_beside_slow(operation, operations)
                    && *end < first_unheard =>
            {
                Some((
                    call,
                    *end,
                    Step::InFlight {
                        anyway: *asked == Event::AcquireAnyway,
                    },
                ))
            }
            _ => None,
        });
    }
    steps
}

/// Whether a claim may be held without anybody knowing.
fn is_unheard_claim(operation: &Operation) -> bool {
    let is_claim = matches!(operation.asked, Event::Acquire(_) | Event::AcquireAnyway);
    is_claim
        && match &operation.answer {
            Some((_, Event::Granted(_) | Event::Duplicate)) => false,
            Some((end, Event::Refused)) => has_waited(operation, *end),
            _ => true,
        }
}
