//! Whether a server has functions, and what its replies reveal about the library.
//!
//! A new connection checks this once, with a call of the library that names no operation. A server that replies that it
//! does not have the library has functions, and gets the library with the first call that needs it. After all other
//! refusals, and if a proxy closes the connection, calls are sent as scripts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{self, RedisError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::reasons::{Cause, Outage};
use crate::store::redis::errors;
use crate::store::redis::library::Library;

/// How long calls are sent as scripts after the library could not be loaded for a temporary reason.
const PAUSE: Duration = Duration::from_secs(1);

/// The state of the functions of a connection's server.
#[derive(Debug)]
pub(super) struct Functions {
    are_there: AtomicBool,
    /// Whether the server replied that it does not have the library, and it was not loaded since.
    is_missing: AtomicBool,
    /// Until when calls are sent as scripts, in ms since `made`; 0: they are not.
    paused: AtomicU64,
    made: Instant,
    pub(super) loading: Mutex<Option<watch::Receiver<Option<Loading>>>>,
}

/// The result of loading the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    /// The library is loaded, perhaps by another client.
    Done,
    /// Temporarily not possible: this call is sent as a script.
    NotNow,
    /// Not possible on this connection.
    Never,
    /// The connection was closed.
    Lost,
}

impl Functions {
    pub(super) fn none() -> Self {
        Self::from(Has::None)
    }

    /// Records that the server does not have the library.
    pub(super) fn miss(&self) {
        self.is_missing.store(true, Ordering::Relaxed);
    }

    /// Records that the library was loaded.
    pub(super) fn found(&self) {
        self.is_missing.store(false, Ordering::Relaxed);
    }

    pub(super) fn are_missing(&self) -> bool {
        self.is_missing.load(Ordering::Relaxed)
    }

    pub(super) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }

    /// Whether calls are sent as functions now.
    pub(super) fn are_used(&self) -> bool {
        let paused = self.paused.load(Ordering::Relaxed);
        self.are_there.load(Ordering::Relaxed)
            && (paused == 0 || self.made.elapsed() >= Duration::from_millis(paused))
    }

    /// For a while, calls are sent as scripts.
    pub(super) fn pause(&self) {
        let until = (self.made.elapsed() + PAUSE).as_millis();
        self.paused
            .store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// From now on, calls are sent as scripts.
    pub(super) fn forbid(&self) {
        self.are_there.store(false, Ordering::Relaxed);
    }
}

/// The capabilities of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Library,
    /// Functions, but not the library.
    Functions,
    None,
}

impl From<Has> for Functions {
    fn from(has: Has) -> Self {
        Self {
            are_there: AtomicBool::new(has != Has::None),
            is_missing: AtomicBool::new(has == Has::Functions),
            paused: AtomicU64::new(0),
            made: Instant::now(),
            loading: Mutex::default(),
        }
    }
}

/// Returns the call with which a new connection checks for functions.
pub(super) fn question(library: &Library) -> redis::Cmd {
    let mut call = redis::cmd("FCALL");
    call.arg(&library.name).arg(0);
    call
}

/// Returns the capabilities that the reply shows; for a server without functions also the reason.
pub(super) fn read_answer(answer: Result<redis::Value, RedisError>) -> (Has, Option<Outage>) {
    let error = match answer {
        Ok(_) => return (Has::Library, None),
        Err(error) if is_unknown(&error) => return (Has::Functions, None),
        Err(error) => error,
    };
    if error
        .detail()
        .is_some_and(|text| text.contains("no such operation"))
    {
        return (Has::Library, None);
    }
    let outage = errors::outage(error);
    match outage.cause {
        // Temporary errors do not depend on functions.
        Cause::NotServing | Cause::Redirected | Cause::Moving => (Has::Library, None),
        _ => (Has::None, Some(outage)),
    }
}

/// Whether the server has functions, but not this one.
pub(super) fn is_unknown(error: &RedisError) -> bool {
    error
        .detail()
        .is_some_and(|text| text.contains("unction not found"))
}

/// Whether the server denies functions, or has none: this has changed since the connection was made.
pub(super) fn are_refused(error: &RedisError) -> bool {
    let names_it = |text: &str| text.contains("fcall") || text.contains("FCALL");
    errors::is_denied(error) && error.detail().is_some_and(names_it)
}

/// Returns the meaning of an error of loading.
pub(super) fn ended(error: RedisError) -> Loading {
    if error
        .detail()
        .is_some_and(|text| text.contains("already exists"))
    {
        return Loading::Done;
    }
    match errors::outage(error).cause {
        Cause::NotServing | Cause::Redirected | Cause::Moving | Cause::TimedOut => Loading::NotNow,
        Cause::Disconnected => Loading::Lost,
        _ => Loading::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> RedisError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_passes_is_told_from_what_stays() {
        for (text, expected) in [
            ("ERR Library 'td_1' already exists", Loading::Done),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Loading::NotNow,
            ),
            (
                "READONLY You can't write against a read only replica.",
                Loading::NotNow,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Loading::NotNow,
            ),
            (
                "NOPERM this user has no permissions to run the 'function|load' command",
                Loading::Never,
            ),
            (
                "ERR unknown command 'FUNCTION', with args beginning with: 'LOAD' ",
                Loading::Never,
            ),
        ] {
            assert_eq!(ended(error(text)), expected, "{text}");
        }
    }
}
