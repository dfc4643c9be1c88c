//! Loads a URL or a primitive with several processes, prints what was admitted, refused and how long it took, and
//! checks on the calls of all processes together what was promised.
//!
//! ```text
//! cargo run --release --features operator --example load -- --help
//! cargo run --release --features operator --example load -- http http://127.0.0.1:3000/limited --rate 20 --quota 5/s --burst 10
//! cargo run --release --features operator --example load -- token-bucket --redis redis://127.0.0.1/ --quota 100/s --processes 4
//! ```
//!
//! The checks find no breach where there is none: an admission happened between the start of its call and its answer, so
//! only calls that lie within an interval as a whole count for it; a lease counts as held from when it was granted to
//! just before it is released. What happens within the time of one call stays unseen. The clock of the server must not be
//! set during a run, and the machine must not sleep: tokens come back by the server's clock.

mod args;
#[allow(dead_code)]
#[path = "../pictures/canvas.rs"]
mod canvas;
mod check;
mod clock;
mod fleet;
#[allow(unreachable_pub)]
#[path = "../../tests/support/interval_bound.rs"]
mod interval_bound;
mod message;
mod picture;
mod recorder;
mod report;
mod target;
mod totals;
mod worker;

use std::fs::OpenOptions;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use self::args::Load;
use self::check::Limit;
use self::report::Report;

fn main() -> ExitCode {
    let load = Load::parse().check().unwrap_or_else(|error| {
        use clap::CommandFactory as _;
        Load::command()
            .error(ErrorKind::ValueValidation, error)
            .exit()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let outcome = match (runtime, std::env::var(fleet::RUN)) {
        (Err(error), _) => Err(format!("no runtime: {error}")),
        (Ok(runtime), Ok(run)) => runtime.block_on(worker::work(&load, &run)).map(|()| true),
        (Ok(runtime), Err(_)) => runtime.block_on(run(&load)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the load and prints the report. Returns whether all went well.
async fn run(load: &Load) -> Result<bool, String> {
    let limit = match load.target.quota() {
        Some(quota) => Some(
            Limit::of(quota)
                .await
                .map_err(|error| format!("--quota: {error}"))?,
        ),
        None => None,
    };
    if let Some(path) = &load.run.svg {
        // Now, and not after the run.
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| format!("--svg: cannot write {}: {error}", path.display()))?;
    }
    let totals = fleet::run(load).await?;
    let verdicts = check::check(&load.target, limit.as_ref(), &totals);
    let report = Report::new(&load.target, &totals, &verdicts);
    print!("{}", report.text);
    if let Some(path) = &load.run.svg {
        let svg = picture::draw(&load.target, limit.as_ref(), &totals)
            .map_err(|error| error.to_string())?;
        std::fs::write(path, svg)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        println!("drawn: {}", path.display());
    }
    Ok(report.is_success)
}
