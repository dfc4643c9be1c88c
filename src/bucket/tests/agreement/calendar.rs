//! The windows of calendar quotas in Lua and in Rust.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::bucket::calendar::tests::{random_code, random_instant};
use crate::bucket::calendar::{Calendar, Tokens};
use support::redis_server::RedisServer;
use support::seed;

const CALLS: usize = 100;

const PER_CALL: usize = 1_000;

const PIECES: &str = concat!(
    include_str!("../../../../lua/clock.lua"),
    "local calendar = {}\n",
    include_str!("../../../../lua/calendar.lua")
);

/// Returns per code and time (µs): the window, its start and the start of the next one.
const WINDOWS: &str = "
local reply = {}
for i = 1, #ARGV, 2 do
  local of, at = calendar.decode(tonumber(ARGV[i])), tonumber(ARGV[i + 1])
  local nth = window(of, at)
  reply[#reply + 1] = string.format('%d %d %d', nth, start(of, nth), start(of, nth + 1))
end
return reply
";

#[tokio::test]
async fn windows_are_the_same_in_lua_and_in_rust() {
    let server = RedisServer::start().await;
    let mut client = server.client().unwrap();
    let seed = seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let script = format!("{PIECES}bind()\n{WINDOWS}");
    for _ in 0..CALLS {
        let cases: Vec<_> = (0..PER_CALL)
            .map(|_| (random_code(&mut rng), random_instant(&mut rng)))
            .collect();
        let mut call = redis::cmd("EVAL");
        call.arg(&script).arg(0);
        for (code, at) in &cases {
            call.arg(*code).arg(*at);
        }
        let lua: Vec<String> = client.query(&call).unwrap();
        for ((code, at), lua) in cases.into_iter().zip(lua) {
            let calendar = Calendar::of(&Tokens {
                burst: 1,
                num: 0,
                den: code,
            })
            .unwrap();
            let window = calendar.window(at);
            let rust = format!(
                "{window} {} {}",
                calendar.start(window),
                calendar.start(window + 1)
            );
            assert_eq!(lua, rust, "SEED={seed}, {code} at {at}");
        }
    }
}

/// Lua and Rust take the same codes for calendars.
#[tokio::test]
async fn codes_are_the_same_in_lua_and_in_rust() {
    let server = RedisServer::start().await;
    let mut client = server.client().unwrap();
    // In parts: a client waits for a reply as long as for any other.
    let script = format!(
        "{PIECES}bind()\nlocal count, sum = 0, 0
        for code = tonumber(ARGV[1]), tonumber(ARGV[2]) do
          if calendar.decode(code) then count, sum = count + 1, sum + code end
        end
        return {{count, sum}}"
    );
    let mut lua = (0, 0);
    for part in 0..64 {
        let first = (part << 14).max(2);
        let last = ((part + 1) << 14) - 1;
        let mut call = redis::cmd("EVAL");
        let (count, sum): (i64, i64) = client
            .query(call.arg(&script).arg(0).arg(first).arg(last))
            .unwrap();
        lua = (lua.0 + count, lua.1 + sum);
    }
    let codes = (2..1 << 20).filter(|&den| {
        Calendar::of(&Tokens {
            burst: 1,
            num: 0,
            den,
        })
        .is_some()
    });
    assert_eq!(
        lua,
        codes.fold((0, 0), |(count, sum), code| (count + 1, sum + code))
    );
}
