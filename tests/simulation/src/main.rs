//! The real client on simulated servers, in virtual time: see `--help`.

#[cfg(simulation)]
mod memory;
#[cfg(simulation)]
mod network;
#[cfg(simulation)]
mod os;
#[cfg(simulation)]
mod runs;
#[cfg(simulation)]
mod server;
#[cfg(simulation)]
mod trace;
#[cfg(simulation)]
mod truth;
#[cfg(simulation)]
mod world;

use std::process::ExitCode;

#[cfg(simulation)]
#[global_allocator]
static MEMORY: memory::Memory = memory::Memory;

#[cfg(simulation)]
fn main() -> ExitCode {
    runs::main()
}

/// Builds this program again with the simulated parts, and runs it.
#[cfg(not(simulation))]
fn main() -> ExitCode {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let status = std::process::Command::new(cargo)
        .current_dir(root)
        .env(
            "RUSTFLAGS",
            format!("{flags} --cfg simulation --cfg tokio_unstable"),
        )
        .args([
            "run",
            "--quiet",
            "-p",
            "tower-distributed-simulation",
            "--profile",
            "simulation",
        ])
        .args(["--target-dir", "target/simulation", "--"])
        .args(std::env::args_os().skip(1))
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}
