//! Mutants of the scripts: each lacks one of the commands and arguments that set or keep a ttl. The tests of agreement
//! must find every one. This shows that they would find a ttl that is forgotten.
//!
//! ```sh
//! cargo test --all-features --lib mutants -- --ignored --nocapture
//! ```

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use support::redis_server::RedisServer;
use support::scratch_dir::ScratchDir;

/// Names a piece of the scripts, and the file with its mutant: `lib/queue=/tmp/queue.lua`.
const VARIABLE: &str = "TOWER_DISTRIBUTED_LUA_MUTANT";

/// The tests that should find the mutants of a piece.
const TESTS: [(&str, &[&str]); 21] = [
    ("dedupe/open", &["dedupe::exact::tests"]),
    ("lib/answer", &["agreement::busy", "flights_agree"]),
    ("lib/bare", &["token_bucket::agreement"]),
    ("lib/bloom", &["agreement::busy", "claims::claims_agree"]),
    ("lib/bucket", &["token_bucket::agreement"]),
    ("lib/exact", &["agreement::busy", "exact_claims_agree"]),
    ("lib/hold_step", &["token_bucket::agreement"]),
    ("lib/mutex", &["agreement::busy", "mutexes_agree"]),
    ("lib/permits", &["agreement::busy", "permits_agree"]),
    ("lib/queue", &["agreement::busy", "permits_agree"]),
    ("lib/quick", &["token_bucket::agreement"]),
    ("lib/quick_answer", &["flights_agree"]),
    ("lib/quick_hold", &["token_bucket::agreement"]),
    ("lib/quick_holds", &["token_bucket::agreement"]),
    ("lib/quick_mutex", &["mutexes_agree"]),
    ("lib/quick_outcome", &["flights_agree"]),
    ("lib/quick_permits", &["permits_agree"]),
    ("lib/quick_rw_lock", &["reader_writer_locks_agree"]),
    ("lib/rw_lock", &["agreement::busy", "reader_writer_locks_agree"]),
    ("lib/several", &["token_bucket::agreement"]),
    ("token_bucket/learn", &["token_bucket::agreement::learned"]),
];

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Puts the mutant that the environment names into a script.
pub(super) fn applied(script: String) -> String {
    let Ok(mutant) = env::var(VARIABLE) else { return script };
    let (piece, file) = mutant.split_once('=').unwrap();
    let original = fs::read_to_string(lua().join(piece).with_extension("lua")).unwrap();
    script.replace(&original, &fs::read_to_string(file).unwrap())
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

/// Returns the mutants of a text, and what each lacks.
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
        let from = if text[..at].ends_with("redis.") { at - "redis.".len() } else { at };
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

/// The pieces that have mutants, with them.
fn all() -> Vec<(String, Vec<(String, String)>)> {
    let folders = fs::read_dir(lua()).unwrap().map(|folder| folder.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
    let pieces = files.map(|file| {
        let piece = file.strip_prefix(lua()).unwrap().with_extension("");
        (piece.to_str().unwrap().to_owned(), mutants(&fs::read_to_string(file).unwrap()))
    });
    let mut pieces: Vec<_> = pieces.filter(|(_, mutants)| !mutants.is_empty()).collect();
    pieces.sort();
    pieces
}

#[test]
fn mutants_lack_one_ttl_each() {
    let text = "-- call('PEXPIRE', x)\nredis.call('PEXPIRE', k, f(1, 2))\ncall('SET', k, v, 'PX', f(1, {2, 3}), 'NX')\n";
    let mutated: Vec<_> = mutants(text).into_iter().map(|(mutant, _)| mutant).collect();
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(
        mutated,
        [
            format!("{}\ntostring('PEXPIRE', k, f(1, 2))\n{}\n", lines[0], lines[2]),
            format!("{}\n{}\ncall('SET', k, v, 'NX')\n", lines[0], lines[1]),
        ]
    );
    for (piece, mutants) in all() {
        assert!(TESTS.iter().any(|(name, _)| *name == piece), "no tests are named for {piece}: {mutants:?}");
    }
}

/// Runs tests with a mutant until one fails. Returns whether one did.
fn is_found(tests: &[&str], piece: &str, mutant: &Path) -> bool {
    let mut run = Command::new(env::current_exe().unwrap());
    run.args(tests).env(VARIABLE, format!("{piece}={}", mutant.display())).env("RUST_BACKTRACE", "0");
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let is_found = lines.any(|line| {
        assert!(line != "running 0 tests", "no test is named {tests:?}");
        line.ends_with("... FAILED")
    });
    let _ = child.kill();
    child.wait().unwrap();
    is_found
}

/// Takes minutes. `MUTANTS=lib/queue` tries the mutants of one piece.
#[tokio::test]
#[ignore = "part of the long run"]
async fn every_mutant_is_found() {
    let only = env::var("MUTANTS").unwrap_or_default();
    let (server, folder) = (RedisServer::start().await, ScratchDir::new());
    let (mut removed, mut alive) = (0, Vec::new());
    // No mutant is found by a test that fails without one.
    let tests = TESTS.iter().filter(|(piece, _)| piece.contains(&only)).flat_map(|(_, tests)| *tests);
    let sound = Command::new(env::current_exe().unwrap()).args(tests).output().unwrap();
    assert!(sound.status.success(), "without mutants:\n{}", String::from_utf8_lossy(&sound.stdout));
    for (piece, mutants) in all().into_iter().filter(|(piece, _)| piece.contains(&only)) {
        let (_, tests) = TESTS.iter().find(|(name, _)| *name == piece).unwrap();
        for (mutant, lacks) in mutants {
            removed += 1;
            let file = folder.path().join(format!("{removed}.lua"));
            fs::write(&file, &mutant).unwrap();
            // A mutant that does not compile would be found for that.
            let compiled = server.cli(&["SCRIPT", "LOAD", &mutant]);
            assert_eq!(compiled.trim().len(), 40, "{piece}.lua:{lacks}: {compiled}");
            if is_found(tests, &piece, &file) {
                println!("found {piece}.lua:{lacks}");
            } else {
                println!("NOT FOUND {piece}.lua:{lacks}");
                alive.push(format!("{piece}.lua:{lacks}"));
            }
        }
    }
    println!("mutants: {removed} removed, {} found", removed - alive.len());
    assert!(alive.is_empty(), "{}", alive.join("\n"));
}
