//! What a newcomer waits for: the first build of the example `gateway`, and the first event of its page. Both compile for
//! minutes, so they are measured only if `BUILD` is set.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use crate::common::Bench;
use crate::common::report::{figure, note};

const BUILD: &str = "cold-gateway-build-seconds";
const FIRST_EVENT: &str = "page-first-event-ms";
/// The test that measures it.
const TEST: &str = "the_page_is_one_file_and_its_first_event_comes_at_once";

pub fn run(bench: &Bench) -> Result<(), String> {
    let wanted: Vec<_> = [BUILD, FIRST_EVENT]
        .into_iter()
        .filter(|name| bench.settings.wants(name))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    if env::var_os("BUILD").is_none() {
        note(format!(
            "no {}: each compiles for minutes. To measure them: `BUILD=1 cargo bench --bench stack -- cold page`",
            wanted.join(" and no ")
        ));
        return Ok(());
    }
    if wanted.contains(&BUILD) {
        figure(
            BUILD,
            "s, `cargo build --example gateway` in an empty target directory, sources downloaded",
            build()?,
        );
    }
    if wanted.contains(&FIRST_EVENT) {
        figure(
            FIRST_EVENT,
            "ms, the slowest of 5 first events of the page of the example `gateway`",
            first_event()?,
        );
    }
    Ok(())
}

/// In seconds.
fn build() -> Result<f64, String> {
    // What is downloaded is no part of it.
    cargo(["fetch"])?;
    let target = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../target/cold-build-{}", std::process::id()));
    let began = Instant::now();
    let built = cargo([
        "build",
        "--quiet",
        "--example",
        "gateway",
        "--target-dir",
        &target.to_string_lossy(),
    ]);
    let took = began.elapsed();
    let _ = fs::remove_dir_all(&target);
    built.map(|_| took.as_secs_f64())
}

fn first_event() -> Result<f64, String> {
    // It is a package of its own, which the test does not build.
    cargo(["build", "--quiet", "--all-features", "--example", "gateway"])?;
    let output = cargo([
        "test",
        "--all-features",
        "-p",
        "tower-distributed",
        "--test",
        "gateway",
        TEST,
        "--",
        "--nocapture",
    ])?;
    let value = output.lines().find_map(|line| {
        line.split_once(FIRST_EVENT)?
            .1
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    value.ok_or_else(|| format!("the test {TEST} tells no {FIRST_EVENT}: {output}"))
}

/// What it says, on both ways.
fn cargo<const N: usize>(arguments: [&str; N]) -> Result<String, String> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(arguments)
        .stdin(Stdio::null());
    let output = cargo
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if !output.status.success() {
        return Err(format!("cargo {} failed: {said}", arguments.join(" ")));
    }
    Ok(said)
}
