//! Which crates are named where, and that the tests exist which pages name.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::scripts::{files, root};

/// Only these name the crate.
const NAMED_ONLY_IN: &[(&str, &[&str])] = &[
    ("redis::", &["src/store/"]),
    ("deadpool_redis::", &["src/store/", "src/lib.rs"]),
    (
        "tonic::",
        &["src/grpc", "src/http/extract/client_ip/address.rs"],
    ),
];

/// The code of the library: without comments, and without tests.
pub(crate) fn sources() -> Vec<(String, String)> {
    let name = |path: &PathBuf| {
        path.strip_prefix(root())
            .unwrap()
            .to_string_lossy()
            .into_owned()
    };
    let tests = ["tests", "agreement", "model"];
    let is_test = |name: &str| {
        name.trim_end_matches(".rs")
            .split('/')
            .any(|part| tests.contains(&part))
    };
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let own = text.split("\nmod tests {").next().unwrap_or_default();
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
