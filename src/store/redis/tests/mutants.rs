//! Mutants of the scripts. The agreement tests must find them.
//!
//! Some lack one of the commands and arguments that set or keep a ttl: every one of them must be found. The others
//! differ in one operator, number or statement (see [`faults`]): of a random sample of them, 95 % must be found, apart
//! from those that are known to behave like the script ([`faults::SAME`]).
//!
//! ```sh
//! cargo test --all-features --lib mutants -- --ignored --nocapture
//! ```

mod faults;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{env, fs};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use support::redis_server::RedisServer;
use support::scratch_dir::ScratchDir;

/// Names pieces of the library, and the files with their mutants: `queue=/tmp/queue.lua,grants=/tmp/grants.lua`.
const VARIABLE: &str = "TOWER_DISTRIBUTED_LUA_MUTANT";

/// Pieces, and the tests that should find their mutants.
const TESTS: &str = "\
leases: permits_agree mutexes_agree flights_agree
adapt: adaptive::
answer: agreement::busy flights_agree single_flight::
bloom: agreement::busy claims::claims_agree bloom
care: permits_agree lease::
claim: claims::claims_agree exact_claims_agree
clock: permits_agree
exact: agreement::busy exact_claims_agree dedupe::
filter: bloom operator
fleet: fleet:: lease:: mutex::
flows settings turns: agreement::busy agreement::evicted_flows permits_agree permits_with_classes_agree permits_with_bounds_agree
grants queue: agreement::busy permits_agree mutexes_agree reader_writer_locks_agree
holders: permits_agree reader_writer_locks_agree
mutex: agreement::busy mutexes_agree
permits: agreement::busy permits_agree
runs: permits_agree mutexes_agree reader_writer_locks_agree flights_agree claims_agree
rw_lock: agreement::busy reader_writer_locks_agree
serve: permits_agree mutexes_agree
several: lease:: mutex::
state token: permits_agree mutexes_agree reader_writer_locks_agree
bare bucket buckets calendar cancel change correct hold hold_step holds learn level reserve: bucket::tests::agreement";

/// Returns the tests that should find the mutants of a piece.
fn tests_of(piece: &str) -> impl Iterator<Item = &'static str> + use<> {
    let mut rows = TESTS.lines().filter_map(|row| row.split_once(": "));
    let row = rows.find(|(pieces, _)| pieces.split(' ').any(|other| other == piece));
    row.unwrap_or_else(|| panic!("no tests are named for {piece}"))
        .1
        .split(' ')
}

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Puts the mutants that the environment names into a script.
pub(in crate::store::redis) fn applied(script: String) -> String {
    let Ok(mutant) = env::var(VARIABLE) else {
        return script;
    };
    mutant.split(',').fold(script, |script, mutant| {
        let (piece, file) = mutant.split_once('=').unwrap();
        let original = fs::read_to_string(lua().join(piece).with_extension("lua")).unwrap();
        script.replace(&original, &fs::read_to_string(file).unwrap())
    })
}

/// Returns the end of the argument of a call that begins at `from`: the comma or parenthesis behind it.
fn end_of_argument(text: &str, from: usize) -> usize {
    let mut depth = 0;
    let ends = |(at, c): (usize, char)| {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' if depth > 0 => depth -= 1,
            ')' | '}' | ',' if depth == 0 => return Some(from + at),
            _ => {}
        }
        None
    };
    text[from..].char_indices().find_map(ends).unwrap()
}

/// Returns the mutants of a text, and the part that each lacks.
fn mutants(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut add = |at: usize, from: usize, to: usize, instead: &str| {
        let line = text[..at].lines().count();
        let begin = text[..at].rfind('\n').map_or(0, |at| at + 1);
        if text[begin..at].contains("--") {
            return;
        }
        let lacks = format!("{line}: {}", text[begin..].lines().next().unwrap().trim());
        found.push((format!("{}{instead}{}", &text[..from], &text[to..]), lacks));
    };
    for (at, call) in text.match_indices("call('PEXPIRE'") {
        let from = if text[..at].ends_with("redis.") {
            at - "redis.".len()
        } else {
            at
        };
        // A call that does nothing.
        add(at, from, at + call.find('(').unwrap(), "tostring");
    }
    for option in [", 'PX', ", ", 'PXAT', "] {
        for (at, _) in text.match_indices(option) {
            add(at + 1, at, end_of_argument(text, at + option.len()), "");
        }
    }
    for (at, option) in text.match_indices(", 'KEEPTTL'") {
        add(at + 1, at, at + option.len(), "");
    }
    found
}

