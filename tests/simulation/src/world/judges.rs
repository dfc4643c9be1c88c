//! What must be true of a world.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;
use tower_distributed::{Error, LeaseHandle};

use crate::network::micros;
use crate::os;
use crate::server::lock;

/// The clocks of processes with runtimes of their own differ by a turn.
pub const SKEW: Duration = Duration::from_millis(2);

/// A call whose messages are not late has lined up by then, and heard of its turn: several messages take 300 ms each.
const LATEST: Duration = Duration::from_millis(2000);

/// One that holds something.
struct Holder {
    handle: LeaseHandle,
    weight: u32,
    is_exclusive: bool,
    /// How often the servers had forgotten when it was granted.
    losses: u64,
    who: u64,
}

/// One that waits in strict order.
struct Waiter {
    since: Instant,
    /// When somebody had the turn who came long after it.
    passed: Option<Instant>,
}

/// A limit, and what was charged.
struct Budget {
    burst: f64,
    per_second: f64,
    /// The starts of the calls that were admitted, and what they were charged.
    charged: Vec<(Instant, f64)>,
    /// At most so much was taken at `at`, besides `open`: as if each charge had been made when its answer came.
    taken: f64,
    at: Instant,
    /// What is held, and what calls may charge whose outcome is not known.
    open: f64,
    /// How much of that was held no more, and when.
    freed: Vec<(Instant, f64)>,
}

#[derive(Default)]
struct State {
    broken: Vec<String>,
    holders: BTreeMap<String, Vec<Holder>>,
    fences: BTreeMap<String, u64>,
    /// Who waits in strict order.
    waiting: BTreeMap<String, BTreeMap<u64, Waiter>>,
    budgets: BTreeMap<String, Budget>,
    handled: BTreeSet<String>,
    running: BTreeMap<String, u32>,
    /// What was taken in a window of a calendar.
    spent: BTreeMap<(String, i64), u32>,
    /// How often something was noted.
    noted: BTreeMap<String, u64>,
    /// What all processes have to agree on.
    agreed: BTreeMap<&'static str, u64>,
    losses: u64,
    /// When the last one was.
    lost_at: Option<Instant>,
    /// The same by the clock of the servers, in µs.
    lost_micros: i64,
    /// How often the clock was set, or another server may have begun to serve.
    turns: u64,
    uncertain: i32,
    /// Whether a key was evicted. If that is the one with the fence, its holder is told none.
    has_evicted: bool,
    clock: i64,
    next: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl State {
    fn condemn(&mut self, what: String) {
        let at = os::elapsed().as_secs_f64() * 1e3;
        if self.broken.len() < 20 {
            self.broken.push(format!("{at:.3} ms: {what}"));
        }
    }

    fn forget_charges(&mut self) {
        for (key, budget) in &mut self.budgets {
            // Holds may come back, and be charged later.
            match key.starts_with("h:") {
                true => budget.forget(),
                false => budget.lose(),
            }
        }
        self.spent.clear();
    }

    /// From now on fences may begin anew.
    fn turn(&mut self) {
        self.turns += 1;
        self.fences.clear();
    }
}

#[derive(Default)]
pub struct Judges(Mutex<State>);

impl Judges {
    pub fn broken(&self) -> Vec<String> {
        lock(&self.0).broken.clone()
    }

    /// How often what has happened.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.0).counts.clone()
    }

    pub fn count(&self, what: &'static str) {
        *lock(&self.0).counts.entry(what).or_default() += 1;
    }

    pub fn condemn(&self, what: impl Into<String>) {
        lock(&self.0).condemn(what.into());
    }

    /// The servers have forgotten something.
    pub fn forget(&self) {
        let mut state = lock(&self.0);
        state.losses += 1;
        state.lost_at = Some(Instant::now());
        state.lost_micros = micros() + state.clock;
        // Fences are ahead of a clock that was set back, as long as they are not lost.
        if state.clock != 0 {
            state.turn();
        }
        state.forget_charges();
        state.handled.clear();
    }

