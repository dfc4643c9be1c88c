//! How long the pages are, and where the README leads.

use std::path::Path;
use std::process::Command;

use crate::scripts::{files, root};

fn words(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().count()
}

#[test]
fn pages_are_short() {
    let readme = root().join("README.md");
    let lines = std::fs::read_to_string(&readme).unwrap().lines().count();
    assert!(lines <= 90, "README.md has {lines} lines");
    let pages = files(&root().join("src"), "md")
        .into_iter()
        .filter(|path| path.ends_with("page.md"))
        .collect();
    let guides = files(&root().join("src/docs/guide"), "md");
    let most = [
        ("README.md", vec![readme], 1, 800),
        ("src/*/page.md", pages, 10, 8000),
        ("src/docs/guide", guides, 11, 9000),
    ];
    for (name, paths, at_least, most) in most {
        assert!(paths.len() >= at_least, "{name}: {paths:?}");
        let count: usize = paths.iter().map(|path| words(path)).sum();
        println!("figure words-of-{name} {count} (at most {most})");
        assert!(count <= most, "{name}: {count} words, at most {most}");
    }
}

#[test]
fn the_readme_leads_to_what_is_packed() {
    let list = Command::new(env!("CARGO"))
        .args(["package", "--list", "--allow-dirty", "--offline"])
        .args(["-p", "tower-distributed"])
        .current_dir(root())
        .output()
        .unwrap();
    let packed = String::from_utf8(list.stdout).unwrap();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let links: Vec<_> = readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|link| !link.contains("://"))
        .collect();
    assert!(links.len() > 10, "{links:?}");
    for link in links {
        assert!(
            packed.lines().any(|file| file == link),
            "{link} is not packed"
        );
    }
}
