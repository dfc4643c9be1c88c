//! The server program that the tests start, and what some programs cannot do.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::Command;
use std::sync::LazyLock;

/// Names the program: a name on the PATH such as `valkey-server`, or an absolute path.
const VARIABLE: &str = "TOWER_DISTRIBUTED_REDIS_SERVER";

/// Returns the program, by default `redis-server`.
pub fn program() -> OsString {
    env::var_os(VARIABLE).unwrap_or_else(|| "redis-server".into())
}

/// Ends a test that the program is not fit for.
#[macro_export]
macro_rules! requires {
    ($fit:expr) => {
        if !$fit {
            return;
        }
    };
}

/// Whether the program is as new as Redis 7.0. If not, the first call says so on the standard error.
///
/// A test that starts a Cluster or a Sentinel asks this first: they need `cluster-port`, `CLUSTER ADDSLOTSRANGE` and
/// `SENTINEL DEBUG`.
pub fn since_7_0() -> bool {
    static SINCE: LazyLock<bool> = LazyLock::new(|| {
        said(
            version() >= (7, 0),
            "passed over all tests with a Cluster, a Sentinel or functions: they need Redis 7.0",
        )
    });
    *SINCE
}

/// Whether the program has functions. If not, the first call says so on the standard error.
pub fn has_functions() -> bool {
    since_7_0()
}

/// The command by which calls are sent.
pub fn call_command() -> &'static [u8] {
    if has_functions() {
        b"FCALL"
    } else {
        b"EVALSHA"
    }
}

/// Whether the program has WAITAOF. If not, the first call says so on the standard error.
pub fn with_waitaof() -> bool {
    static WITH: LazyLock<bool> = LazyLock::new(|| {
        said(
            version() >= (7, 2),
            "passed over the tests with WAITAOF: they need Redis 7.2",
        )
    });
    *WITH
}

/// The first two numbers of the version.
fn version() -> (u32, u32) {
    let text = output(&["--version"]);
    let numbers = text
        .split_once("v=")
        .map(|(_, rest)| rest.split('.').map(str::parse).map_while(Result::ok));
    let mut numbers = numbers.expect(&text);
    (numbers.next().expect(&text), numbers.next().expect(&text))
}

/// Whether the program was built with TLS. If not, the first call says so on the standard error.
pub fn with_tls() -> bool {
    static WITH: LazyLock<bool> = LazyLock::new(|| {
        // With TLS it ends for want of a certificate, and without for want of TLS.
        let log = output(&["--port", "0", "--tls-port", "1", "--save", ""]);
        said(
            log.contains("Failed to configure TLS"),
            "passed over all tests with TLS: it was built without",
        )
    });
    *WITH
}

fn said(is_offered: bool, otherwise: &str) -> bool {
    if !is_offered {
        // Not by eprintln!, whose text is shown for tests that fail only.
        let _ = writeln!(io::stderr(), "{}: {otherwise}", program().display());
    }
    is_offered
}

fn output(arguments: &[&str]) -> String {
    let output = Command::new(program())
        .args(arguments)
        .current_dir(env::temp_dir())
        .output();
    let output =
        output.unwrap_or_else(|error| panic!("cannot run {}: {error}", program().display()));
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}
