//! Each script belongs to one operation, says in its header what it does, compiles, and has nothing that luacheck warns of.
//! The same holds for the operations of the library.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

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

/// All Lua files: `token_bucket/reserve` and its text.
fn lua_files() -> Vec<(String, String)> {
    let lua = root().join("lua");
    let texts = files(&lua, "lua").into_iter().map(|path| {
        let name = path.strip_prefix(&lua).unwrap().with_extension("");
        (name.to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
    });
    texts.collect()
}

/// The scripts. Not the shared pieces, and not the library.
fn scripts() -> Vec<(String, String)> {
    lua_files().into_iter().filter(|(name, _)| name.contains('/') && !name.starts_with("lib/")).collect()
}

/// The pieces of the library, in their order.
fn library() -> Vec<(String, String)> {
    let source = fs::read_to_string(root().join("src/store/redis/library.rs")).unwrap();
    let (_, list) = source.split_once("= pieces![").unwrap();
    let (list, _) = list.split_once("];").unwrap();
    let names = list.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
    let files: BTreeMap<_, _> = lua_files().into_iter().collect();
    names.map(|name| (name.to_owned(), files[name].clone())).collect()
}

/// What changes a key, in a script or by a shared piece.
const WRITES: [&str; 15] = [
    "save(",
    "on.save)",
    "on.save, ",
    "'DEL'",
    "'HDEL'",
    "'RPUSH'",
    "'SET'",
    "'ZADD'",
    "extend(",
    "hold(",
    "new_waiters(",
    "sweep(",
    "enter(",
    "grant(",
    "clear(",
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

/// No script can use two times, or that of a client, and each returns the time that it used.
#[test]
fn the_clock_is_read_in_one_place_and_returned() {
    let reads = |path: &PathBuf| fs::read_to_string(path).unwrap().contains("'TIME'");
    let clocks = ["lua/clock.lua", "lua/lib/clock.lua"].map(|path| root().join(path));
    let read: Vec<_> = files(&root().join("lua"), "lua").into_iter().filter(reads).collect();
    assert_eq!(read.iter().collect::<BTreeSet<_>>(), clocks.iter().collect());
    for (name, text) in scripts() {
        let returns = text.lines().find_map(|line| line.strip_prefix("-- returns")).unwrap();
        assert!(returns.trim_start().starts_with("now (µs)"), "{name} returns {returns}");
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

/// Each operation of the library is one that a source names, and the other way round.
#[test]
fn each_operation_of_the_library_is_named_by_a_source() {
    let text: String = library().into_iter().map(|(_, text)| text).collect();
    let there: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("function operations.")?.split('(').next().map(str::to_owned))
        .collect();
    let sources: String =
        files(&root().join("src"), "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let named = sources.split("function!(").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let named = named.filter(|name| !name.contains(' '));
    assert_eq!(there, named.map(str::to_owned).collect());
}

/// What a source names in `script!(…)`, each time.
fn joins(source: &str) -> Vec<Vec<String>> {
    let lists = source.split("script!(").skip(1).filter_map(|rest| rest.split_once(')'));
    let names = |list: &str| list.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    lists.map(|(list, _)| names(list)).filter(|names| !names.is_empty()).collect()
}

/// Every script as Redis runs it, and a name for it: the clock, the shared pieces, and its own file.
fn joined() -> BTreeMap<String, String> {
    let sources: String =
        files(&root().join("src"), "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let lua = |name: &str| fs::read_to_string(root().join("lua").join(name).with_extension("lua")).unwrap();
    let text = |names: &[String]| {
        let (own, pieces) = names.split_first().unwrap();
        let files = iter::once("lib/clock").chain(pieces.iter().map(String::as_str)).chain([&**own]);
        (own.replace('/', "-"), files.map(lua).collect())
    };
    joins(&sources).iter().map(|names| text(names)).collect()
}

#[tokio::test]
async fn scripts_compile_with_every_shared_piece() {
    let server = RedisServer::start().await;
    let joined = joined();
    for (own, _) in scripts() {
        assert!(joined.contains_key(&own.replace('/', "-")), "{own}");
    }
    for (name, text) in joined {
        let sha = server.cli(&["SCRIPT", "LOAD", &text]);
        assert_eq!(sha.trim().len(), 40, "{name}: {sha}");
    }
}

/// What one call leaves behind would be seen by the next: only the piece that binds the built-ins sets a variable of its top.
/// Where luac is not installed (Debian's lua5.1, of which lua-check needs a part), nothing is checked.
#[test]
fn the_library_keeps_nothing_between_calls() {
    for (name, _) in library() {
        let file = root().join("lua").join(&name).with_extension("lua");
        let Ok(output) = Command::new("luac5.1").args(["-l", "-p"]).arg(file).output() else {
            eprintln!("luac5.1 cannot be run: the library is not checked");
            return;
        };
        let listing = String::from_utf8(output.stdout).unwrap();
        let sets = listing.lines().filter(|line| line.contains("SETUPVAL") || line.contains("SETGLOBAL"));
        let sets: Vec<_> = sets.filter_map(|line| line.split(';').nth(1).map(str::trim)).collect();
        if name == "clock" {
            let bound: BTreeSet<_> = sets.iter().copied().collect();
            assert_eq!((sets.len(), bound.len()), (12, 12), "each name is bound once: {sets:?}");
        } else {
            assert!(sets.is_empty(), "{name} sets {sets:?}");
        }
    }
}

/// By .luacheckrc; where it is not installed (Debian's lua-check), nothing is checked. The pieces of the library are checked one
/// by one, so that none uses what another one keeps to itself.
#[test]
fn luacheck_has_no_warnings() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lua");
    fs::create_dir_all(&dir).unwrap();
    files(&dir, "lua").into_iter().for_each(|old| fs::remove_file(old).unwrap());
    for (name, text) in joined() {
        fs::write(dir.join(name).with_extension("lua"), text).unwrap();
    }
    let pieces = library().into_iter().map(|(name, _)| root().join("lua").join(name).with_extension("lua"));
    let check = |config: &str, paths: Vec<PathBuf>| {
        let mut luacheck = Command::new("luacheck");
        luacheck.arg("--no-color").arg("--config").arg(root().join(config)).arg("-q").args(paths);
        match luacheck.output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(error) => eprintln!("luacheck cannot be run ({error}): the scripts are not checked"),
        }
    };
    check(".luacheckrc", vec![dir]);
    check(".luacheckrc-library", pieces.collect());
}
