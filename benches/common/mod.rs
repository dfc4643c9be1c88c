//! What the benches have in common: a redis-server of their own, what they are asked for, and how they tell it.

pub mod server;
pub mod settings;
pub mod stats;

use std::process::ExitCode;

use tokio::runtime::Runtime;

use self::server::Server;
use self::settings::Settings;

/// What every measurement needs.
pub struct Bench {
    pub settings: Settings,
    pub server: Server,
    pub runtime: Runtime,
}

/// Measures; says what is missing where that cannot be done.
pub fn run(measure: impl FnOnce(&Bench) -> Result<(), String>) -> ExitCode {
    let run = || {
        let settings = Settings::read()?;
        let runtime = runtime()?;
        let bench = Bench { settings, server: Server::start()?, runtime };
        measure(&bench)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The runtime of every process: with two threads, whatever the machine has.
pub fn runtime() -> Result<Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().map_err(|error| format!("no runtime: {error}"))
}

/// The line that scripts read.
pub fn figure(name: &str, value: f64) {
    // Three digits after the point, or as many as there are zeros and three; none for nothing at all.
    let digits = if value == 0.0 { 0.0 } else { (2.0 - value.abs().log10().floor()).clamp(0.0, 12.0) };
    println!("figure {name} {value:.*}", digits as usize);
}

/// Says that a figure is asked for, and what it needs.
#[allow(dead_code, reason = "not every build lacks something")]
pub fn missing(bench: &Bench, name: &str, what: &str) {
    if bench.settings.wants(name) {
        println!("\nno {name}: it needs {what}");
    }
}
