//! Turns one mutant on, or notes which mutants a test reaches.

use std::io::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

const MOST: usize = 65_536;

static ACTIVE: LazyLock<usize> = LazyLock::new(|| match std::env::var("MUTANT") {
    Ok(number) => number.parse().expect("MUTANT is a number"),
    // Reached ones are noted if there is a folder for that.
    Err(_) => if std::env::var_os("REACHED").is_some() { MOST } else { 0 },
});
static REACHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

pub fn on(number: usize) -> bool {
    if *ACTIVE == MOST {
        note(number);
    }
    *ACTIVE == number
}

fn note(number: usize) {
    if REACHED[number].swap(true, Ordering::Relaxed) {
        return;
    }
    let of = |name| std::env::var(name).unwrap_or_default().replace("::", "+");
    let test = format!("{}!{}", of("NEXTEST_BINARY_ID"), of("NEXTEST_TEST_NAME"));
    let file = std::path::Path::new(&std::env::var_os("REACHED").expect("it was there")).join(test);
    let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
    file.and_then(|mut file| file.write_all(format!("{number}\n").as_bytes())).expect("it can be noted");
}
