//! Classifies the errors of Redis.

mod connecting;
mod denied;

use std::borrow::Cow;

use redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};

pub(super) use self::connecting::no_connection;
pub(super) use self::denied::is_denied;
use crate::error::{Cause, Outage};

/// Codes of a server that is up but cannot serve now. An error that a script raises contains the code in its text,
/// so the text is searched too.
const NOT_SERVING: [&str; 11] = [
    "BUSY",
    "LOADING",
    "READONLY",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "OOM",
    "NOAUTH",
    "WRONGPASS",
    "MISCONF",
    "UNKILLABLE",
];

/// The code of a node that cannot run a script on these keys now, because their slot is being moved.
const TRYAGAIN: &str = "TRYAGAIN";

/// How it refuses a script that asks again for a key that it has removed, since that key may be at the other node.
const NON_LOCAL: &str = "non local key";

/// The code of our own error for a call that is not on enough replicas, or not on disk.
const NOT_DURABLE: &str = "NOTDURABLE";

/// The error for a call that has run and does not count.
pub(super) fn not_durable(missing: String) -> RedisError {
    make_extension_error(NOT_DURABLE.into(), Some(missing))
}

/// The error for a call under way at a former master.
#[cfg(feature = "sentinel")]
pub(super) fn another_master() -> RedisError {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionAborted,
        "Sentinel names another master",
    )
    .into()
}

/// Where a master of a Cluster redirects a call.
pub(super) struct Redirect {
    pub(super) address: String,
    /// Whether the other node is only getting the slot.
    pub(super) ask: bool,
}

pub(super) fn redirect(error: &RedisError) -> Option<Redirect> {
    let (address, _) = error.redirect_node()?;
    // A node that does not know the host leaves it out, or tells `?`. An IPv6 address may begin with a colon.
    if address
        .rsplit_once(':')
        .is_none_or(|(host, _)| host.is_empty() || host == "?")
    {
        return None;
    }
    let ask = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
    Some(Redirect {
        address: address.to_owned(),
        ask,
    })
}

pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// An outage that no error of the client library tells.
pub(super) fn of(cause: Cause, text: impl Into<Cow<'static, str>>) -> Outage {
    Outage {
        cause,
        text: text.into(),
        source: None,
    }
}

pub(super) fn disconnected(text: impl Into<Cow<'static, str>>) -> Outage {
    of(Cause::Disconnected, text)
}

pub(super) fn outage(error: RedisError) -> Outage {
    let cause = if error.is_timeout() {
        Cause::TimedOut
    } else if error.is_io_error() || error.is_unrecoverable_error() {
        Cause::Disconnected
    } else if matches!(
        error.kind(),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
    ) {
        Cause::Redirected
    } else if error.code() == Some(NOT_DURABLE) {
        Cause::NotDurable
    } else if error.code() == Some(TRYAGAIN) {
        Cause::Moving
    } else if error.detail().is_some_and(|text| text.contains(NON_LOCAL)) {
        Cause::MovedMidway
    } else if is_denied(&error) {
        Cause::Denied
    } else if is_not_serving(&error) {
        Cause::NotServing
    } else {
        Cause::Unexpected
    };
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => denied::explained(code, detail),
        _ => error.to_string(),
    };
    Outage {
        cause,
        text: text.into(),
        source: denied::source(error),
    }
}

fn is_not_serving(error: &RedisError) -> bool {
    has_code(error, &NOT_SERVING)
        // A long command gets this instead of NOAUTH.
        || error.detail().is_some_and(|text| text.contains("unauthenticated"))
}

/// Whether the server has no memory for what a call would add.
pub(super) fn is_out_of_memory(error: &RedisError) -> bool {
    has_code(error, &["OOM"])
}

/// Whether the server refuses all that writes, or all that grows.
pub(super) fn refuses_writes(error: &RedisError) -> bool {
    has_code(error, &["OOM", "NOREPLICAS", "MISCONF"])
}

fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    let is_one = |code: &str| codes.contains(&code);
    let first_word = |text: &str| {
        // Redis 6.2 puts the place before the error of a command in a script: `@user_script: 7: -READONLY …`.
        let of_script = text
            .strip_prefix("@user_script: ")
            .and_then(|text| text.split_once(": "));
        let text = of_script.map_or(text, |(_, text)| text);
        text.trim_start_matches('-')
            .split(' ')
            .next()
            .is_some_and(is_one)
    };
    error.code().is_some_and(is_one) || error.detail().is_some_and(first_word)
}

/// Whether the server is unreachable or does not serve. Breakers count these outages.
pub(super) fn is_outage(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::TimedOut | Cause::Disconnected | Cause::NotSent | Cause::NotServing
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, detail: &str) -> Outage {
        outage(redis::make_extension_error(
            code.into(),
            Some(detail.into()),
        ))
    }

    #[test]
    fn a_server_that_cannot_serve_is_told_from_one_that_answers_nonsense() {
        for code in NOT_SERVING {
            assert_eq!(server(code, "x").cause, Cause::NotServing, "{code}");
            assert_eq!(
                server("ERR", &format!("{code} within a script")).cause,
                Cause::NotServing,
                "{code}"
            );
        }
        // As Redis 6.2 tells it of a script.
        let replica = "@user_script: 7: -READONLY You can't write against a read only replica.";
        assert_eq!(server("ERR", replica).cause, Cause::NotServing);
        assert_eq!(server("NOPERM", "x").cause, Cause::Denied);
        assert_eq!(server("ERR", "NOPERM within a script").cause, Cause::Denied);
        assert_eq!(server(TRYAGAIN, "x").cause, Cause::Moving);
        let removed = "Script attempted to access a non local key in a cluster node script: 1f, on @user_script:1.";
        assert_eq!(server("ERR", removed).cause, Cause::MovedMidway);
        for cause in [Cause::Denied, Cause::Moving, Cause::MovedMidway] {
            assert!(!is_outage(cause));
        }
        assert_eq!(server("WRONGTYPE", "x").cause, Cause::Unexpected);
        assert_eq!(
            server("ERR", "user_script:1: BUSYBODY").cause,
            Cause::Unexpected
        );
    }

    #[test]
    fn a_connection_that_cannot_be_used_is_a_disconnection() {
        use std::io::ErrorKind::{
            BrokenPipe, ConnectionRefused, Other, PermissionDenied, TimedOut,
        };
        for kind in [BrokenPipe, ConnectionRefused, Other, PermissionDenied] {
            assert_eq!(
                outage(std::io::Error::from(kind).into()).cause,
                Cause::Disconnected,
                "{kind}"
            );
        }
        assert_eq!(
            outage(std::io::Error::from(TimedOut).into()).cause,
            Cause::TimedOut
        );
        for kind in [
            ErrorKind::Parse,
            ErrorKind::AuthenticationFailed,
            ErrorKind::ClusterConnectionNotFound,
        ] {
            assert_eq!(outage((kind, "x").into()).cause, Cause::Disconnected);
        }
        for cause in [
            Cause::TimedOut,
            Cause::Disconnected,
            Cause::NotSent,
            Cause::NotServing,
        ] {
            assert!(is_outage(cause), "{cause:?}");
        }
    }

    #[test]
    fn a_call_is_redirected_to_an_address_that_is_told() {
        let told = |text: &str| match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => RedisError::from(error),
            other => panic!("{other:?}"),
        };
        let to = |text| redirect(&told(text)).map(|redirect| (redirect.address, redirect.ask));
        assert_eq!(to("MOVED 5 a:7"), Some(("a:7".into(), false)));
        assert_eq!(to("ASK 5 a:7"), Some(("a:7".into(), true)));
        assert_eq!(to("MOVED 5 ::1:7"), Some(("::1:7".into(), false)));
        for nowhere in ["MOVED 5 ?:7", "MOVED 5 :7", "ERR 5 a:7"] {
            assert_eq!(to(nowhere), None, "{nowhere}");
        }
        assert_eq!(outage(told("MOVED 5 :7")).cause, Cause::Redirected);
        assert!(
            is_no_script(&told("NOSCRIPT No matching script.")) && !is_no_script(&told("ERR x"))
        );
    }
}