    /// A key was evicted.
    pub fn evicted(&self) {
        self.forget();
        lock(&self.0).has_evicted = true;
    }

    /// The clocks of the servers are set, in µs, which ends leases before their time.
    pub fn clock_is_set(&self, by: i64) {
        self.forget();
        let mut state = lock(&self.0);
        state.clock += by;
        // Grants from now on have fences by the new clock.
        state.lost_micros = micros() + state.clock;
        state.budgets.values_mut().for_each(Budget::forget);
        state.turn();
    }

    /// What the clocks of the servers are ahead, in µs.
    pub fn clock(&self) -> i64 {
        lock(&self.0).clock
    }

    /// The servers have forgotten what no replica had: charges, but no lease that a replica has confirmed.
    pub fn forget_charges(&self) {
        lock(&self.0).forget_charges();
    }

    /// The terms of some limits change, so that what was charged before says nothing about what comes after.
    pub fn forget_charges_of(&self, name: &str) {
        let mut state = lock(&self.0);
        for (key, budget) in &mut state.budgets {
            if key.starts_with(name) {
                budget.forget();
            }
        }
    }

    /// From now on two servers may serve, or not any more.
    pub fn is_uncertain(&self, is_so: bool) {
        self.forget();
        let mut state = lock(&self.0);
        state.uncertain += if is_so { 1 } else { -1 };
        state.turn();
    }

    /// How often the servers have forgotten something. Nothing is certain between two calls while two servers serve.
    pub fn losses(&self) -> u64 {
        let mut state = lock(&self.0);
        if state.uncertain > 0 {
            state.losses += 1;
        }
        state.losses
    }

    /// Whether nothing was lost for so long: what was granted earlier was lost with it.
    pub fn nothing_is_lost_for(&self, span: Duration) -> bool {
        let state = lock(&self.0);
        state.uncertain == 0 && state.lost_at.is_none_or(|at| at.elapsed() > span)
    }

    /// A call took longer than it may.
    pub fn in_time(&self, what: &str, began: Instant, most: Duration) {
        let took = began.elapsed();
        if took > most {
            self.condemn(format!("{what} took {took:?}, at most {most:?}"));
        }
    }

    /// One more holds something of which there is `limit`. Returns its number. `since`: the losses before it was asked for.
    pub fn acquired(
        &self,
        key: &str,
        (handle, weight, is_exclusive): (LeaseHandle, u32, bool),
        limit: u32,
        since: u64,
    ) -> u64 {
        let mut state = lock(&self.0);
        let (who, losses, lost_micros) = (state.next, state.losses, state.lost_micros);
        state.next += 1;
        let all = state.holders.entry(key.into()).or_default();
        // A process hands a lock on to callers that asked after a loss; its fence is at least the time of the grant.
        let is_before = |fence| (fence as i64) < lost_micros;
        let was_before = is_exclusive && handle.fence().is_some_and(is_before);
        let since = if was_before { u64::MAX } else { since };
        let is_certain = |handle: &LeaseHandle| handle.is_held() && handle.time_left() > SKEW;
        let is_held = is_certain(&handle) && since == losses;
        all.push(Holder {
            handle,
            weight,
            is_exclusive,
            losses: since,
            who,
        });
        let is_current = |one: &&Holder| is_certain(&one.handle) && one.losses == losses;
        let held: Vec<_> = all.iter().filter(is_current).collect();
        let sum: u32 = held.iter().map(|one| one.weight).sum();
        let is_shared = held.len() > 1 && held.iter().any(|one| one.is_exclusive);
        if is_held && (sum > limit || is_shared) {
            let held = held
                .iter()
                .map(|one| (one.who, one.weight, one.is_exclusive));
            let who: Vec<_> = held.collect();
            state.condemn(format!("{key}: {sum} of {limit} are held, by {who:?}"));
        }
        who
    }

    pub fn released(&self, key: &str, who: u64) {
        if let Some(all) = lock(&self.0).holders.get_mut(key) {
            all.retain(|one| one.who != who);
        }
    }

