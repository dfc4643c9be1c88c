//! Each script belongs to one operation, says in its header what it does, and compiles.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::redis_server::RedisServer;

/// The files below a folder that have an extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path, extension) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The scripts: `token_bucket/reserve` and its text. Not the shared pieces.
fn scripts() -> Vec<(String, String)> {
    let lua = root().join("lua");
    let scripts = files(&lua, "lua").into_iter().map(|path| {
        let name = path.strip_prefix(&lua).unwrap().with_extension("");
        (name.to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
    });
    scripts.filter(|(name, _)| !name.starts_with("lib/")).collect()
}

/// What changes a key, in a script or by a shared piece.
const WRITES: [&str; 12] = [
    "save(",
    " save)",
    "'DEL'",
    "'SET'",
    "'ZADD'",
    "extend(",
    "prolong(",
    "hold(",
    "sweep(",
    "enter(",
    "clear(",
    "kind.write",
];

#[test]
fn headers_say_what_a_script_does() {
    for (name, text) in scripts() {
        assert!(text.starts_with(&format!("-- {name}: ")), "{name} does not begin with its name");
        let header: Vec<_> = text.lines().take_while(|line| line.starts_with("--")).collect();
        for part in ["-- KEYS", "-- ARGV", "-- returns", "-- writes"] {
            assert!(header.iter().any(|line| line.starts_with(part)), "{name} has no {part:?} in its header");
        }
        let writes = WRITES.iter().any(|write| text.contains(write));
        let says_nothing =
            header.iter().any(|line| line.ends_with("nothing") && line.starts_with("-- writes"));
        assert_eq!(writes, !says_nothing, "{name} writes or does not, and says otherwise");
    }
}

#[test]
fn each_script_belongs_to_one_operation() {
    let sources: Vec<_> =
        files(&root().join("src"), "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for (name, _) in scripts() {
        let name = format!("\"{name}\"");
        let uses = sources.iter().flat_map(|source| source.split("script!(").skip(1));
        assert_eq!(uses.filter(|rest| rest.trim_start().starts_with(&name)).count(), 1, "{name}");
    }
}

#[tokio::test]
async fn scripts_compile_with_every_shared_piece() {
    let server = RedisServer::start().await;
    let lib = |name: &str| fs::read_to_string(root().join("lua/lib").join(name)).unwrap();
    for (name, text) in scripts() {
        let pieces: &[&[&str]] = match name.split('/').next() {
            Some("lease") => &[
                &["lease.lua", "permits.lua", "queue.lua"],
                &["lease.lua", "mutex.lua", "queue.lua"],
                &["lease.lua", "mutex.lua", "answer.lua", "queue.lua"],
                &["bloom.lua", "lease.lua", "mutex.lua", "claim.lua", "queue.lua"],
                &["lease.lua", "rw_lock.lua", "queue.lua"],
            ],
            Some("bloom_filter") => &[&["bloom.lua"]],
            _ if name == "token_bucket/reserve" => &[&["bucket.lua"]],
            _ => &[&["bucket.lua", "runs.lua"]],
        };
        let more: &[&str] = match name.as_str() {
            "lease/acquire_release" => &["acquire.lua", "release.lua"],
            _ => &[],
        };
        for pieces in pieces {
            let pieces: String = pieces.iter().chain(more).map(|piece| lib(piece)).collect();
            let sha = server.cli(&["SCRIPT", "LOAD", &format!("{}{pieces}{text}", lib("clock.lua"))]);
            assert_eq!(sha.trim().len(), 40, "{name}: {sha}");
        }
    }
}
