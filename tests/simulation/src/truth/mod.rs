//! The simulated server is held to the truth: random commands, random calls of functions, and what the client has sent in worlds,
//! run beside a real server whose clock is set to the same times. Equal replies, and equal state after each sequence.

mod functions;
mod random;
mod real;

use std::collections::BTreeSet;

use self::random::Random;
use self::real::Real;
use crate::network::micros;
use crate::server::reply::{Bytes, Reply};
use crate::server::{Server, Session, lock};
use crate::world::recorded;

/// A request, and the state of the server then.
#[derive(Clone, Debug)]
pub struct Request {
    pub micros: i64,
    pub is_full: bool,
    pub arguments: Vec<Bytes>,
}

/// What a server is asked before a sequence, and of each key after it.
const START: &str = "FLUSHALL, SCRIPT FLUSH, FUNCTION FLUSH, CONFIG SET maxmemory 0";
const STATE: &str = "TYPE, PTTL, GET, ZRANGE 0 -1 WITHSCORES, HGETALL, LRANGE 0 -1";
/// How many requests of each kind are in a sequence, and the memory is full at one of how many.
const COMMANDS: (usize, usize) = (400, 1000);
const FUNCTIONS: (usize, usize) = (200, 10);

/// Compares so many sequences of random commands, and the requests of as many worlds.
pub fn compare(count: u64, from: u64, program: &str) -> Result<bool, String> {
    let mut real = Real::start(program)?;
    if !real.follows_its_clock()? {
        if real.is_simulated {
            return Err(format!("the clock of {program} cannot be set"));
        }
        println!("{program} takes the time from its processor, so that nothing can be compared");
        return Ok(true);
    }
    let (mut differ, mut requests) = (0, 0);
    let on_functions = |random: &mut Random, _| random.on_functions();
    for seed in from..from + count {
        let sequences = [
            ("random commands", random(seed, COMMANDS, Random::command)),
            ("functions", random(seed, FUNCTIONS, on_functions)),
            ("a world", recorded(seed)),
        ];
        for (what, sequence) in sequences {
            requests += sequence.len();
            if let Some(difference) = difference(&mut real, &sequence)? {
                differ += 1;
                println!("seed {seed}, {what}: {difference}");
            }
        }
    }
    println!(
        "{count} sequences of each kind from seed {from}, {requests} requests: {differ} differ from {program}"
    );
    Ok(differ == 0)
}

fn random(
    seed: u64,
    (count, one_of): (usize, usize),
    command: impl Fn(&mut Random, i64) -> Vec<Bytes>,
) -> Vec<Request> {
    let (mut random, mut micros) = (Random(seed), micros());
    let next = |_| {
        micros += random.below(100_000) as i64;
        Request {
            micros,
            is_full: random.below(one_of) == 0,
            arguments: command(&mut random, micros),
        }
    };
    (0..count).map(next).collect()
}

fn words(words: &str) -> Vec<Bytes> {
    words.split(' ').map(Bytes::from).collect()
}

/// Runs a sequence on both. Returns the first difference.
fn difference(real: &mut Real, sequence: &[Request]) -> Result<Option<String>, String> {
    let mut simulated = Server::new().map_err(|error| error.to_string())?;
    let mut session = Session::default();
    // Some servers have no functions.
    for command in START.split(", ") {
        real.ask(&words(command))?;
    }
    let mut was_full = false;
    for (nth, request) in sequence.iter().enumerate() {
        if request.is_full != was_full {
            was_full = request.is_full;
            let limit = u8::from(was_full);
            real.ask(&words(&format!("CONFIG SET maxmemory {limit}")))?;
        }
        real.set_time(request.micros)?;
        // Some servers read their clock once they have answered something.
        real.ask(&words("PING"))?;
        simulated.set_time(request.micros);
        simulated.condition.is_full = was_full;
        let theirs = comparable(real.ask(&request.arguments)?);
        if real.has_no(&theirs) {
            continue;
        }
        let ours = comparable(simulated.run(&mut session, &request.arguments).remove(0));
        let is_unordered = request.arguments[0].eq_ignore_ascii_case(b"FUNCTION");
        let [ours, theirs] =
            [ours, theirs].map(|reply| if is_unordered { sorted(reply) } else { reply });
        lock(&simulated.database).published.clear();
        if !real.says(&ours, &theirs) {
            let what = format!("request {nth}, {}", told(&request.arguments));
            return Ok(Some(format!("{what}: {ours:?}, not {theirs:?}")));
        }
    }
    real.ask(&words("CONFIG SET maxmemory 0"))?;
    simulated.condition.is_full = false;
    states(real, &mut simulated, &mut session)
}

/// Compares what is stored.
fn states(
    real: &mut Real,
    simulated: &mut Server,
    session: &mut Session,
) -> Result<Option<String>, String> {
    lock(&simulated.database).sweep();
    let mut keys: BTreeSet<Bytes> = lock(&simulated.database).entries.keys().cloned().collect();
    if let Reply::Array(all) = real.ask(&words("KEYS *"))? {
        keys.extend(all.into_iter().filter_map(|key| match key {
            Reply::Bulk(key) => Some(key),
            _ => None,
        }));
    }
    for key in keys {
        for command in STATE.split(", ") {
            let mut words = words(command);
            words.insert(1, key.clone());
            let replies = [simulated.run(session, &words).remove(0), real.ask(&words)?];
            let is_hash = command == "HGETALL";
            let in_order = |reply| if is_hash { in_order(reply) } else { reply };
            let [ours, theirs] = replies.map(comparable).map(in_order);
            if !real.says(&ours, &theirs) {
                let what = format!("state, {}", told(&words));
                return Ok(Some(format!("{what}: {ours:?}, not {theirs:?}")));
            }
        }
    }
    Ok(None)
}

/// The fields of a hash in the order of their names.
fn in_order(reply: Reply) -> Reply {
    let Reply::Array(all) = reply else {
        return reply;
    };
    let mut pairs: Vec<_> = all.chunks(2).map(<[Reply]>::to_vec).collect();
    pairs.sort_by_key(|pair| format!("{pair:?}"));
    Reply::Array(pairs.concat())
}

/// A reply without what may differ: the place in a script.
fn comparable(reply: Reply) -> Reply {
    match reply {
        Reply::Error(text) => {
            let text = text.split(" script: ").next().unwrap_or_default();
            Reply::Error(text.trim_end_matches(", ").trim().into())
        }
        Reply::Map(pairs) => {
            let flat = pairs.into_iter().flat_map(|(field, value)| [field, value]);
            Reply::Array(flat.map(comparable).collect())
        }
        Reply::Array(all) => Reply::Array(all.into_iter().map(comparable).collect()),
        other => other,
    }
}

/// A reply whose order is that of a hash.
fn sorted(reply: Reply) -> Reply {
    let Reply::Array(all) = reply else {
        return reply;
    };
    let mut all: Vec<_> = all.into_iter().map(sorted).collect();
    all.sort_by_key(|one| format!("{one:?}"));
    Reply::Array(all)
}

fn told(arguments: &[Bytes]) -> String {
    let told = |word: &Bytes| word[..word.len().min(60)].escape_ascii().to_string();
    arguments.iter().map(told).collect::<Vec<_>>().join(" ")
}