    /// Fences rise, also where the servers have lost their keys: a fence is at least the time. `since`: the losses and the turns
    /// before it was asked for.
    pub fn fence(&self, key: &str, fence: u64, is_held: bool, since: (u64, u64)) {
        let mut state = lock(&self.0);
        // What was granted before a loss may be told after what was granted again.
        if (state.losses, state.turns) != since || state.has_evicted {
            return;
        }
        let last = state.fences.entry(key.into()).or_default();
        let before = *last;
        *last = before.max(fence);
        if is_held && fence <= before {
            state.condemn(format!("{key}: the fence {fence} comes after {before}"));
        }
    }

    /// How often the clock was set, or another server may have begun to serve.
    pub fn turns(&self) -> u64 {
        let mut state = lock(&self.0);
        if state.uncertain > 0 {
            state.turn();
        }
        state.turns
    }

    /// One waits in strict order. Returns its number.
    pub fn waits(&self, key: &str) -> u64 {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        let waiter = Waiter {
            since: Instant::now(),
            passed: None,
        };
        let waiting = state.waiting.entry(key.into()).or_default();
        waiting.insert(number, waiter);
        number
    }

    /// It waits no more. `got`: it had its turn. Who came long before it has had one as well, and hears of it soon.
    pub fn waited(&self, key: &str, number: u64, got: bool) {
        let (mut state, now) = (lock(&self.0), Instant::now());
        let all = state.waiting.entry(key.into()).or_default();
        let Some(own) = all.remove(&number) else {
            return;
        };
        for other in all.values_mut() {
            if got && other.since + LATEST < own.since {
                other.passed.get_or_insert(now);
            }
        }
        if let Some(passed) = own.passed.filter(|passed| *passed + LATEST < now) {
            let late = now - passed;
            state.condemn(format!(
                "{key}: who came later had the turn {late:?} before"
            ));
        }
    }

    /// A limit is asked: from now on it may be charged.
    pub fn asked(&self, key: &str, (burst, per_second): (f64, f64), cost: f64) {
        let mut state = lock(&self.0);
        let at = Instant::now();
        let fresh = || Budget {
            burst,
            per_second,
            charged: vec![],
            taken: 0.0,
            at,
            open: 0.0,
            freed: vec![],
        };
        state.budgets.entry(key.into()).or_insert_with(fresh).open += cost;
    }

    /// It has answered. `None`: whether it was charged is not known.
    pub fn charged(&self, key: &str, began: Instant, cost: f64, outcome: Option<bool>) {
        let mut state = lock(&self.0);
        let Some(budget) = state.budgets.get_mut(key) else {
            return;
        };
        let Some(is_charged) = outcome else { return };
        budget.open -= cost;
        let problem = match is_charged {
            true => {
                budget.take(cost);
                budget.charged.push((began, cost));
                budget.exceeded()
            }
            false => {
                let (taken, burst) = (budget.most_since(began), budget.burst);
                (taken + cost <= burst - 0.001).then(|| {
                    format!("{cost} refused, although at most {taken} of {burst} were taken")
                })
            }
        };
        if let Some(problem) = problem {
            state.condemn(format!("{key}: {problem}"));
        }
    }

    /// A call that was refused for another reason than this limit. In a Cluster it may have been charged for a moment.
    pub fn gave_back(&self, key: &str, cost: f64) {
        if let Some(budget) = lock(&self.0).budgets.get_mut(key) {
            budget.open -= cost;
            budget.take(cost);
        }
    }

    /// What was held of a limit is held no more.
    pub fn held_no_more(&self, key: &str, tokens: f64) {
        if let Some(budget) = lock(&self.0).budgets.get_mut(key) {
            budget.open -= tokens;
            budget.freed.push((Instant::now(), tokens));
        }
    }

    /// Tokens of a window of a calendar were taken.
    pub fn spent(&self, key: &str, window: i64, tokens: u32, limit: u32) {
        let mut state = lock(&self.0);
        let spent = state.spent.entry((key.into(), window)).or_default();
        *spent += tokens;
        let spent = *spent;
        if spent > limit {
            state.condemn(format!("{key}: {spent} of {limit} in one window"));
        }
    }

