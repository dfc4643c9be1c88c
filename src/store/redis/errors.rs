//! The errors of Redis: their meaning for a call, and remedies for denials by an access control list (ACL) or a renamed
//! command.

pub(super) mod connecting;

use std::borrow::Cow;
use std::error::Error as StdError;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind, make_extension_error};

use crate::error::reasons::{Cause, Outage};

/// Codes of a server that is up but cannot serve now. An error that a script raises contains the code in its text, so
/// the text is searched too.
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

/// The error of such a node for a script that reads a key again that it has removed, since that key may be on the other
/// node.
const NON_LOCAL: &str = "non local key";

/// The code of this crate's own error for a call that not enough replicas have received, or that is not on disk.
const NOT_DURABLE: &str = "NOTDURABLE";

/// Returns the error for a call that has run and does not count.
pub(super) fn not_durable(missing: String) -> RedisError {
    make_extension_error(NOT_DURABLE.into(), Some(missing))
}

/// Returns the error for a call in flight at a former master.
#[cfg(feature = "sentinel")]
pub(super) fn another_master() -> RedisError {
    std::io::Error::new(
        std::io::ErrorKind::ConnectionAborted,
        "Sentinel names another master",
    )
    .into()
}

/// The redirection of a call by a master of a Cluster.
pub(super) struct Redirect {
    pub(super) address: String,
    /// Whether the other node is importing the slot.
    pub(super) ask: bool,
}

pub(super) fn redirect(error: &RedisError) -> Option<Redirect> {
    let (address, _) = error.redirect_node()?;
    // A node that does not know the host omits it, or sends `?`. An IPv6 address may begin with a colon.
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

/// Makes an outage without an error of the client library.
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
        (Some(code), Some(detail)) => explained(code, detail),
        _ => error.to_string(),
    };
    Outage {
        cause,
        text: text.into(),
        source: source(error),
    }
}

fn is_not_serving(error: &RedisError) -> bool {
    has_code(error, &NOT_SERVING)
        // A long command gets this error instead of NOAUTH.
        || error.detail().is_some_and(|text| text.contains("unauthenticated"))
}

/// Whether the server has no memory for the data that a call would add.
pub(super) fn is_out_of_memory(error: &RedisError) -> bool {
    has_code(error, &["OOM"])
}

/// Whether the server refuses all writes, or all commands that use more memory.
pub(super) fn refuses_writes(error: &RedisError) -> bool {
    has_code(error, &["OOM", "NOREPLICAS", "MISCONF"])
}

fn has_code(error: &RedisError, codes: &[&str]) -> bool {
    let is_one = |code: &str| codes.contains(&code);
    let first_word = |text: &str| {
        // Redis 6.2 puts the position before the error of a command in a script: `@user_script: 7: -READONLY …`.
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

/// The beginnings of errors in scripts: up to Redis 7.0, and since 7.2 and in Valkey.
const IN_SCRIPTS: [&str; 2] = [
    "The user executing the script can't",
    "ACL failure in script",
];

/// The texts for a command that the server does not have: those of Redis, and then of ApsaraDB, Upstash and Envoy.
const UNKNOWN: [&str; 7] = [
    "unknown command",
    "unknown subcommand",
    "Unknown Redis command called from",
    "Unknown command called from",
    "not support for",
    "Command is not available",
    "unsupported command",
];

/// The commands that only operators need, by their names in errors.
const OF_OPERATORS: [&str; 3] = ["'scan'", "'function|list'", "'function|delete'"];

/// The refusals of a script by a proxy of ApsaraDB because of its text, and by Dragonfly because of its keys.
const CHECKED: [&str; 2] = ["bad lua script", "tried accessing undeclared key"];

/// After this text, a server repeats the arguments of an unknown command: keys, tokens and passwords.
const ARGUMENTS: &str = ", with args beginning with";

/// Whether the server denies a command, a key or a channel, or does not have the command.
pub(super) fn is_denied(error: &RedisError) -> bool {
    // If an error has no code, its first word is parsed as one.
    let text = format!(
        "{} {}",
        error.code().unwrap_or_default(),
        error.detail().unwrap_or_default()
    );
    let is_one = |parts: &[&str]| has_one(&text, parts);
    has_code(error, &["NOPERM"]) || is_one(&IN_SCRIPTS) || is_one(&UNKNOWN) || is_one(&CHECKED)
}

/// Returns the text without the arguments of a command.
fn without_arguments(text: &str) -> &str {
    text.split_once(ARGUMENTS).map_or(text, |(text, _)| text)
}

/// Returns the error as a source of another one, unless it repeats the arguments of a command.
fn source(error: RedisError) -> Option<Arc<dyn StdError + Send + Sync>> {
    (!error.to_string().contains(ARGUMENTS)).then(|| Arc::new(error) as _)
}

/// Returns the text of an error, with a remedy if the server denies a command, a key or a channel, or does not write.
fn explained(code: &str, detail: &str) -> String {
    let text = format!("{code} {}", without_arguments(detail));
    let remedy = match code == "NOPERM" || has_one(&text, &IN_SCRIPTS) {
        true if detail.contains("channel") => "allow the channels `&<prefix>:wake:*`",
        true if detail.contains("can't access") || detail.contains("access one of the keys") => {
            KEYS
        }
        true if detail.contains("permissions to access a key") => KEYS,
        true if has_one(detail, &OF_OPERATORS) => "allow the commands of Operator::acl_rule",
        true => {
            "allow the commands of Store::acl_rule; on the server, ACL LOG names the one that is missing"
        }
        false if has_one(&text, &UNKNOWN) && text.contains("FUNCTION") => {
            "the server has no functions, or forbids them: calls are scripts, and it keeps no library"
        }
        false if has_one(&text, &UNKNOWN) => {
            "the store needs this command: on the server it is renamed, disabled or missing; see Store::acl_rule"
        }
        false if has_one(&text, &CHECKED) => {
            "a proxy or the server refuses scripts because of their keys: switch its check of \
             scripts off"
        }
        false if text.contains("READONLY ") => {
            "this is a read-only replica: connect to the primary, not to an address that leads to replicas; after a \
             failover this passes by itself"
        }
        false => return text,
    };
    format!("{text} ({remedy})")
}

const KEYS: &str = "allow the keys `~<prefix>:*`; with exact_names also the names of the locks and `~*:<prefix>:*`";

fn has_one(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests;
