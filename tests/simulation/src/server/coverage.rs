//! Which functions and lines of the scripts were run, in all worlds together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock;

/// What was run of one script, or of one file.
#[derive(Default)]
struct Script {
    text: String,
    lines: BTreeSet<usize>,
    /// The lines where functions begin that were called.
    functions: BTreeSet<usize>,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static SCRIPTS: Mutex<BTreeMap<String, Script>> = Mutex::new(BTreeMap::new());

pub fn turn_on() {
    IS_ON.store(true, Ordering::Relaxed);
}

pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Notes a script.
pub fn knows(digest: &str, text: &[u8]) {
    if is_on() {
        let text = String::from_utf8_lossy(text).into_owned();
        lock(&SCRIPTS).entry(digest.into()).or_default().text = text;
    }
}

/// Notes that a line was run, of the function that begins at another one.
pub fn runs(digest: &str, line: usize, function: usize) {
    let mut scripts = lock(&SCRIPTS);
    let script = scripts.entry(digest.into()).or_default();
    script.lines.insert(line);
    script.functions.insert(function);
}

/// Prints what was run, and which functions were not.
pub fn report() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
    let mut files = Vec::new();
    read(&root, &mut files)?;
    files.sort_unstable();
    let (mut functions, mut lines) = ((0, 0), (0, 0));
    for path in files {
        let text = std::fs::read_to_string(&path)?;
        let name = path
            .strip_prefix(&root)
            .unwrap_or(&path)
            .display()
            .to_string();
        let ran = covered(text);
        for (number, line) in ran
            .text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line.trim()))
        {
            if is_function(line) {
                functions.1 += 1;
                match ran.functions.contains(&number) {
                    true => functions.0 += 1,
                    false => println!("  not called: {name}:{number} {line}"),
                }
            }
            if is_code(line) {
                lines.1 += 1;
                lines.0 += u32::from(ran.lines.contains(&number));
            }
        }
    }
    let share = |(some, all): (u32, u32)| f64::from(some) / f64::from(all.max(1));
    for (what, counts) in [
        ("functions of the scripts that were called", functions),
        ("lines of the scripts that were run", lines),
    ] {
        println!("{what}: {} of {}, {:.3}", counts.0, counts.1, share(counts));
    }
    Ok(())
}

fn read(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "lua") {
            files.push(path);
        }
    }
    Ok(())
}

/// What was run of a file. A script contains whole files, so a line of a script is a line of one of them.
fn covered(text: String) -> Script {
    let mut ran = Script {
        text,
        ..Script::default()
    };
    for script in lock(&SCRIPTS).values() {
        let Some(at) = script.text.find(&ran.text) else {
            continue;
        };
        let before = script.text[..at].matches('\n').count();
        let end = before + ran.text.lines().count();
        let own = |lines: &BTreeSet<usize>| {
            lines
                .range(before + 1..=end)
                .map(|line| line - before)
                .collect::<Vec<_>>()
        };
        ran.lines.extend(own(&script.lines));
        ran.functions.extend(own(&script.functions));
    }
    ran
}

fn is_function(line: &str) -> bool {
    !line.starts_with("--") && (line.contains("function(") || line.contains("function "))
}

/// Whether a line has something that runs: not only the end of a block.
fn is_code(line: &str) -> bool {
    let ends = ["end", "else", "}", ")", "end)", "until", "repeat", "do"];
    !line.is_empty()
        && !line.starts_with("--")
        && !ends
            .iter()
            .any(|end| line.trim_end_matches([',', ';']) == *end)
}
