//! What somebody with write access makes of stored state.

use deadpool_redis::redis::{Cmd, Value, cmd};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use support::client::Client;

use crate::forgeries::forger::{forged, number};
use crate::forgeries::note;

fn chosen(rng: &mut StdRng, texts: &[Vec<u8>]) -> Vec<u8> {
    texts.choose(rng).cloned().unwrap_or_default()
}

/// A command that changes a value, as its type has it.
fn changes(rng: &mut StdRng, client: &mut Client, key: &[u8]) -> Cmd {
    let list = |client: &mut Client, command: &[&str]| -> Vec<Vec<u8>> {
        client
            .query(cmd(command[0]).arg(key).arg(&command[1..]))
            .unwrap()
    };
    let kind: String = client.query(cmd("TYPE").arg(key)).unwrap();
    let mut command = Cmd::new();
    match &*kind {
        "string" => {
            let text: Vec<u8> = client.query(cmd("GET").arg(key)).unwrap();
            command.arg("SET").arg(key).arg(forged(rng, &text));
            if rng.random() {
                command.arg("KEEPTTL");
            }
        }
        "zset" => {
            let member = chosen(rng, &list(client, &["ZRANGE", "0", "-1"]));
            match rng.random_range(0..4) {
                // Who lowers the sum of weights takes weight from holders, as who removes a holder does.
                0..3 if member == b"excess" => command.arg("EXISTS").arg(key),
                0 => command.arg("ZREM").arg(key).arg(member),
                1 => command.arg("ZADD").arg(key).arg(number(rng)).arg(member),
                2 => command
                    .arg("ZADD")
                    .arg(key)
                    .arg(number(rng))
                    .arg(forged(rng, &member)),
                _ => {
                    let (score, member) = (number(rng), &member[..member.len().min(100)]);
                    let command = command.arg("ZADD").arg(key);
                    (0..3000).fold(command, |command, n| {
                        command
                            .arg(score)
                            .arg([member, format!("{n}").as_bytes()].concat())
                    })
                }
            };
        }
        "hash" => {
            let (field, value) = (
                chosen(rng, &list(client, &["HKEYS"])),
                chosen(rng, &list(client, &["HVALS"])),
            );
            let field = if rng.random() {
                forged(rng, &field)
            } else {
                field
            };
            command
                .arg("HSET")
                .arg(key)
                .arg(field)
                .arg(forged(rng, &value));
        }
        "list" => {
            let value = chosen(rng, &list(client, &["LRANGE", "0", "-1"]));
            command.arg("RPUSH").arg(key).arg(forged(rng, &value));
        }
        _ => {
            let nothing = forged(rng, b"12 x");
            command.arg("SET").arg(key).arg(nothing);
        }
    }
    command
}

/// Changes one key of these, whether it exists or not.
pub(crate) fn attack(rng: &mut StdRng, client: &mut Client, keys: &[Vec<u8>]) {
    let key = chosen(rng, keys);
    let mut first = None;
    let command = match rng.random_range(0..10) {
        0 => {
            first = Some(cmd("DEL").arg(&key).clone());
            match rng.random_range(0..4) {
                0 => cmd("SET").arg(&key).arg(number(rng)).clone(),
                1 => cmd("RPUSH").arg(&key).arg(number(rng)).clone(),
                2 => cmd("HSET").arg(&key).arg("x").arg(number(rng)).clone(),
                _ => cmd("ZADD").arg(&key).arg(1).arg(number(rng)).clone(),
            }
        }
        1 => cmd("PERSIST").arg(&key).clone(),
        2 => cmd("PEXPIRE").arg(&key).arg(number(rng)).clone(),
        3 => cmd("DEL").arg(&key).clone(),
        _ => changes(rng, client, &key),
    };
    for command in first.iter().chain([&command]) {
        // What the server refuses changes nothing.
        if client.query::<Value>(command).is_ok() {
            note(&command.get_packed_command());
        }
    }
}
