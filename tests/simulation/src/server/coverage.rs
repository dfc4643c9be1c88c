//! Which functions and lines of the scripts were run, in all worlds together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
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
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua"))?;
    let mut files = folder.collect::<Result<Vec<_>, _>>()?;
    files.sort_unstable_by_key(DirEntry::file_name);
    let (mut functions, mut lines) = ((0, 0), (0, 0));
    for file in files {
        let ran = covered(std::fs::read_to_string(file.path())?);
        for (number, line) in (1..).zip(ran.text.lines().map(str::trim)) {
            if is_function(line) {
                functions.1 += 1;
                match ran.functions.contains(&number) {
                    true => functions.0 += 1,
                    false => println!("  not called: {:?}:{number} {line}", file.file_name()),
                }
            }
            if is_code(line) {
                lines.1 += 1;
                lines.0 += u32::from(ran.lines.contains(&number));
            }
        }
    }
    let told = |(some, all): (u32, u32)| format!("{some} of {all}");
    println!(
        "functions of the scripts that were called: {}",
        told(functions)
    );
    println!("lines of the scripts that were run: {}", told(lines));
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
        for (all, own) in [
            (&script.lines, &mut ran.lines),
            (&script.functions, &mut ran.functions),
        ] {
            own.extend(all.range(before + 1..=end).map(|line| line - before));
        }
    }
    ran
}

fn is_function(line: &str) -> bool {
    !line.starts_with("--") && (line.contains("function(") || line.contains("function "))
}

/// Whether a line has something that runs: not only the end of a block.
fn is_code(line: &str) -> bool {
    let ends = ["end", "else", "}", ")", "end)", "until", "repeat", "do"];
    let is_end = ends.contains(&line.trim_end_matches([',', ';']));
    !line.is_empty() && !line.starts_with("--") && !is_end
}
