//! What all contestants do, and how they compare.

use crate::child::{self, Child};
use crate::common::Bench;
use crate::common::report::{Better, Versus, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::contestants::{Contestant, Peer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    OneKey,
    ManyKeys,
    LockEach,
    LockOne,
    PairsOne,
}

impl Task {
    const ALL: [Self; 5] = [
        Self::OneKey,
        Self::ManyKeys,
        Self::LockEach,
        Self::LockOne,
        Self::PairsOne,
    ];

    /// As the programs of the peers call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneKey => "one-key",
            Self::ManyKeys => "many-keys",
            Self::LockEach => "lock-each",
            Self::LockOne => "lock-one",
            Self::PairsOne => "pairs-one",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name)
    }

    fn title(self) -> &'static str {
        match self {
            Self::OneKey => "decisions/s, one key, admitted, 256 callers",
            Self::ManyKeys => "decisions/s, 100 000 keys, admitted, 256 callers",
            Self::LockEach => "pairs of lock and unlock/s, a key each, 2 processes × 16 callers",
            Self::LockOne => "hand-overs/s of one lock between callers, 2 processes × 16 callers",
            Self::PairsOne => {
                "pairs of lock and unlock/s, one lock, also by one caller in a row, 2 processes × 16 callers"
            }
        }
    }

    fn figure(self) -> &'static str {
        match self {
            Self::OneKey => "one-key-vs-rate-limiter-flexible",
            Self::ManyKeys => "many-keys-vs-rate-limiter-flexible",
            Self::LockEach => "uncontended-lock-vs-redis-py",
            Self::LockOne => "contended-lock-vs-redis-py",
            Self::PairsOne => "contended-pairs-vs-redis-py",
        }
    }

    fn processes(self) -> usize {
        if self.is_lock() { 2 } else { 1 }
    }

    /// Of each process.
    pub fn callers(self) -> usize {
        if self.is_lock() { 16 } else { 256 }
    }

    pub fn is_lock(self) -> bool {
        matches!(self, Self::LockEach | Self::LockOne | Self::PairsOne)
    }

    /// The others. The first is the one that the figure is about.
    fn peers(self) -> &'static [Peer] {
        if self.is_lock() {
            &[Peer::RedisPy, Peer::RedisPyEager]
        } else {
            &[
                Peer::RateLimiterFlexible,
                Peer::RateLimiterFlexiblePipelined,
            ]
        }
    }
}

pub fn run(bench: &Bench) {
    let wanted = |task: &Task| bench.settings.wants(task.figure());
    for task in Task::ALL.into_iter().filter(wanted) {
        let peers: Vec<_> = task
            .peers()
            .iter()
            .copied()
            .filter(|peer| peer.is_there())
            .collect();
        if peers.is_empty() {
            note(format!(
                "no {}: {}",
                task.figure(),
                task.peers()[0].missing()
            ));
            continue;
        }
        compare(bench, task, &peers);
    }
}

fn compare(bench: &Bench, task: Task, peers: &[Peer]) {
    let contestants: Vec<_> = std::iter::once(Contestant::Ours)
        .chain(peers.iter().map(|&peer| peer.into()))
        .collect();
    let mut rates = vec![Vec::new(); contestants.len()];
    for round in 0..bench.settings.rounds {
        for turn in 0..contestants.len() {
            let at = (turn + round) % contestants.len();
            rates[at].push(measure(bench, task, contestants[at]));
        }
    }
    let mut table = Table::new(
        task.title(),
        ["contestant", "per second", "this crate ÷ it"],
    );
    let ratio = |at: usize| {
        median(
            rates[0]
                .iter()
                .zip(&rates[at])
                .map(|(ours, theirs)| ours / theirs),
        )
    };
    for (at, contestant) in contestants.iter().enumerate() {
        let per_second = median(rates[at].iter().copied()).round();
        table.row([
            contestant.title().to_owned(),
            number(per_second),
            number(ratio(at)),
        ]);
    }
    table.print();
    // The best of the peers' settings.
    let best = (1..contestants.len()).min_by(|&one, &other| ratio(one).total_cmp(&ratio(other)));
    let Some(best) = best else { return };
    Versus {
        name: task.figure(),
        measures: task.title(),
        ours: median(rates[0].iter().copied()),
        peer: contestants[best].title(),
        theirs: median(rates[best].iter().copied()),
        ratio: ratio(best),
        better: Better::Higher,
    }
    .tell();
}

/// Operations per second.
fn measure(bench: &Bench, task: Task, contestant: Contestant) -> f64 {
    bench.server.empty();
    let commands = (0..task.processes())
        .map(|_| contestant.command(task, &bench.server.url, bench.settings.length));
    let mut children = child::start_all(commands);
    if task.is_lock() {
        crate::locks::per_second(task, &mut children)
    } else {
        per_second(&mut children[0])
    }
}

/// From a line with the number of decisions and the ns that they took.
fn per_second(child: &mut Child) -> f64 {
    let told: Vec<f64> = child.numbers();
    assert_eq!(told.len(), 2, "the contestant has failed");
    told[0] / (told[1] / 1e9)
}
