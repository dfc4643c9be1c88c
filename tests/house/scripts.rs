//! Each operation of the library belongs to a source, its pieces keep nothing between calls, and luacheck warns of nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The files below a folder that have an extension.
pub(crate) fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path, extension)
            } else {
                vec![path]
            }
        })
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Lua files: `reserve` and its text.
fn lua_files() -> Vec<(String, String)> {
    let lua = root().join("lua");
    let texts = files(&lua, "lua").into_iter().map(|path| {
        let name = path.strip_prefix(&lua).unwrap().with_extension("");
        (
            name.to_str().unwrap().to_owned(),
            fs::read_to_string(path).unwrap(),
        )
    });
    texts.collect()
}

/// The pieces of the library, in their order.
fn library() -> Vec<(String, String)> {
    let source = fs::read_to_string(root().join("src/store/redis/library.rs")).unwrap();
    let lists = source
        .split("= pieces![")
        .skip(1)
        .filter_map(|rest| rest.split_once("];"));
    let lines = lists.flat_map(|(list, _)| list.lines());
    let names = lines.filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\","));
    let files: BTreeMap<_, _> = lua_files().into_iter().collect();
    ["clock", "state"]
        .into_iter()
        .chain(names)
        .chain(["serve"])
        .map(|name| (name.to_owned(), files[name].clone()))
        .collect()
}

/// No call can use two times, or that of a client.
#[test]
fn the_clock_is_read_in_one_place() {
    let read = lua_files()
        .into_iter()
        .filter(|(_, text)| text.contains("'TIME'"))
        .map(|(name, _)| name);
    assert_eq!(read.collect::<Vec<_>>(), ["clock"]);
}

/// Each operation of the library is one that a source names, and the other way round.
#[test]
fn each_operation_of_the_library_is_named_by_a_source() {
    assert_eq!(lua_files().len(), library().len(), "each file is a piece");
    for (name, text) in lua_files() {
        assert!(
            text.starts_with(&format!("-- {name}: ")),
            "{name} does not begin with its name"
        );
    }
    let text: String = library().into_iter().map(|(_, text)| text).collect();
    let there: BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("function operations.")?
                .split('(')
                .next()
                .map(str::to_owned)
        })
        .collect();
    let sources: String = files(&root().join("src"), "rs")
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let named = sources
        .split("function!(")
        .skip(1)
        .filter_map(|rest| rest.split('"').nth(1));
    let named = named.filter(|name| !name.contains(' '));
    assert_eq!(there, named.map(str::to_owned).collect());
}

/// What one call leaves behind would be seen by the next: functions of the library set no variable outside of them, but for the
/// built-ins, which the first call binds. Where luac is not installed (Debian's lua5.1, of which lua-check needs a part), nothing
/// is checked.
#[test]
fn the_library_keeps_nothing_between_calls() {
    let joined = library()
        .into_iter()
        .map(|(name, text)| match name.as_str() {
            "clock" | "state" | "serve" => text,
            _ => format!("local {name} = {{}} do\n{text}end\n"),
        });
    let joined: String = joined.collect();
    let mut luac = Command::new("luac5.1");
    luac.args(["-l", "-p", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut luac) = luac.spawn() else {
        eprintln!("luac5.1 cannot be run: the library is not checked");
        return;
    };
    luac.stdin
        .take()
        .unwrap()
        .write_all(joined.as_bytes())
        .unwrap();
    let output = luac.wait_with_output().unwrap();
    assert!(output.status.success(), "the library cannot be compiled");
    let listing = String::from_utf8(output.stdout).unwrap();
    let sets = listing
        .lines()
        .filter(|line| line.contains("SETUPVAL") || line.contains("SETGLOBAL"));
    let sets: Vec<_> = sets
        .filter_map(|line| line.split(';').nth(1).map(str::trim))
        .collect();
    let bound = "call attempt protected number format match find sub floor ceil min max decode";
    let bound: BTreeSet<_> = bound.split(' ').collect();
    assert_eq!(
        (sets.len(), sets.iter().copied().collect()),
        (bound.len(), bound),
        "each name is bound once"
    );
}

/// Where it is not installed (Debian's lua-check), nothing is checked. The pieces are checked one by one, so that none uses what
/// another one keeps to itself.
#[test]
fn luacheck_has_no_warnings() {
    let paths = library()
        .into_iter()
        .map(|(name, _)| root().join("lua").join(name).with_extension("lua"));
    let mut luacheck = Command::new("luacheck");
    luacheck
        .arg("--no-color")
        .arg("--config")
        .arg(root().join(".luacheckrc"))
        .arg("-q")
        .args(paths);
    match luacheck.output() {
        Ok(output) => assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        ),
        Err(error) => eprintln!("luacheck cannot be run ({error}): the scripts are not checked"),
    }
}
