//! Each script belongs to one operation, says in its header what it does, compiles, and has nothing that luacheck warns of.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter, slice};

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
    let read: Vec<_> = files(&root().join("lua"), "lua").into_iter().filter(reads).collect();
    assert_eq!(read, [root().join("lua/lib/clock.lua")]);
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

/// What a source names in `script!(…)` or `scripts!(…)`, each time; `…` and `quick` stand for what a macro puts in.
fn joins(source: &str, opening: &str) -> Vec<Vec<String>> {
    let source = source.replace("$($rules,)+", "\"…\",").replace("$($rules),+", "\"…\"");
    let source = source.replace("$($quick,)+", "\"quick\",");
    let lists = source.split(opening).skip(1).filter_map(|rest| rest.split_once(')'));
    let names = |list: &str| list.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    lists.map(|(list, _)| names(list)).filter(|names| !names.is_empty()).collect()
}

/// Every script as Redis runs it, and a name for it: the clock, the shared pieces, and its own file.
fn joined() -> BTreeMap<String, String> {
    let sources: String =
        files(&root().join("src"), "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let lua = |name: &str| fs::read_to_string(root().join("lua").join(name).with_extension("lua")).unwrap();
    let kinds = joins(&sources, "scripts!(");
    let mut joined = BTreeMap::new();
    for names in joins(&sources, "script!(") {
        let (own, pieces) = names.split_first().unwrap();
        let kinds = if pieces.iter().any(|piece| piece == "…") { kinds.clone() } else { vec![Vec::new()] };
        for kind in kinds {
            let (quick, rules): (Vec<_>, Vec<_>) =
                kind.into_iter().partition(|name| name.starts_with("lib/quick_"));
            let pieces = pieces.iter().flat_map(|piece| match &**piece {
                "…" => &rules[..],
                "quick" => &quick[..],
                _ => slice::from_ref(piece),
            });
            let text =
                iter::once("lib/clock").chain(pieces.map(String::as_str)).chain([&**own]).map(lua).collect();
            let name = iter::once(own).chain(&rules).map(|name| name.replace('/', "-"));
            joined.insert(name.collect::<Vec<_>>().join("+"), text);
        }
    }
    joined
}

#[tokio::test]
async fn scripts_compile_with_every_shared_piece() {
    let server = RedisServer::start().await;
    let joined = joined();
    for (own, _) in scripts() {
        let own = own.replace('/', "-");
        assert!(joined.keys().any(|name| *name == own || name.starts_with(&format!("{own}+"))), "{own}");
    }
    for (name, text) in joined {
        let sha = server.cli(&["SCRIPT", "LOAD", &text]);
        assert_eq!(sha.trim().len(), 40, "{name}: {sha}");
    }
}

/// By .luacheckrc; where it is not installed (Debian's lua-check), nothing is checked.
#[test]
fn luacheck_has_no_warnings() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lua");
    fs::create_dir_all(&dir).unwrap();
    files(&dir, "lua").into_iter().for_each(|old| fs::remove_file(old).unwrap());
    for (name, text) in joined() {
        fs::write(dir.join(name).with_extension("lua"), text).unwrap();
    }
    let config = root().join(".luacheckrc");
    match Command::new("luacheck").arg("--no-color").arg("--config").arg(config).arg("-q").arg(&dir).output()
    {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        }
        Err(error) => eprintln!("luacheck cannot be run ({error}): the scripts are not checked"),
    }
}
