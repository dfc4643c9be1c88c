//! What the benches have in common: a redis-server of their own, what they are asked for, and how they tell it.

pub mod report;
pub mod server;
pub mod settings;
pub mod stats;
pub mod table;

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
    run_at(Server::start, measure)
}

/// The same at a server that is started in another way.
pub fn run_at(
    start: impl FnOnce() -> Result<Server, String>,
    measure: impl FnOnce(&Bench) -> Result<(), String>,
) -> ExitCode {
    let run = || {
        let settings = Settings::read()?;
        let runtime = runtime()?;
        let bench = Bench {
            settings,
            server: start()?,
            runtime,
        };
        measure(&bench)?;
        report::summary();
        Ok::<_, String>(())
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
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))
}

/// Says that a figure is asked for, and what it needs.
#[allow(dead_code, reason = "not every build lacks something")]
pub fn missing(bench: &Bench, name: &str, what: &str) {
    if bench.settings.wants(name) {
        report::note(format!("no {name}: it needs {what}"));
    }
}
