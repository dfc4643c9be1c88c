//! Whether a server has functions, and what its answers say of the library.
//!
//! A new connection asks once, by a call of the library that names no operation. A server that does not know the library has
//! functions, and gets the library with the first call that needs it. After all other refusals, and where a proxy closes the
//! connection, calls go as scripts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{self, RedisError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::reasons::{Cause, Outage};
use crate::store::redis::errors;
use crate::store::redis::library::Library;

/// For how long calls go as scripts after the library could not be loaded, because of something that passes.
const PAUSE: Duration = Duration::from_secs(1);

/// What a connection knows of the functions of its server.
#[derive(Debug)]
pub(super) struct Functions {
    are_there: AtomicBool,
    /// Whether the server has said that it does not know the library, and nobody has loaded it since.
    is_missing: AtomicBool,
    /// Until when calls go as scripts, in ms since it was made; 0: they do not.
    paused: AtomicU64,
    made: Instant,
    pub(super) loading: Mutex<Option<watch::Receiver<Option<Loading>>>>,
}

/// How loading the library has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loading {
    /// It is there, perhaps since another has loaded it.
    Done,
    /// Not now: this call goes as a script.
    NotNow,
    /// Not on this connection.
    Never,
    /// The connection was closed.
    Lost,
}

impl Functions {
    pub(super) fn none() -> Self {
        Self::from(Has::None)
    }

    /// The server does not know the library.
    pub(super) fn miss(&self) {
        self.is_missing.store(true, Ordering::Relaxed);
    }

    /// The library was loaded.
    pub(super) fn found(&self) {
        self.is_missing.store(false, Ordering::Relaxed);
    }

    pub(super) fn are_missing(&self) -> bool {
        self.is_missing.load(Ordering::Relaxed)
    }

    pub(super) fn are_there(&self) -> bool {
        self.are_there.load(Ordering::Relaxed)
    }

    /// Whether calls are to be calls of functions now.
    pub(super) fn are_used(&self) -> bool {
        let paused = self.paused.load(Ordering::Relaxed);
        self.are_there() && (paused == 0 || self.made.elapsed() >= Duration::from_millis(paused))
    }

    /// For a while calls go as scripts.
    pub(super) fn pause(&self) {
        let until = (self.made.elapsed() + PAUSE).as_millis();
        self.paused
            .store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// From now on calls go as scripts.
    pub(super) fn forbid(&self) {
        self.are_there.store(false, Ordering::Relaxed);
    }
}

/// What a server has.
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

/// The call by which a new connection asks.
pub(super) fn question(library: &Library) -> redis::Cmd {
    let mut call = redis::cmd("FCALL");
    call.arg(&library.name).arg(0);
    call
}

/// What an answer to it says; of a server without functions also why.
pub(super) fn told(answer: Result<redis::Value, RedisError>) -> (Has, Option<Outage>) {
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
        // What passes says nothing of functions.
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

/// Whether the server denies functions, or has none: since this connection was made, that has changed.
pub(super) fn are_refused(error: &RedisError) -> bool {
    let names_it = |text: &str| text.contains("fcall") || text.contains("FCALL");
    errors::is_denied(error) && error.detail().is_some_and(names_it)
}

/// What an error of loading means.
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