/// Returns the pieces that have mutants, and their mutants.
fn all(mutants: fn(&str) -> Vec<(String, String)>) -> Vec<(String, Vec<(String, String)>)> {
    let list = |folder: PathBuf| {
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let of_folders = list(lua()).filter(|path| path.is_dir()).flat_map(list);
    let files = list(lua())
        .chain(of_folders)
        .filter(|path| path.extension().is_some_and(|it| it == "lua"));
    let pieces = files.map(|file| {
        let piece = file.strip_prefix(lua()).unwrap().with_extension("");
        (
            piece.to_str().unwrap().to_owned(),
            mutants(&fs::read_to_string(file).unwrap()),
        )
    });
    let mut pieces: Vec<_> = pieces.filter(|(_, mutants)| !mutants.is_empty()).collect();
    pieces.sort();
    pieces
}

/// How long the tests may take with a mutant: some never end.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs tests with a mutant until one fails, or does not end. Returns whether one did.
fn is_found(piece: &str, mutant: &Path) -> bool {
    let mut run = Command::new(env::current_exe().unwrap());
    let variable = format!("{piece}={}", mutant.display());
    run.args(tests_of(piece))
        .env(VARIABLE, variable)
        .env("SIZE", "2")
        // It chooses the sample. The tests of each mutant try sequences of their own.
        .env_remove("SEED")
        .env("RUST_BACKTRACE", "0");
    let mut child = run
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        output
            .lines()
            .map_while(Result::ok)
            .try_for_each(|it| sender.send(it))
    });
    let end = Instant::now() + LIMIT;
    let is_found = loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                assert!(line != "running 0 tests", "no test is named for {piece}");
                if line.ends_with("... FAILED") {
                    break true;
                }
            }
            Err(error) => break error == RecvTimeoutError::Timeout,
        }
    };
    let _ = child.kill();
    child.wait().unwrap();
    drop(lines);
    let _ = reader.join().unwrap();
    is_found
}

/// Tries the mutants of the pieces that `MUTANTS` names (a part of the name; all, if it is not set). Returns how many
/// there were, and those that were not found.
async fn tried(pieces: Vec<(String, Vec<(String, String)>)>) -> (usize, Vec<String>) {
    let only = env::var("MUTANTS").unwrap_or_default();
    let pieces: Vec<_> = pieces
        .into_iter()
        .filter(|(piece, _)| piece.contains(&only))
        .collect();
    let (server, folder) = (RedisServer::start().await, ScratchDir::new());
    // A test that fails without a mutant proves nothing.
    let tests = pieces.iter().flat_map(|(piece, _)| tests_of(piece));
    let sound = Command::new(env::current_exe().unwrap())
        .args(tests)
        .env_remove("SEED")
        .output()
        .unwrap();
    assert!(
        sound.status.success(),
        "without mutants:\n{}",
        String::from_utf8_lossy(&sound.stdout)
    );
    let (mut count, mut alive) = (0, Vec::new());
    for (piece, mutants) in pieces {
        for (mutant, lacks) in mutants {
            // A mutant that does not compile would be found for that, so it is none.
            if let Err(error) = server.query::<String>(&["SCRIPT", "LOAD", &mutant]) {
                println!("does not compile {piece}.lua:{lacks}: {error}");
                continue;
            }
            count += 1;
            let file = folder.path().join(format!("{count}.lua"));
            fs::write(&file, &mutant).unwrap();
            if is_found(&piece, &file) {
                println!("found {piece}.lua:{lacks}");
            } else {
                println!("NOT FOUND {piece}.lua:{lacks}");
                alive.push(format!("{piece}.lua:{lacks}"));
            }
        }
    }
    println!("mutants: {count}, {} found", count - alive.len());
    (count, alive)
}

/// Takes minutes. `MUTANTS=queue` tries the mutants of one piece.
#[tokio::test]
#[ignore = "part of the long run"]
async fn every_missing_ttl_is_found() {
    let (count, alive) = tried(all(mutants)).await;
    assert!(count > 0 && alive.is_empty(), "{}", alive.join("\n"));
}

/// Takes a quarter of an hour. `MUTANTS=queue` tries the mutants of one piece, `MOST=50` that many of each piece,
/// `SEED` another sample.
#[tokio::test]
#[ignore = "part of the long run"]
async fn faults_are_found() {
    let number = |name, default| env::var(name).map_or(default, |text| text.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(number("SEED", 1));
    let most = number("MOST", 3) as usize;
    let sampled = all(faults::mutants)
        .into_iter()
        .map(|(piece, mut mutants)| {
            mutants.retain(|(_, change)| !faults::is_same(&piece, change));
            mutants.shuffle(&mut rng);
            mutants.truncate(most);
            (piece, mutants)
        });
    let (count, alive) = tried(sampled.collect()).await;
    let killed = 1.0 - alive.len() as f64 / count as f64;
    println!("figure mutants-killed-lua {killed:.3}");
    assert!(killed >= 0.95, "{}", alive.join("\n"));
}
