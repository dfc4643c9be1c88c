//! The meaning of each error of a server.

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
    // The text of Redis 6.2 for a script.
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
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, Other, PermissionDenied, TimedOut};
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
    assert!(is_no_script(&told("NOSCRIPT No matching script.")) && !is_no_script(&told("ERR x")));
}

/// The texts of Redis 6.2, 7.0 and 7.2, below the remedy for them.
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
        super::outage(make_extension_error(code.into(), Some(text.into())))
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
