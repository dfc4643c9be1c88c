//! What a server denies by its access control list (ACL), or because a command is renamed or disabled.

use std::error::Error;
use std::sync::Arc;

use redis::RedisError;

/// How errors in scripts begin: up to Redis 7.0, and since 7.2 and in Valkey.
const IN_SCRIPTS: [&str; 2] = [
    "The user executing the script can't",
    "ACL failure in script",
];

/// Whether the server has no such command, as Redis says it, and then as ApsaraDB, Upstash and Envoy do.
const UNKNOWN: [&str; 7] = [
    "unknown command",
    "unknown subcommand",
    "Unknown Redis command called from",
    "Unknown command called from",
    "not support for",
    "Command is not available",
    "unsupported command",
];

/// The commands that only operators need, as the server names them.
const OF_OPERATORS: [&str; 3] = ["'scan'", "'function|list'", "'function|delete'"];

/// How a proxy of ApsaraDB refuses a script because of its text, and Dragonfly because of its keys.
const CHECKED: [&str; 2] = ["bad lua script", "tried accessing undeclared key"];

/// After this, a server repeats the arguments of a command that it does not know: keys, tokens and passwords.
const ARGUMENTS: &str = ", with args beginning with";

pub(in crate::store::redis) fn is_denied(error: &RedisError) -> bool {
    // If an error has no code, its first word is taken for one.
    let text = format!(
        "{} {}",
        error.code().unwrap_or_default(),
        error.detail().unwrap_or_default()
    );
    let is_one = |parts: &[&str]| has_one(&text, parts);
    super::has_code(error, &["NOPERM"])
        || is_one(&IN_SCRIPTS)
        || is_one(&UNKNOWN)
        || is_one(&CHECKED)
}

/// The text without the arguments of a command.
pub(super) fn without_arguments(text: &str) -> &str {
    text.split_once(ARGUMENTS).map_or(text, |(text, _)| text)
}

/// The error as a source of another, unless it repeats the arguments of a command.
pub(super) fn source(error: RedisError) -> Option<Arc<dyn Error + Send + Sync>> {
    (!error.to_string().contains(ARGUMENTS)).then(|| Arc::new(error) as _)
}

/// The text of an error, with what to do if the server denies a command, a key or a channel, or does not write.
pub(super) fn explained(code: &str, detail: &str) -> String {
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
mod tests {
    use redis::make_extension_error;

    use super::*;
    use crate::error::Cause;

    /// As Redis 6.2, 7.0 and 7.2 write them, below what is told of them.
    const DENIED: &str = "\
allow the commands of Store::acl_rule
  NOPERM this user has no permissions to run the 'evalsha' command
  NOPERM User app has no permissions to run the 'evalsha' command
  ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:3.
  ERR ACL failure in script: User app has no permissions to run the 'set' command script: 1
Operator::acl_rule
  NOPERM this user has no permissions to run the 'scan' command
  NOPERM User app has no permissions to run the 'scan' command
  NOPERM this user has no permissions to run the 'function|list' command
allow the keys
  NOPERM this user has no permissions to access one of the keys used as arguments
  NOPERM No permissions to access a key
  ERR The user executing the script can't access at least one of the keys mentioned in the command
  ERR ACL failure in script: No permissions to access a key script: 1, on @user_script:3.
allow the channels
  NOPERM this user has no permissions to access one of the channels used as arguments
  NOPERM No permissions to access a channel
  ERR The user executing the script can't publish to the channel mentioned in the command script: 1
renamed, disabled or missing
  ERR unknown command 'EVALSHA', with args beginning with: 'secret' '1'
  ERR Unknown Redis command called from script script: 1, on @user_script:3.
  ERR Unknown command called from script script: 1
  ERR command 'evalsha' not support for your account
  ERR Command is not available: 'EVALSHA'
  unsupported command 'evalsha'
has no functions
  ERR unknown command `FUNCTION`, with args beginning with: `LIST` `secret`
check of scripts off
  ERR bad lua script for redis cluster, all the keys that the script uses should be passed
  ERR script tried accessing undeclared key";

    #[test]
    fn what_is_denied_is_named() {
        let outage = |error: &str| {
            let (code, text) = error.split_once(' ').unwrap();
            super::super::outage(make_extension_error(code.into(), Some(text.into())))
        };
        let mut remedy = "";
        for line in DENIED.lines() {
            let Some(error) = line.strip_prefix("  ") else {
                remedy = line;
                continue;
            };
            let outage = outage(error);
            assert_eq!(outage.cause, Cause::Denied, "{error}");
            assert!(outage.text.contains(remedy), "{}", outage.text);
            assert!(!outage.text.contains("secret"), "{}", outage.text);
            assert_eq!(
                outage.source.is_some(),
                !error.contains("secret"),
                "{error}"
            );
        }
        assert_eq!(explained("ERR", "syntax error"), "ERR syntax error");
        let replica = outage("READONLY You can't write");
        assert_eq!(replica.cause, Cause::NotServing);
        assert!(replica.text.contains("the primary"), "{}", replica.text);
    }
}
