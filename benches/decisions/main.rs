//! How many decisions a second, beside the peers, on a redis-server of its own.
//!
//! ```text
//! cargo bench --bench decisions                  everything: the tables, then every figure
//! cargo bench --bench decisions -- hot-key       only the figures whose names contain that
//! cargo bench --bench decisions -- table         only the tables
//! ROUNDS=9 SECONDS=0.5 cargo bench …             rounds (at least 5 for a figure to count), length of a cell
//! ONLY='our RateLimitLayer' cargo bench …        one contestant of a table alone, for a profiler
//! ```
//!
//! A figure stands on a line of its own: `figure NAME NUMBER`. All contestants take turns within each round;
//! a ratio is taken within the round, and the figure is the median of the rounds.

#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cell;
mod contestants;
mod layer;
mod local_refusals;
mod memory;
mod server;
mod settings;
mod single_caller;
mod stats;
mod throughput;
mod workload;

use std::process::ExitCode;

use self::server::Server;
use self::settings::Settings;

/// What every measurement needs.
struct Bench {
    settings: Settings,
    server: Server,
    runtime: tokio::runtime::Runtime,
}

fn main() -> ExitCode {
    let run = || -> Result<(), String> {
        let settings = Settings::read()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|error| format!("no runtime: {error}"))?;
        let bench = Bench { settings, server: Server::start()?, runtime };
        throughput::run(&bench);
        single_caller::run(&bench);
        layer::run(&bench);
        local_refusals::run(&bench);
        memory::run(&bench);
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The line that scripts read.
fn figure(name: &str, value: f64) {
    // Three digits after the point, or as many as there are zeros and three.
    let digits = (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    println!("figure {name} {value:.digits$}");
}
