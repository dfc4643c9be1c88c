//! Tests that each rule on the page names tests, and that these exist.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../docs/protocol.md");

/// How many rules there are.
const RULES: usize = 26;

/// The rules: each with its number, its text, and the names after *Tests:*.
fn rules() -> Vec<(usize, String, Vec<String>)> {
    let section = PAGE
        .split("\n# ")
        .find(|section| section.starts_with("The rules\n"))
        .unwrap();
    let begins = |line: &str| {
        let (number, _) = line.split_once(". **")?;
        number.parse::<usize>().ok()
    };
    let mut rules: Vec<(usize, String)> = Vec::new();
    for line in section.lines() {
        match (begins(line), rules.last_mut()) {
            (Some(number), _) => rules.push((number, line.to_owned())),
            (None, Some((_, text))) => text.extend([" ", line.trim()]),
            (None, None) => {}
        }
    }
    let of_rule = |(number, text): (usize, String)| {
        let (rule, tests) = text.split_once("*Tests:*").unwrap_or((&text, ""));
        (number, rule.to_owned(), names(tests))
    };
    rules.into_iter().map(of_rule).collect()
}

/// The names of tests in a text: words in backticks with `::`, except methods.
fn names(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_test = |quoted: &&str| {
        quoted.contains("::") && quoted.starts_with(|c: char| c.is_ascii_lowercase())
    };
    quoted.filter(is_test).map(str::to_owned).collect()
}

/// The file of a module in a folder.
fn file_of(folder: &Path, module: &str) -> Option<PathBuf> {
    let files = [
        folder.join(format!("{module}.rs")),
        folder.join(module).join("mod.rs"),
        folder.join(module).join("main.rs"),
    ];
    files.into_iter().find(|file| file.is_file())
}

/// A text without its comments.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Whether a text has this function as a test, by an attribute.
fn has_attribute(text: &str, function: &str) -> bool {
    let Some((before, _)) = text.split_once(&format!("fn {function}(")) else {
        return false;
    };
    let before = before.rsplit_once('\n').map_or("", |(before, _)| before);
    let attributes = before
        .lines()
        .rev()
        .take_while(|line| line.trim_start().starts_with('#'));
    attributes.into_iter().any(|line| line.contains("test"))
}

/// Whether a text has this name in a list, as macros that make tests take it.
fn is_listed(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let begins = before.ends_with([' ', '(', ':']) && !before.ends_with("fn ");
        begins && after.starts_with([' ', ',', ')', '\n'])
    })
}

/// Finds a test, or a module of tests, by its name.
fn find(name: &str) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_src = find_below(root.join("src"), name);
    in_src.or_else(|error| {
        find_below(root.join("tests"), name).map_err(|other| format!("{error}; {other}"))
    })
}

fn find_below(mut folder: PathBuf, name: &str) -> Result<(), String> {
    let mut parts = name.split("::").peekable();
    let (mut file, mut target) = (None::<PathBuf>, String::new());
    while let Some(next) = parts.peek().and_then(|part| file_of(&folder, part)) {
        folder = folder.join(parts.next().unwrap());
        if next.ends_with("main.rs") {
            target = code(&next);
        }
        file = Some(next);
    }
    let Some(file) = file else {
        return Err("there is no such file".to_owned());
    };
    let text = code(&file);
    let rest: Vec<_> = parts.collect();
    let is_test = |function| {
        has_attribute(&text, function) || is_listed(&text, function) || is_listed(&target, function)
    };
    let is_inline = |module| text.contains(&format!("mod {module} {{"));
    let is_found = match rest[..] {
        [] => true,
        [last] => is_inline(last) || is_test(last),
        [module, function] => is_inline(module) && is_test(function),
        _ => false,
    };
    if is_found {
        Ok(())
    } else {
        Err(format!(
            "{} has no test {}",
            file.display(),
            rest.join("::")
        ))
    }
}

#[test]
fn the_rules_are_numbered_and_each_has_tests() {
    let rules = rules();
    assert!(
        rules.iter().map(|(number, ..)| *number).eq(1..=RULES),
        "{rules:?}"
    );
    for (number, text, tests) in rules {
        assert!(
            text.matches("**").count() == 2 && !tests.is_empty(),
            "{number}: {text}"
        );
    }
}

#[test]
fn each_test_that_the_page_names_exists() {
    let missing = names(PAGE)
        .into_iter()
        .filter_map(|name| Some(format!("{name}: {}", find(&name).err()?)));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Else it would find everything.
#[test]
fn a_test_that_does_not_exist_is_not_found() {
    for name in [
        "lease::agreement::nobody_agrees",
        "lease::agreement::agree",
        "lease::nothing",
        "lease::model::flaws::tests::no_tombstones",
        "faults::leases::validity::an_answer",
        "faults::leases::nothing",
        "suite::keys::hostile_keys",
        "nothing::at_all",
    ] {
        assert!(find(name).is_err(), "{name}");
    }
}