    /// Counts something by its name.
    pub fn note(&self, name: &str) {
        *lock(&self.0).noted.entry(name.into()).or_default() += 1;
    }

    pub fn noted(&self, name: &str) -> u64 {
        lock(&self.0).noted.get(name).copied().unwrap_or_default()
    }

    /// A process tells what all have to tell.
    pub fn agrees(&self, what: &'static str, value: u64) {
        let mut state = lock(&self.0);
        // A process may know what the servers have forgotten.
        if state.losses > 0 {
            return;
        }
        let first = *state.agreed.entry(what).or_insert(value);
        if first != value {
            let what = format!("{what}: {first} in one process, {value} in another");
            state.condemn(what);
        }
    }

    /// An item was handled for good.
    pub fn handled(&self, key: &str, since: u64) {
        let mut state = lock(&self.0);
        if state.losses == since {
            state.handled.insert(key.into());
        }
    }

    /// Whether an item was handled for good.
    pub fn is_handled(&self, key: &str) -> bool {
        lock(&self.0).handled.contains(key)
    }

    /// The work of a flight begins; returns how many run.
    pub fn begins(&self, key: &str) -> u32 {
        let mut state = lock(&self.0);
        let running = state.running.entry(key.into()).or_default();
        *running += 1;
        *running
    }

    pub fn ends(&self, key: &str) {
        if let Some(running) = lock(&self.0).running.get_mut(key) {
            *running -= 1;
        }
    }

    /// An error of a call: an outage is never a refusal, and no call fails without a reason.
    pub fn failed(&self, what: &str, error: &Error) {
        let kinds = [
            error.is_refused(),
            error.is_unavailable(),
            error.is_lost(),
            error.is_overloaded(),
        ];
        if kinds.iter().filter(|is_one| **is_one).count() > 1 {
            self.condemn(format!("{what}: several kinds at once: {error}"));
        }
        if error.is_invalid() || error.is_wrong_type() {
            self.condemn(format!("{what}: {error}"));
        }
    }
}

impl Budget {
    /// What was charged before says nothing about what comes after.
    fn forget(&mut self) {
        self.charged.clear();
        self.taken = f64::INFINITY;
    }

    /// The servers lose charges, or have older ones again. A process may remember that all was taken.
    fn lose(&mut self) {
        self.charged.clear();
        self.take(0.0);
        self.taken = self.taken.max(self.burst);
    }

    /// So much is taken now. What was taken before has been refilled meanwhile.
    fn take(&mut self, cost: f64) {
        let now = self.at.max(Instant::now());
        let refilled = self.per_second * (now - self.at).as_secs_f64();
        (self.taken, self.at) = ((self.taken - refilled).max(0.0) + cost, now);
    }

    /// The most that was taken at any time since then.
    fn most_since(&mut self, began: Instant) -> f64 {
        self.take(0.0);
        let freed = self.freed.iter().filter(|(at, _)| *at >= began);
        let freed: f64 = freed.map(|(_, tokens)| tokens).sum();
        self.taken + self.open + freed + self.per_second * began.elapsed().as_secs_f64()
    }

    /// Whether more was charged in any span than its length allows.
    fn exceeded(&mut self) -> Option<String> {
        let now = Instant::now();
        self.charged.sort_unstable_by_key(|(began, _)| *began);
        let keep = self.charged.len().saturating_sub(500);
        self.charged.drain(..keep);
        let mut sum = 0.0;
        self.charged.iter().rev().find_map(|(began, cost)| {
            sum += cost;
            let most = self.burst + self.per_second * (now - *began).as_secs_f64();
            // The server counts in whole µs, and the clocks of processes differ.
            (sum > most + 0.001 + self.per_second * SKEW.as_secs_f64())
                .then(|| format!("{sum} charged since {began:?}, at most {most}"))
        })
    }
}
