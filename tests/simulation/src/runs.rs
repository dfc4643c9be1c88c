//! What the program does: many worlds, one of them, or the comparison with a real server.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::server::{coverage, faults, lock};
use crate::world::{Outcome, Play, play};
use crate::{os, truth};

const HELP: &str = "\
The real client on simulated servers, in virtual time. A world is made from a seed: the same seed is the same world.

  simulation [--worlds N | --wall SECONDS] [--from SEED] [--seconds N] [--threads N]
      Worlds of N virtual seconds each (10), from a seed that the machine draws, until N worlds or SECONDS of the wall clock
      are over (100 worlds), or with --first a judge condemns one. Fails, and prints the seeds, where a judge condemns a world.
      With --change TEXT --to TEXT, the scripts have a fault, which the worlds should find.
      With --coverage, tells which functions and lines of the scripts they ran.
  simulation --seed SEED [--seconds N] [--trace]
      One world; with --trace, all that happens in it.
  simulation --same N [--from SEED] [--seconds N]
      Whether N worlds are the same again: in another order, and on one thread as on two. Prints a digest of all of them.
  simulation --truth N [--from SEED] [--server redis-server]
      N random sequences of commands, each beside a real server: equal replies, equal state.
";

/// A world that takes longer than this of the wall clock is stuck.
const STUCK: Duration = Duration::from_secs(300);

/// The options, by name.
struct Options(BTreeMap<String, String>);

impl Options {
    fn read() -> Result<Self, String> {
        let (mut options, mut words) = (BTreeMap::new(), std::env::args().skip(1).peekable());
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word:?} is no option"))?;
            let value = words
                .next_if(|next| !next.starts_with("--"))
                .unwrap_or_default();
            options.insert(name.to_owned(), value);
        }
        Ok(Self(options))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let read = |text: &String| {
            text.parse()
                .map_err(|_| format!("--{name} must be a number, is {text:?}"))
        };
        self.0.get(name).map(read).transpose()
    }
}

pub fn main() -> ExitCode {
    match Options::read().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool, String> {
    let seconds = options.number("seconds")?.unwrap_or(10);
    let from = options.number("from")?.unwrap_or_else(drawn);
    if options.has("help") {
        println!("{HELP}");
        return Ok(true);
    }
    if options.has("coverage") {
        coverage::turn_on();
    }
    if let (Some(from), Some(to)) = (options.0.get("change"), options.0.get("to")) {
        faults::set(from.clone(), to.clone());
    }
    // Some statics draw once for all worlds.
    play(0, Play::of(1));
    if let Some(seed) = options.number("seed")? {
        let outcome = play(
            seed,
            Play {
                is_printed: options.has("trace"),
                ..Play::of(seconds)
            },
        );
        println!("{outcome:#?}");
        return Ok(outcome.broken.is_empty());
    }
    if let Some(count) = options.number("truth")? {
        let server = options
            .0
            .get("server")
            .map_or("redis-server", String::as_str);
        return truth::compare(count, from, server);
    }
    if let Some(count) = options.number("same")? {
        return Ok(are_same(from, count, seconds));
    }
    many(options, from, seconds)
}

/// A seed that the machine draws.
fn drawn() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer has eight bytes. Outside of a world the system draws them.
    unsafe { os::getrandom(bytes.as_mut_ptr(), bytes.len(), 0) };
    u64::from_le_bytes(bytes) >> 24
}

/// The sums over some worlds.
#[derive(Default)]
struct Sum {
    worlds: u64,
    broken: Vec<u64>,
    events: u64,
    counts: BTreeMap<&'static str, u64>,
    commands: BTreeMap<&'static str, u64>,
    digests: BTreeMap<u64, u64>,
}

impl Sum {
    fn add(&mut self, outcome: Outcome) {
        self.worlds += 1;
        self.events += outcome.events;
        self.digests.insert(outcome.seed, outcome.digest);
        for (what, count) in outcome.counts {
            *self.counts.entry(what).or_default() += count;
        }
        for (what, count) in outcome.commands {
            *self.commands.entry(what).or_default() += count;
        }
        if !outcome.broken.is_empty() {
            println!("seed {}:", outcome.seed);
            outcome
                .broken
                .iter()
                .take(3)
                .for_each(|what| println!("  {what}"));
            self.broken.push(outcome.seed);
        }
    }

