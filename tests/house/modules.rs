//! Modules import only from modules below them, so that there is no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::scripts::{files, root};

/// From the bottom up. Modules on one level import nothing of each other, except for [`EXCEPTIONS`].
const LEVELS: &[&[&str]] = &[
    &["clock", "debug", "error", "random", "sync"],
    &["setters", "telemetry"],
    &["store"],
    &["middleware", "http"],
    &["extract", "fleet", "lease"],
    &[
        "bloom_filter",
        "dedupe",
        "mutex",
        "rw_lock",
        "single_flight",
        "token_bucket",
        "wait_group",
    ],
    &["response"],
    &["idempotency", "operator"],
    &["web"],
    &["grpc"],
    &[
        "docs",
        "guide",
        "interleavings",
        "lib",
        "protocol",
        "wire_format",
    ],
];

/// Features that are made of others: a filter remembers items, and an item may have an answer.
const EXCEPTIONS: &[(&str, &str)] = &[("dedupe", "bloom_filter"), ("dedupe", "single_flight")];

/// Only these name the crate.
const NAMED_ONLY_IN: &[(&str, &[&str])] = &[
    ("redis::", &["src/store/"]),
    ("deadpool_redis::", &["src/store/", "src/lib.rs"]),
    (
        "tonic::",
        &["src/grpc/", "src/extract/request/client_ip/peer.rs"],
    ),
];

/// The code of the library: without comments, and without tests.
fn sources() -> Vec<(String, String)> {
    let name = |path: &PathBuf| {
        path.strip_prefix(root())
            .unwrap()
            .to_string_lossy()
            .into_owned()
    };
    let tests = [
        "tests",
        "agreement",
        "model",
        "simulation",
        "days",
        "set_back",
    ];
    let is_test = |name: &str| {
        name.trim_end_matches(".rs")
            .split('/')
            .any(|part| tests.contains(&part))
    };
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let own = text
            .split("\n#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        let code = own
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        (name(&path), code.collect::<Vec<_>>().join("\n"))
    };
    files(&root().join("src"), "rs")
        .into_iter()
        .filter(|path| !is_test(&name(path)))
        .map(read)
        .collect()
}

/// The words at the top of `{…}`, or the word.
fn heads(rest: &str) -> Vec<String> {
    let word = |text: &str| {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect::<String>()
    };
    let Some(group) = rest.strip_prefix('{') else {
        return vec![word(rest)];
    };
    let (mut heads, mut depth, mut at_start) = (Vec::new(), 0, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            c if at_start && !c.is_whitespace() => {
                heads.push(word(&group[at..]));
                at_start = false;
            }
            _ => {}
        }
    }
    heads
}

/// Which module an item of the crate's root is from.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for line in lib.split("pub use ").skip(1) {
        let line = line.split(';').next().unwrap_or_default();
        if let Some((path, _)) = line.split_once("::") {
            let last = line.rsplit_once("::").map_or("", |(_, last)| last);
            for name in heads(if line.contains('{') {
                &line[line.find('{').unwrap()..]
            } else {
                last
            }) {
                exports.insert(name, path.trim().to_owned());
            }
        }
    }
    exports
}

#[test]
fn imports_go_down() {
    let sources = sources();
    let lib = &sources
        .iter()
        .find(|(name, _)| name == "src/lib.rs")
        .expect("the root")
        .1;
    let exports = exports(lib);
    let level = |module: &str| {
        let level = LEVELS.iter().position(|level| level.contains(&module));
        level.unwrap_or_else(|| {
            panic!("{module} has no level: add it to LEVELS in tests/house/modules.rs")
        })
    };
    let mut wrong = BTreeSet::new();
    for (name, code) in &sources {
        let module = name["src/".len()..].split(['/', '.']).next().unwrap();
        let own = level(module);
        for (at, _) in code.match_indices("crate::") {
            for head in heads(&code[at + "crate::".len()..]) {
                let from = exports.get(&head).map_or(&*head, |module| &**module);
                let is_module = LEVELS.iter().any(|level| level.contains(&from));
                let is_exception = EXCEPTIONS.contains(&(module, from));
                if is_module && from != module && level(from) >= own && !is_exception {
                    wrong.insert(format!("{name}: {module} imports {from}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports that go up:\n{}",
        wrong.into_iter().collect::<Vec<_>>().join("\n")
    );
}

#[test]
fn crates_are_named_where_they_belong() {
    for (name, code) in sources() {
        for (krate, places) in NAMED_ONLY_IN {
            let names = code.match_indices(krate).any(|(at, _)| {
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
            });
            let may = places.iter().any(|place| name.starts_with(place));
            assert!(
                !names || may,
                "{name} names {krate}, which is for {places:?}"
            );
        }
    }
}

/// The last columns of the tables after a heading name tests: so many at least, and all of them exist.
fn named_tests_exist(page: &str, heading: &str, at_least: usize) {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (_, tables) = text
        .split_once(heading)
        .unwrap_or_else(|| panic!("{page} has no {heading:?}"));
    let last = |row: &str| {
        row.trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let cells: String = tables
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(last)
        .collect();
    let names: BTreeSet<_> = cells.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > at_least, "{page}: {names:?}");
    let found = ["src", "tests"].map(|folder| files(&root().join(folder), "rs"));
    let sources: String = found
        .iter()
        .flatten()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let is_missing = |name: &&&str| !sources.contains(&format!("fn {name}("));
    assert_eq!(
        names.iter().filter(is_missing).collect::<Vec<_>>(),
        Vec::<&&str>::new(),
        "{page}"
    );
}

#[test]
fn the_tests_that_pages_name_exist() {
    named_tests_exist("SECURITY.md", "\n# Threat model\n", 50);
    named_tests_exist("src/docs/guide/servers.md", "\n# What is missing", 12);
}
