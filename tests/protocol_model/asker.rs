//! One who asks once, with one token: what it believes, and what is on its way from it and to it.

use crate::rules::{Flaw, Rules};
use crate::server::Verdict;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Asker {
    pub(crate) phase: Phase,
    pub(crate) call: Call,
    pub(crate) late: Late,
    /// A grant on its way here, and what it is worth if it arrives now.
    pub(crate) push: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Phase {
    Idle,
    /// Awaits the answer to its acquire.
    Asking,
    /// Has been told that it is queued. The anchor is how long after its sending the call was executed whose
    /// answer said so: by so much the server's time is ahead of what the asker takes it for.
    Waiting {
        anchor: i8,
    },
    /// Believes that it holds, for so long.
    Holding {
        left: u8,
        by_push: bool,
    },
    /// Gave up, was done, was refused, or ran out of time.
    Left,
    Crashed,
}

/// The call whose answer is awaited: in `Asking` an acquire, in `Waiting` a beat, in `Holding` a renewal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Call {
    None,
    /// Sent so long ago, and yet to be executed.
    Sent {
        age: u8,
    },
    Answered(Answer),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Answer {
    /// For how long the asker may hold if this arrives now.
    Held(u8),
    Queued {
        anchor: i8,
    },
    Gone,
}

/// A request whose answer nobody awaits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Acquire,
    Renewal,
    Beat,
    Release,
}

/// Which of them are on their way to the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Late([bool; 4]);

impl Request {
    pub(crate) const ALL: [Self; 4] = [Self::Acquire, Self::Renewal, Self::Beat, Self::Release];
}

impl Late {
    pub(crate) fn has(self, request: Request) -> bool {
        self.0[request as usize]
    }

    pub(crate) fn put(&mut self, request: Request) {
        self.0[request as usize] = true;
    }

    pub(crate) fn take(&mut self, request: Request) {
        self.0[request as usize] = false;
    }
}

/// What an asker does of its own accord.
impl Asker {
    pub(crate) fn new() -> Self {
        Self { phase: Phase::Idle, call: Call::None, late: Late::default(), push: None }
    }

    pub(crate) fn ask(&mut self) {
        self.phase = Phase::Asking;
        self.send();
    }

    pub(crate) fn send(&mut self) {
        self.call = Call::Sent { age: 0 };
    }

    /// Awaits the answer no more. That recalls nothing: what is on its way may be executed yet.
    pub(crate) fn abandon(&mut self) {
        if let (Call::Sent { .. }, Some(request)) = (self.call, self.request()) {
            self.late.put(request);
        }
        self.call = Call::None;
    }

    /// Is done with its token, and says so.
    pub(crate) fn leave(&mut self) {
        self.abandon();
        self.phase = Phase::Left;
        self.late.put(Request::Release);
    }

    pub(crate) fn crash(&mut self) {
        self.abandon();
        self.phase = Phase::Crashed;
        self.push = None;
    }

    /// What its calls are at this point.
    pub(crate) fn request(&self) -> Option<Request> {
        match self.phase {
            Phase::Asking => Some(Request::Acquire),
            Phase::Waiting { .. } => Some(Request::Beat),
            Phase::Holding { .. } => Some(Request::Renewal),
            Phase::Idle | Phase::Left | Phase::Crashed => None,
        }
    }
}

/// What happens to an asker.
impl Asker {
    /// The awaited call has been executed.
    pub(crate) fn answer(&mut self, rules: &Rules, age: u8, verdict: Verdict) {
        self.call = Call::Answered(match verdict {
            Verdict::Held { left } if rules.flaw == Flaw::ReplyValidFromArrival => Answer::Held(left),
            Verdict::Held { left } => Answer::Held(left.saturating_sub(age)),
            Verdict::Queued if rules.flaw == Flaw::AnchorAtArrival => Answer::Queued { anchor: 0 },
            Verdict::Queued => Answer::Queued { anchor: age.cast_signed() },
            Verdict::Gone => Answer::Gone,
        });
    }

    /// The answer arrives. One that comes too late to be of use leaves nothing but to give back.
    pub(crate) fn receive(&mut self, answer: Answer) {
        self.call = Call::None;
        match answer {
            Answer::Held(0) => self.leave(),
            Answer::Held(left) => self.phase = Phase::Holding { left, by_push: false },
            Answer::Queued { anchor } => self.phase = Phase::Waiting { anchor },
            Answer::Gone => self.phase = Phase::Left,
        }
    }

    /// The server publishes a grant. Where nobody lives to hear it, it is lost.
    pub(crate) fn publish(&mut self, rules: &Rules) {
        if self.phase != Phase::Crashed {
            self.push = Some(rules.times.claim);
        }
    }

    /// The push arrives.
    pub(crate) fn hear(&mut self, rules: &Rules) {
        let worth = self.push.take().unwrap_or(0).cast_signed();
        match self.phase {
            Phase::Waiting { .. } if rules.flaw == Flaw::PushValidFromArrival => {
                self.claim(rules.times.claim.cast_signed());
            }
            Phase::Waiting { anchor } => self.claim(worth - anchor),
            Phase::Left => self.late.put(Request::Release),
            Phase::Holding { .. } if rules.flaw == Flaw::HolderAnswersPush => self.late.put(Request::Release),
            Phase::Idle | Phase::Asking | Phase::Holding { .. } | Phase::Crashed => {}
        }
    }

    /// A claim that has lapsed by the asker's reckoning is as good as lost: a beat will tell.
    fn claim(&mut self, left: i8) {
        if left > 0 {
            self.abandon();
            self.phase = Phase::Holding { left: left.cast_unsigned(), by_push: true };
        }
    }

    /// Time goes on for beliefs and messages. The timer behind a belief waits for no answer.
    pub(crate) fn tick(&mut self, rules: &Rules) {
        match &mut self.call {
            // What is older than a lease can bring none.
            Call::Sent { age } => *age = (*age + 1).min(rules.times.lease),
            Call::Answered(Answer::Held(worth)) if rules.flaw != Flaw::ReplyValidFromArrival => {
                *worth = worth.saturating_sub(1);
            }
            // The later it arrives, the further off is an anchor that is taken then.
            Call::Answered(Answer::Queued { anchor }) if rules.flaw == Flaw::AnchorAtArrival => {
                *anchor = (*anchor - 1).max(-1);
            }
            Call::None | Call::Answered(_) => {}
        }
        if let Some(worth) = &mut self.push {
            *worth = worth.saturating_sub(1);
        }
        if let Phase::Holding { left, .. } = &mut self.phase {
            *left -= 1;
            if *left == 0 {
                self.leave();
            }
        }
    }
}
