//! What a server denies by its access control list (ACL), or because a command is renamed or disabled.

use redis::RedisError;

/// How errors in scripts begin: up to Redis 7.0, and since 7.2 and in Valkey.
const IN_SCRIPTS: [&str; 2] = ["The user executing the script can't", "ACL failure in script"];

/// Whether the server has no such command.
const UNKNOWN: [&str; 4] = [
    "unknown command",
    "unknown subcommand",
    "Unknown Redis command called from",
    "Unknown command called from",
];

pub(super) fn is_denied(error: &RedisError) -> bool {
    super::has_code(error, &["NOPERM"])
        || error.detail().is_some_and(|text| has_one(text, &IN_SCRIPTS) || has_one(text, &UNKNOWN))
}

/// The text of an error, with what to do if the server denies a command, a key or a channel.
pub(super) fn explained(code: &str, detail: &str) -> String {
    // It repeats the arguments, which are keys and tokens.
    let (detail, _) = detail.split_once(", with args beginning with").unwrap_or((detail, ""));
    let remedy = match code == "NOPERM" || has_one(detail, &IN_SCRIPTS) {
        true if detail.contains("channel") => "allow the channels `&<prefix>:wake:*`",
        true if detail.contains("can't access") || detail.contains("access one of the keys") => KEYS,
        true if detail.contains("permissions to access a key") => KEYS,
        true if detail.contains("'scan'") => "allow the commands of Operator::acl_rule",
        true => "allow the commands of Store::acl_rule; on the server, ACL LOG names the one that is missing",
        false if has_one(detail, &UNKNOWN) => {
            "the store needs this command: on the server it is renamed, disabled or missing; see Store::acl_rule"
        }
        false => return format!("{code} {detail}"),
    };
    format!("{code} {detail} ({remedy})")
}

const KEYS: &str =
    "allow the keys `~<prefix>:*`; with exact_names also the names of the locks and `~*:<prefix>:*`";

fn has_one(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use redis::make_extension_error;

    use super::*;
    use crate::error::Cause;

    /// As Redis 6.2, 7.0 and 7.2 write them.
    #[test]
    fn what_is_denied_is_named() {
        let commands = [
            ("NOPERM", "this user has no permissions to run the 'evalsha' command"),
            ("NOPERM", "User app has no permissions to run the 'evalsha' command"),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: 1, on @user_script:3.",
            ),
            ("ERR", "ACL failure in script: User app has no permissions to run the 'set' command script: 1"),
        ];
        let scan = [
            ("NOPERM", "this user has no permissions to run the 'scan' command"),
            ("NOPERM", "User app has no permissions to run the 'scan' command"),
        ];
        let keys = [
            ("NOPERM", "this user has no permissions to access one of the keys used as arguments"),
            ("NOPERM", "No permissions to access a key"),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys mentioned in the command",
            ),
            ("ERR", "ACL failure in script: No permissions to access a key script: 1, on @user_script:3."),
        ];
        let channels = [
            ("NOPERM", "this user has no permissions to access one of the channels used as arguments"),
            ("NOPERM", "No permissions to access a channel"),
            (
                "ERR",
                "The user executing the script can't publish to the channel mentioned in the command script: 1",
            ),
        ];
        let unknown = [
            ("ERR", "unknown command 'EVALSHA', with args beginning with: 'secret' '1'"),
            ("ERR", "Unknown Redis command called from script script: 1, on @user_script:3."),
            ("ERR", "Unknown command called from script script: 1"),
        ];
        for (errors, remedy) in [
            (&commands[..], "allow the commands"),
            (&scan, "Operator::acl_rule"),
            (&keys, "allow the keys"),
            (&channels, "allow the channels"),
            (&unknown, "renamed, disabled or missing"),
        ] {
            for (code, text) in errors {
                let outage = super::super::outage(make_extension_error((*code).into(), Some((*text).into())));
                assert_eq!(outage.cause, Cause::Denied, "{text}");
                assert!(outage.text.contains(remedy), "{}", outage.text);
                assert!(!outage.text.contains("secret"), "{}", outage.text);
            }
        }
        assert_eq!(explained("ERR", "syntax error"), "ERR syntax error");
    }
}
