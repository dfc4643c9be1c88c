//! The simulation: the server, the network, and what happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::Instant;

use super::super::key_state::{KeyState, Spans, Standing, Terms};
use super::super::operations;
use super::super::options::{Holding, micros};
use super::super::token::{Ending, Suffix, Token};
use super::super::tokens::{Effect, Effects, Event, Notice, Now, Release, Renewed, Rules, Told};
use super::super::validity::Anchor;
use super::process::{Actor, Doing, Lease, Names, Process, Received, holding, process_of, waiter};
use super::referee::Referee;
use super::{Flaw, Leases, Simulated};
use crate::Error;
use crate::error::Cause;
use crate::store::{Cell as _, Link, News, Signal};

const MS: Duration = Duration::from_millis(1);
const TIMEOUT: Duration = Duration::from_millis(500);
/// When the faults stop, and how long it may take until all are served then, beyond the longest lease.
const CALM: Duration = Duration::from_secs(30);
const SERVED: Duration = Duration::from_secs(90);
/// How long a token may hold that its process does not know: no call is later.
const ORPHAN: Duration = Duration::from_secs(10);
/// Tombstones are kept for this time.
const REST: Duration = Duration::from_secs(150);

pub(super) struct Simulation<H> {
    rng: StdRng,
    leases: Leases,
    flaw: Flaw,
    capacity: i64,
    /// The probability of a fault of a call.
    faults: f64,
    began: Instant,
    now: Instant,
    server: KeyState<H>,
    spans: Spans,
    /// How far the server's clock was set back, µs.
    back: i64,
    processes: Vec<Process>,
    actors: Vec<Actor>,
    holding: Arc<Holding>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    count: u64,
    is_traced: bool,
    waiters: u64,
    /// The tokens of all acquires, and since when each is in use on the server while its process does not know it.
    acquired: Vec<(u64, Token, Option<Instant>)>,
    referee: Referee,
}

#[derive(Debug)]
enum Happening {
    /// An actor goes on.
    Acts(usize),
    /// An actor gives up, or is polled again.
    Leaves(usize),
    Polls(usize),
    /// A call runs on the server. `answers`: when the answer arrives, if it does. `copy`: a second one follows.
    Runs {
        call: Call,
        answers: Option<Instant>,
        twice: bool,
    },
    Answers {
        call: Call,
        answer: Answer,
        server: i64,
        twice: bool,
    },
    Fails {
        call: Call,
        not_sent: bool,
    },
    Pushed {
        id: u64,
        news: News,
    },
    Wakes(usize),
    Cuts(usize),
    Links(usize),
    Crashes(usize),
    Pauses(usize),
    SetBack,
    Evicts,
}

#[derive(Clone, Debug)]
struct Call {
    process: usize,
    sent: Now,
    op: Op,
}

#[derive(Clone, Debug)]
enum Op {
    /// `actor`: whose own future awaits the answer.
    Acquire {
        id: u64,
        token: Token,
        rank: i64,
        actor: Option<usize>,
    },
    Release {
        token: Token,
        withdrawn: bool,
        owed: Option<u64>,
    },
    Renew {
        lease: Lease,
    },
    Heartbeat {
        waiters: Vec<(u64, Token)>,
    },
}

#[derive(Debug)]
enum Answer {
    Standing(Standing),
    Released,
    Renewed(Option<i64>),
    Stands { soonest: i64, each: Vec<Standing> },
}

pub(super) fn rules() -> Rules {
    Rules {
        grant: 1500 * MS,
        alive: 7000 * MS,
        heartbeat: 2000 * MS,
        call: 3500 * MS,
        is_remote: true,
        releases: 2,
        is_durable: false,
        has_outcomes: false,
    }
}

