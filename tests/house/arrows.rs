//! Which file imports which: groups of modules import only from groups below them, and no files import one another in a
//! circle. `arrows.txt` lists the offences of today; the list may only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;

use crate::modules::sources;
use crate::scripts::root;

/// Groups of modules, from the ground up.
const GROUPS: &[(&str, &[&str])] = &[
    ("ground", &["clock", "error", "key", "macros", "sync"]),
    ("telemetry", &["telemetry"]),
    ("store", &["store"]),
    ("leases and buckets", &["lease", "bucket"]),
    (
        "primitives",
        &[
            "bloom_filter",
            "dedupe",
            "mutex",
            "rw_lock",
            "single_flight",
            "token_bucket",
            "wait_group",
        ],
    ),
    ("layers", &["layers", "extract"]),
    ("HTTP", &["http"]),
    ("gRPC", &["grpc"]),
    (
        "leaves",
        &[
            "adaptive",
            "fleet",
            "idempotency",
            "learn",
            "quorum",
            "refused_keys",
        ],
    ),
    ("operator", &["operator"]),
];
/// Pages, and the list of what is public.
const PAGES: &[&str] = &["lib", "guide", "interleavings"];

/// The module of a file.
fn module(file: &str) -> String {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    path.trim_end_matches("/mod").replace('/', "::")
}

/// A text without its public re-exports: a page names what belongs to it, and needs nothing of that.
fn without_reexports(code: &str) -> String {
    let mut parts = code.split("pub use ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.split_once(';').map_or("", |(_, rest)| rest);
        text + rest
    })
}

/// The paths behind each `crate::` of a text, but for those of visibilities: groups in braces are taken apart.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        if code[..at].ends_with("(in ") {
            continue;
        }
        let rest = &code[at + start.len()..];
        let end = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
            .unwrap_or(rest.len());
        let path = rest[..end].trim_end_matches(':').to_owned();
        if let Some(group) = rest[end..].strip_prefix('{') {
            let group = group.split('}').next().unwrap_or_default();
            let names = group.split([',', '{']).map(str::trim);
            paths.extend(names.map(|name| format!("{path}::{name}")));
        } else {
            paths.push(path);
        }
    }
    paths
}

/// For each file the files from which it imports.
fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let sources = sources();
    let modules: BTreeMap<String, &str> = sources
        .iter()
        .map(|(file, _)| (module(file), &**file))
        .collect();
    let owner = |path: &str| {
        let mut path = path;
        loop {
            if let Some(file) = modules.get(path) {
                return Some((*file).to_owned());
            }
            path = path.rsplit_once("::")?.0;
        }
    };
    let imports = |file: &str, code: &str| {
        let owners = paths(&without_reexports(code))
            .into_iter()
            .filter_map(|path| owner(&path));
        owners.filter(|owner| owner != file).collect()
    };
    sources
        .iter()
        .map(|(file, code)| (file.clone(), imports(file, code)))
        .collect()
}

fn group(file: &str) -> Option<usize> {
    let module = module(file);
    let top = module.split("::").next().unwrap_or_default();
    if PAGES.contains(&top) {
        return None;
    }
    let group = GROUPS
        .iter()
        .position(|(_, modules)| modules.contains(&top));
    Some(group.unwrap_or_else(|| panic!("{top} has no group: add it to GROUPS in {}", file!())))
}

fn goes_up(from: &str, to: &str) -> bool {
    match (group(from), group(to)) {
        (Some(own), Some(other)) => other > own,
        _ => false,
    }
}

/// The files that can be reached from a file.
fn reached(arrows: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(file) = open.pop() {
        for next in arrows.get(&file).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

#[test]
fn no_new_arrow_runs_up_and_no_new_file_is_in_a_circle() {
    let arrows = arrows();
    let up = arrows.iter().flat_map(|(from, imports)| {
        let up = imports.iter().filter(move |to| goes_up(from, to));
        up.map(move |to| format!("up {from} {to}"))
    });
    let in_circle = arrows
        .keys()
        .filter(|file| reached(&arrows, file).contains(*file))
        .map(|file| format!("circle {file}"));
    let found: BTreeSet<String> = up.chain(in_circle).collect();
    let text = read_to_string(root().join("tests/house/arrows.txt")).unwrap();
    let listed: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    if std::env::var_os("WRITE_ARROWS").is_some() {
        let lines: Vec<_> = found.iter().map(String::as_str).collect();
        std::fs::write(
            root().join("tests/house/arrows.txt"),
            lines.join("\n") + "\n",
        )
        .unwrap();
    }
    let new: Vec<_> = found.difference(&listed).collect();
    assert!(new.is_empty(), "new offences: {new:#?}");
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        gone.is_empty(),
        "remove from tests/house/arrows.txt: {gone:#?}"
    );
}