    fn tell(&self, seconds: u64, took: Duration) {
        let (worlds, took) = (self.worlds, took.as_secs_f64());
        println!("{:?}\n{:?}", self.counts, self.commands);
        println!(
            "{worlds} worlds of {seconds} s in {took:.1} s: {:.1} a second, {} events, {} broken",
            worlds as f64 / took,
            self.events,
            self.broken.len()
        );
    }
}

/// Plays worlds on some threads. A world that is stuck ends the program.
fn played(
    sum: &Mutex<Sum>,
    seeds: &[u64],
    seconds: u64,
    threads: u64,
    goes_on: impl Fn() -> bool + Sync,
) {
    let next = AtomicU64::new(0);
    let begun = Mutex::new(BTreeMap::<u64, Instant>::new());
    std::thread::scope(|scope| {
        let work = || {
            while goes_on()
                && let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize)
            {
                lock(&begun).insert(*seed, Instant::now());
                let outcome = play(*seed, Play::of(seconds));
                lock(&begun).remove(seed);
                lock(sum).add(outcome);
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            let stuck = lock(&begun)
                .iter()
                .find(|(_, at)| at.elapsed() > STUCK)
                .map(|(seed, _)| *seed);
            if let Some(seed) = stuck {
                println!("seed {seed}: the world does not end within {STUCK:?} of the wall clock");
                std::process::exit(1);
            }
        }
    });
}

/// Plays many worlds. Returns whether none is condemned.
fn many(options: &Options, from: u64, seconds: u64) -> Result<bool, String> {
    let wall = options.number("wall")?.map(Duration::from_secs);
    let all = options
        .number("worlds")?
        .unwrap_or(if wall.is_some() { u64::MAX } else { 100 });
    let threads = options.number("threads")?.unwrap_or(2);
    println!("worlds of {seconds} s from seed {from}");
    let began = Instant::now();
    let (sum, mut worlds) = (Mutex::new(Sum::default()), 0);
    let goes_on = || {
        let has_found = options.has("first") && !lock(&sum).broken.is_empty();
        !has_found && wall.is_none_or(|wall| began.elapsed() < wall)
    };
    while worlds < all && goes_on() {
        let first = from + worlds;
        let seeds: Vec<_> = (first..first + 1000.min(all - worlds)).collect();
        played(&sum, &seeds, seconds, threads, goes_on);
        worlds += seeds.len() as u64;
    }
    let sum = lock(&sum);
    sum.tell(seconds, began.elapsed());
    if !faults::is_made() {
        return Err("no script that ran has the text of --change".into());
    }
    if options.has("coverage") {
        coverage::report().map_err(|error| format!("the scripts cannot be read: {error}"))?;
    }
    Ok(sum.broken.is_empty())
}

fn are_same(from: u64, count: u64, seconds: u64) -> bool {
    let seeds: Vec<_> = (from..from + count).collect();
    let turned: Vec<_> = seeds.iter().rev().copied().collect();
    let digests = |seeds: &[u64], threads| {
        let sum = Mutex::new(Sum::default());
        played(&sum, seeds, seconds, threads, || true);
        std::mem::take(&mut lock(&sum).digests)
    };
    let (one, other) = (digests(&seeds, 2), digests(&turned, 1));
    let differ: Vec<_> = one
        .iter()
        .filter(|(seed, digest)| other.get(seed) != Some(digest))
        .collect();
    let digest = one.values().fold(0_u64, |all, digest| {
        let mut state = all ^ digest;
        os::draw(&mut state)
    });
    println!(
        "{} of {count} worlds are the same again from seed {from}; all of them: {digest:016x}",
        seeds.len() - differ.len()
    );
    differ
        .iter()
        .take(5)
        .for_each(|(seed, _)| println!("  seed {seed} differs"));
    differ.is_empty()
}