impl<H: Simulated> Simulation<H> {
    pub(super) fn new(seed: u64, leases: Leases, flaw: Flaw) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let began = Instant::now();
        let ttl = [200, 3000, 30_000][rng.random_range(0..3)] * MS;
        let rules = rules();
        let spans = Spans { grant: micros(rules.grant), alive: micros(rules.alive), tombstone: 60_000_000 };
        let capacity = match leases {
            Leases::Mutex => 1,
            Leases::Permits => rng.random_range(2..4),
            // A writer weighs as much as any number of readers.
            Leases::ReadWrite => 16,
        };
        let (processes, actors) = (rng.random_range(1..4), rng.random_range(2..8));
        let actor = |rng: &mut StdRng| Actor {
            process: rng.random_range(0..processes),
            rounds: rng.random_range(1..5),
            weight: match leases {
                Leases::Mutex => 1,
                Leases::Permits => rng.random_range(1..=capacity),
                Leases::ReadWrite => {
                    if rng.random_bool(0.5) {
                        1
                    } else {
                        capacity
                    }
                }
            },
            doing: Doing::Nothing,
            is_polled: true,
        };
        let actors: Vec<_> = (0..actors).map(|_| actor(&mut rng)).collect();
        let faults = if rng.random_bool(0.2) { 0.0 } else { rng.random_range(0.0..0.25) };
        let mut simulation = Self {
            leases,
            flaw,
            capacity,
            faults,
            began,
            now: began,
            server: KeyState::default(),
            spans,
            back: 0,
            processes: (0..processes).map(|number| Process::new(number, rules, began)).collect(),
            holding: holding(ttl, leases),
            queue: BinaryHeap::new(),
            happenings: Vec::new(),
            count: 0,
            is_traced: std::env::var_os("TRACE").is_some(),
            waiters: 0,
            acquired: Vec::new(),
            referee: Referee::default(),
            actors,
            rng,
        };
        simulation.plan();
        simulation
    }

    /// Plans what goes wrong besides calls.
    fn plan(&mut self) {
        for actor in 0..self.actors.len() {
            let at = self.began + self.span(0, 2000);
            self.at(at, Happening::Acts(actor));
        }
        if self.faults == 0.0 {
            return;
        }
        for _ in 0..self.rng.random_range(0..12) {
            let at = self.began + self.span(0, 20_000);
            let process = self.rng.random_range(0..self.processes.len());
            let happening = match self.rng.random_range(0..9) {
                0 | 1 => Happening::Cuts(process),
                2 | 3 => Happening::Pauses(process),
                4 => Happening::SetBack,
                5 => Happening::Evicts,
                6 if process > 0 => Happening::Crashes(process),
                _ => Happening::Leaves(self.rng.random_range(0..self.actors.len())),
            };
            self.at(at, happening);
        }
    }

    pub(super) fn run(mut self) -> Result<u64, String> {
        let limit = self.began + CALM + SERVED + 4 * self.holding.options.ttl;
        let end = limit + REST;
        let mut are_served = false;
        while let Some(Reverse((at, _, index))) = self.queue.pop() {
            if at > end {
                break;
            }
            if at > limit && !are_served {
                are_served = true;
                if let Some(actor) = self.actors.iter().position(|actor| !matches!(actor.doing, Doing::Done))
                {
                    return Err(format!("actor {actor} is not served: {:?}", self.actors[actor]));
                }
            }
            self.now = self.now.max(at);
            if let Some(happening) = self.happenings[index].take() {
                self.count += 1;
                if self.is_traced {
                    println!("{:?} {happening:?}", self.now - self.began);
                }
                self.happens(happening);
            }
            let lost = self.referee.check(self.now, self.capacity);
            if self.faults == 0.0
                && let Some(lease) = lost
            {
                return Err(format!("{} was lost without a fault", lease.token));
            }
            self.find_orphans()?;
            if let Some(problem) = self.referee.problem.take() {
                return Err(format!("after {:?}: {problem}", self.now - self.began));
            }
        }
        self.now = end;
        self.nothing_is_left()?;
        Ok(self.count)
    }

    /// A token that its process does not know neither holds nor waits for long.
    fn find_orphans(&mut self) -> Result<(), String> {
        let (now, server) = (self.now, self.server_now());
        for (id, token, since) in &mut self.acquired {
            let process = &self.processes[process_of(*id)];
            let known = process.tokens.entries.contains_key(id) || process.tokens.owes(token);
            // After its clock was set back, the server keeps leases for longer, until another token wants them.
            let holds = self.back == 0 && self.server.holders.held(token, server).is_some();
            let is_used = holds || self.server.queue.is_alive(token, server);
            if process.crashed || process.paused > now || known || !is_used {
                *since = None;
            } else if now > *since.get_or_insert(now) + ORPHAN {
                return Err(format!("after {:?}: {token} is in use, and nobody knows it", now - self.began));
            }
        }
        Ok(())
    }

    fn nothing_is_left(&mut self) -> Result<(), String> {
        if let Some(actor) = self.actors.iter().position(|actor| !matches!(actor.doing, Doing::Done)) {
            return Err(format!("actor {actor} is not served: {:?}", self.actors[actor]));
        }
        for process in self.processes.iter().filter(|process| !process.crashed) {
            if !process.tokens.entries.is_empty() || process.tokens.owed() > 0 {
                let (entries, owed) = (&process.tokens.entries, process.tokens.owed());
                return Err(format!("process {} keeps {entries:?}, owes {owed}", process.number));
            }
        }
        let in_use = self.server.is_in_use(self.server_now());
        if in_use { Err(format!("the server keeps {:?}", self.server)) } else { Ok(()) }
    }

    fn span(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(least * 1000..=most * 1000))
    }

    fn is_calm(&self) -> bool {
        self.now >= self.began + CALM
    }

    fn at(&mut self, at: Instant, happening: Happening) {
        self.happenings.push(Some(happening));
        let index = self.happenings.len() - 1;
        self.queue.push(Reverse((at, index as u64, index)));
    }

    /// Long after the epoch, since fences are times.
    fn server_now(&self) -> i64 {
        1_000_000_000_000 + micros(self.now - self.began) - self.back
    }

    fn happens(&mut self, happening: Happening) {
        if let Some(process) = self.of(&happening) {
            if self.processes[process].crashed {
                return;
            }
            let until = self.processes[process].paused;
            if until > self.now {
                return self.at(until, happening);
            }
        }
        match happening {
            Happening::Acts(actor) => self.acts(actor),
            Happening::Leaves(actor) => self.leaves(actor),
            Happening::Polls(actor) => {
                self.actors[actor].is_polled = true;
                self.receives(actor);
            }
            Happening::Runs { call, answers, twice } => self.runs(call, answers, twice),
            Happening::Answers { call, answer, server, twice } => self.answered(call, answer, server, twice),
            Happening::Fails { call, not_sent } => self.fails(call, not_sent),
            Happening::Pushed { id, news } => self.pushed(id, news),
            Happening::Wakes(process) => {
                self.processes[process].wakes = None;
                let due = self.processes[process].tokens.due();
                if due.is_some_and(|due| due <= self.now) {
                    self.handle(process, Event::Signal(Signal::Due));
                } else {
                    self.schedule(process);
                }
            }
            Happening::Cuts(process) => {
                self.processes[process].link = Link::Down;
                self.handle(process, Event::Signal(Signal::Relinked));
                let at = self.now + self.span(1, 3000);
                self.at(at, Happening::Links(process));
            }
            Happening::Links(process) => {
                let number = self.count;
                self.processes[process].link = Link::Up(number);
                self.handle(process, Event::Signal(Signal::Relinked));
            }
            Happening::Crashes(process) => {
                self.processes[process].crashed = true;
                for actor in self.actors.iter_mut().filter(|actor| actor.process == process) {
                    if let Doing::Holds(lease) = std::mem::replace(&mut actor.doing, Doing::Done) {
                        lease.end();
                    }
                }
            }
            Happening::Pauses(process) => self.processes[process].paused = self.now + self.span(1, 4000),
            Happening::SetBack => self.back += self.rng.random_range(0..20_000_000),
            Happening::Evicts => self.server.queue.evict(),
        }
    }

    /// The process that a happening is about.
    fn of(&self, happening: &Happening) -> Option<usize> {
        match happening {
            Happening::Acts(actor) | Happening::Leaves(actor) | Happening::Polls(actor) => {
                Some(self.actors[*actor].process)
            }
            Happening::Answers { call, .. } | Happening::Fails { call, .. } => Some(call.process),
            Happening::Pushed { id, .. } => Some(process_of(*id)),
            Happening::Wakes(process) | Happening::Links(process) => Some(*process),
            _ => None,
        }
    }

    fn handle(&mut self, process: usize, event: Event<Names>) {
        let effects = self.step(process, event);
        self.perform(process, effects, None);
    }

    fn step(&mut self, process: usize, event: Event<Names>) -> Effects<Names> {
        let now = Now { at: self.now, link: self.processes[process].link };
        let effects = self.processes[process].tokens.step(event, now);
        for effect in &effects {
            if let Effect::Lost { lease, taken_back } = effect
                && !(*taken_back && self.flaw == Flaw::TakenBackAccepted)
            {
                lease.end();
            }
        }
        self.schedule(process);
        effects
    }

    fn schedule(&mut self, process: usize) {
        let Some(due) = self.processes[process].tokens.due() else { return };
        if self.processes[process].wakes.is_none_or(|wakes| due < wakes) {
            self.processes[process].wakes = Some(due);
            self.at(due.max(self.now), Happening::Wakes(process));
        }
    }

    /// Carries out effects. `own`: the actor whose future sends its own acquire.
    fn perform(&mut self, process: usize, effects: Effects<Names>, own: Option<usize>) {
        let is_followed = effects.iter().any(|effect| matches!(effect, Effect::Acquire { .. }));
        for effect in effects {
            match effect {
                Effect::Acquire { id, token, .. } => {
                    let rank = i64::from(token.ending() == Ok(Ending::Reader));
                    self.acquired.push((id, token.clone(), None));
                    if let Some(actor) = own
                        && let Doing::Waits { own, .. } = &mut self.actors[actor].doing
                    {
                        *own = Some((id, false));
                    }
                    self.call(
                        process,
                        Op::Acquire { id, token, rank, actor: own },
                        usize::from(own.is_none()),
                    );
                }
                Effect::Release { release, owed } => {
                    let Release { token, withdrawn, .. } = release;
                    if is_followed && self.flaw == Flaw::HandedOverReleaseLost {
                        if let Some(owed) = owed {
                            self.handle(process, Event::Released { owed, result: Ok(()) });
                        }
                        continue;
                    }
                    if self.flaw == Flaw::ReleaseNotRepeated
                        && let Some(owed) = owed
                    {
                        self.handle(process, Event::Released { owed, result: Ok(()) });
                    }
                    self.call(process, Op::Release { token, withdrawn, owed }, usize::from(is_followed));
                }
                Effect::Give { waiter, lease, .. } => {
                    self.offer(waiter.actor, &waiter, Received::Lease(lease))
                }
                Effect::Tell { waiter, outcome } => {
                    let received =
                        if matches!(outcome, Told::Again) { Received::Again } else { Received::Error };
                    self.offer(waiter.actor, &waiter, received);
                }
                Effect::Valid { lease, sent, until } => {
                    if !lease.renewed(sent, until, self.now) {
                        self.handle(process, Event::Lost { id: lease.id, fence: lease.fence });
                    }
                }
                Effect::Renew { .. } if self.flaw == Flaw::NoRenewals => {}
                Effect::Renew { lease, .. } => self.call(process, Op::Renew { lease }, 1),
                Effect::Heartbeat { .. } if self.flaw == Flaw::NoHeartbeats => {}
                Effect::Heartbeat { waiters, .. } => self.call(process, Op::Heartbeat { waiters }, 1),
                Effect::Lost { .. } | Effect::Subscribe => {}
            }
        }
    }

    /// Sends a call over a connection of a process. It may be late, lost, run twice, or lose its answer.
    fn call(&mut self, process: usize, op: Op, connection: usize) {
        let sent = Now { at: self.now, link: self.processes[process].link };
        let call = Call { process, sent, op };
        let arrives = (self.now + self.span(0, 5)).max(self.processes[process].connections[connection]);
        self.processes[process].connections[connection] = arrives;
        let answers = arrives + self.span(0, 5);
        let fault = if self.is_calm() || !self.rng.random_bool(self.faults) {
            9
        } else {
            self.rng.random_range(0..6)
        };
        let late = self.now + self.span(1, 8000);
        match fault {
            0 => self.at(self.now + TIMEOUT, Happening::Fails { call, not_sent: true }),
            1 => {
                self.at(late, Happening::Runs { call: call.clone(), answers: None, twice: false });
                self.at(self.now + TIMEOUT, Happening::Fails { call, not_sent: false });
            }
            2 => {
                self.at(arrives, Happening::Runs { call: call.clone(), answers: None, twice: false });
                self.at(self.now + TIMEOUT, Happening::Fails { call, not_sent: false });
            }
            3 => {
                self.at(late, Happening::Runs { call: call.clone(), answers: None, twice: true });
                self.at(arrives, Happening::Runs { call, answers: Some(answers), twice: true });
            }
            // A slow answer.
            4 => {
                let answers = arrives + self.span(0, 480);
                self.at(arrives, Happening::Runs { call, answers: Some(answers), twice: false });
            }
            _ => self.at(arrives, Happening::Runs { call, answers: Some(answers), twice: false }),
        }
    }

    fn runs(&mut self, call: Call, answers: Option<Instant>, twice: bool) {
        let (now, spans) = (self.server_now(), self.spans);
        let ttl = micros(self.holding.options.ttl);
        let answer = match &call.op {
            Op::Acquire { token, rank, .. } => {
                let terms = Terms { rank: *rank, ..Terms::usual(ttl) };
                Answer::Standing(self.server.acquire(token, terms, None, None, now, spans))
            }
            Op::Release { token, withdrawn, .. } => {
                self.server.release(token, *withdrawn, now, spans);
                Answer::Released
            }
            Op::Renew { lease } => Answer::Renewed(self.server.renew(&lease.token, ttl, 0, now)),
            Op::Heartbeat { waiters } => {
                let tokens: Vec<_> = waiters.iter().map(|(_, token)| token.clone()).collect();
                let (soonest, each) = self.server.heartbeat(&tokens, None, now, spans);
                Answer::Stands { soonest, each }
            }
        };
        for push in self.server.pushes() {
            for id in push.ids {
                let lost = !self.is_calm() && self.rng.random_bool(self.faults);
                if lost || self.processes[process_of(id)].link == Link::Down {
                    continue;
                }
                let at = self.now + self.span(0, if self.is_calm() { 5 } else { 60 });
                self.at(at, Happening::Pushed { id, news: push.news.clone() });
            }
        }
        if let Some(at) = answers {
            self.at(at, Happening::Answers { call, answer, server: now, twice });
        }
    }

    fn answered(&mut self, call: Call, answer: Answer, server: i64, twice: bool) {
        let Call { process, mut sent, op } = call;
        if self.flaw == Flaw::ValidFromArrival {
            sent.at = self.now;
        }
        let twice = twice && self.flaw != Flaw::TwiceForgotten;
        match (op, answer) {
            (Op::Acquire { id, actor, .. }, Answer::Standing(standing)) => {
                let polled = match actor {
                    Some(actor) if !self.is_awaited(actor, id) => return,
                    Some(actor) if !self.actors[actor].is_polled => return,
                    Some(actor) => self.mark_answered(actor),
                    None => None,
                };
                let answer = operations::Answer::acquired(server, standing, None, twice);
                self.handle(process, Event::Answered { id, sent, answer, polled });
            }
            (Op::Release { owed: Some(owed), .. }, _) => {
                self.handle(process, Event::Released { owed, result: Ok(()) });
            }
            (Op::Renew { lease }, Answer::Renewed(expiry)) => {
                let options = &self.holding.options;
                let renewed = expiry.map_or(Renewed::Gone, |expiry| {
                    let anchor = Anchor { sent: sent.at, now: server };
                    Renewed::Valid { sent: sent.at, until: anchor.until(expiry, options.ttl, options.drift) }
                });
                self.handle(process, Event::Renewed { id: lease.id, renewed, scheduled: true });
            }
            (Op::Heartbeat { waiters }, Answer::Stands { soonest, each }) => {
                let each = waiters.into_iter().map(|(id, _)| id).zip(each).collect();
                self.handle(process, Event::Stands { sent, now: server, soonest, each });
            }
            _ => {}
        }
    }

    fn fails(&mut self, call: Call, not_sent: bool) {
        let cause =
            if not_sent || self.flaw == Flaw::FailureNotWithdrawn { Cause::NotSent } else { Cause::TimedOut };
        let error = Error::unavailable(cause, "the call failed");
        let event = match call.op {
            Op::Acquire { id, actor, .. } => {
                if let Some(actor) = actor {
                    if !self.is_awaited(actor, id) || !self.actors[actor].is_polled {
                        return;
                    }
                    self.mark_answered(actor);
                }
                Event::Failed { id, error, is_final: false }
            }
            Op::Release { owed: Some(owed), .. } => Event::Released { owed, result: Err(error) },
            Op::Release { .. } => return,
            Op::Renew { lease } => {
                Event::Renewed { id: lease.id, renewed: Renewed::Unknown, scheduled: true }
            }
            Op::Heartbeat { waiters } => {
                Event::Unanswered { ids: waiters.into_iter().map(|(id, _)| id).collect(), error }
            }
        };
        self.handle(call.process, event);
    }

    fn pushed(&mut self, id: u64, news: News) {
        let News::Granted { mut expiry, fence } = news else { return };
        if self.flaw == Flaw::PushValidFromArrival {
            expiry = self.server_now() + 2 * self.spans.grant;
        }
        self.handle(process_of(id), Event::Pushed { id, news: Notice::Granted { expiry, fence } });
    }

    /// Whether a future still awaits the answer to its own acquire.
    fn is_awaited(&self, actor: usize, id: u64) -> bool {
        matches!(&self.actors[actor].doing, Doing::Waits { own: Some((own, false)), .. } if *own == id)
    }

    fn mark_answered(&mut self, actor: usize) -> Option<super::process::Waiter> {
        let Doing::Waits { waiter, own, .. } = &mut self.actors[actor].doing else { return None };
        if let Some((_, answered)) = own {
            *answered = true;
        }
        Some(waiter.clone())
    }

    fn acts(&mut self, actor: usize) {
        match std::mem::replace(&mut self.actors[actor].doing, Doing::Nothing) {
            Doing::Nothing if self.actors[actor].rounds == 0 => self.actors[actor].doing = Doing::Done,
            Doing::Nothing => {
                self.actors[actor].rounds -= 1;
                self.arrives(actor);
                if !self.is_calm() && self.rng.random_bool(self.faults) {
                    let at = self.now + self.span(0, 3000);
                    match self.rng.random_range(0..2) {
                        0 => self.at(at, Happening::Leaves(actor)),
                        _ => {
                            self.actors[actor].is_polled = false;
                            let at = self.now + self.span(1, 25_000);
                            self.at(at, Happening::Polls(actor));
                        }
                    }
                }
            }
            Doing::Holds(lease) => {
                self.ends(actor, &lease);
                self.rest(actor);
            }
            doing => self.actors[actor].doing = doing,
        }
    }

    fn arrives(&mut self, actor: usize) {
        let (process, weight) = (self.actors[actor].process, self.actors[actor].weight);
        let suffix = match self.leases {
            Leases::Mutex => Suffix::default(),
            Leases::Permits => format!("/{weight}/{}", self.capacity).into(),
            Leases::ReadWrite if weight == 1 => Ending::Reader.into(),
            Leases::ReadWrite => Ending::Writer { row: 2 }.into(),
        };
        self.waiters += 1;
        let waiter = waiter(actor, self.waiters, Arc::clone(&self.holding), suffix);
        self.actors[actor].doing = Doing::Waits { waiter: waiter.clone(), own: None, received: None };
        let effects = self.step(process, Event::Arrives { key: "k".into(), waiter });
        self.perform(process, effects, Some(actor));
    }

    /// Offers a result to a waiter.
    fn offer(&mut self, actor: usize, to: &super::process::Waiter, result: Received) {
        match &mut self.actors[actor].doing {
            Doing::Waits { waiter, received: received @ None, .. } if waiter == to => {
                *received = Some(result)
            }
            // It has gone away.
            _ => {
                if let Received::Lease(lease) = result {
                    self.ends(actor, &lease);
                }
                return;
            }
        }
        if self.actors[actor].is_polled {
            self.receives(actor);
        }
    }

    /// The future of an actor is polled.
    fn receives(&mut self, actor: usize) {
        let Doing::Waits { received, .. } = &mut self.actors[actor].doing else { return };
        match received.take() {
            None => {}
            Some(Received::Again) => self.arrives(actor),
            Some(Received::Error) => self.rest(actor),
            Some(Received::Lease(lease)) => {
                if !lease.is_held(self.now) {
                    self.ends(actor, &lease);
                    return self.arrives(actor);
                }
                let process = self.actors[actor].process;
                if lease.offered {
                    self.handle(process, Event::Accepted { id: lease.id, fence: lease.fence });
                }
                let mut seen = lease.clone();
                if self.flaw == Flaw::OneFence {
                    seen.fence = seen.token.text().len() as i64;
                }
                self.referee.holds(&seen, self.actors[actor].weight, self.leases, self.capacity);
                self.actors[actor].doing = Doing::Holds(lease);
                let at =
                    self.now + if self.rng.random_bool(0.2) { self.span(0, 5000) } else { self.span(0, 20) };
                self.at(at, Happening::Acts(actor));
            }
        }
    }

    fn rest(&mut self, actor: usize) {
        self.actors[actor].doing = Doing::Nothing;
        let at = self.now + self.span(0, 1000);
        self.at(at, Happening::Acts(actor));
    }

    fn ends(&mut self, actor: usize, lease: &Lease) {
        lease.end();
        let options = &self.holding.options;
        let (ttl, left) = (micros(options.ttl), options.ttl + 7000 * MS);
        let release = Release {
            key: "k".into(),
            token: lease.token.clone(),
            withdrawn: lease.twice,
            renews: false,
            ttl,
            left,
        };
        let ends = Event::Ends { release, id: lease.id, fence: lease.fence, detached: true };
        self.handle(self.actors[actor].process, ends);
    }

    /// The future of an actor is dropped.
    fn leaves(&mut self, actor: usize) {
        if !matches!(self.actors[actor].doing, Doing::Waits { .. }) {
            return;
        }
        let doing = std::mem::replace(&mut self.actors[actor].doing, Doing::Nothing);
        let Doing::Waits { waiter, own, received } = doing else { return };
        let process = self.actors[actor].process;
        let (id, unanswered) = own.map_or((None, false), |(id, answered)| (Some(id), !answered));
        self.handle(process, Event::Leaves { key: "k".into(), waiter, id, unanswered });
        if let Some(Received::Lease(lease)) = received {
            self.ends(actor, &lease);
        }
        self.actors[actor].is_polled = true;
        self.rest(actor);
    }
}
