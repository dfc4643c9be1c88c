//! Values that no script has written are not read as a bucket.

use std::time::Duration;

use crate::bucket::quota::Quota;
use crate::bucket::tests::agreement::virtual_time::VirtualTime;
use crate::bucket::tests::fixtures::START;
use crate::error::Error;
use crate::token_bucket::TokenBucket;
use support::redis_server::RedisServer;

struct Forger {
    _server: RedisServer,
    time: VirtualTime,
    bucket: TokenBucket,
}

impl Forger {
    async fn new(quota: Quota) -> Self {
        let server = RedisServer::start().await;
        let mut time = VirtualTime::new(&server);
        time.set(START);
        let bucket = TokenBucket::new(&VirtualTime::store(&server), "forged", quota).unwrap();
        Self {
            _server: server,
            time,
            bucket,
        }
    }

    fn key(&mut self) -> String {
        let keys: Vec<String> = self
            .time
            .client
            .query(redis::cmd("KEYS").arg("*forged*"))
            .unwrap();
        keys.into_iter().next().unwrap()
    }

    fn get(&mut self) -> Vec<u8> {
        let key = self.key();
        self.time.client.query(redis::cmd("GET").arg(key)).unwrap()
    }

    fn set(&mut self, value: &[u8]) {
        let key = self.key();
        self.time
            .client
            .query::<()>(redis::cmd("SET").arg(key).arg(value))
            .unwrap();
    }

    async fn is_refused(&mut self, value: &[u8]) {
        self.set(value);
        let bucket = &self.bucket;
        let errors = [
            bucket.peek("k").await.err(),
            bucket.allow("k").await.err(),
            bucket.charge("k", 1).await.err(),
            bucket.authorize("k", 1).await.err(),
        ];
        for error in errors {
            let text = error.map_or_else(String::new, |error: Error| format!("{error} {error:?}"));
            assert!(
                text.contains("not a bucket"),
                "{:?}: {text}",
                String::from_utf8_lossy(value)
            );
        }
        assert_eq!(self.get(), value, "it is left as it is");
    }
}

#[tokio::test]
async fn a_forged_state_is_not_a_bucket() {
    let mut forger = Forger::new(Quota::per_second(10).burst(20)).await;
    let hold = forger.bucket.authorize("k", 7).await.unwrap();
    let (now, stored) = (START, forger.get());
    let record = &stored[stored.len() - 33..];
    let (plain, next, last) = (
        format!("{now} 0 100000 1 20|"),
        now + 1_000_000,
        now + 2_000_000,
    );
    let head = |seen: i64, [count, held, captures]: [u32; 3], [next, last]: [i64; 2]| {
        let (seen, count) = (seen.to_be_bytes(), (count as u16).to_be_bytes());
        let (held, captures) = (held.to_be_bytes(), captures.to_be_bytes());
        [
            &seen[..],
            &count,
            &held,
            &captures,
            &next.to_be_bytes(),
            &last.to_be_bytes(),
        ]
        .concat()
    };
    let state = |numbers: &str, head: Vec<u8>, records: &[u8]| {
        [numbers.as_bytes(), &head, records].concat()
    };
    let with = |counts, ends| state(&plain, head(now, counts, ends), record);
    let good = head(now, [1, 7, 7], [next, last]);
    let ends = [now + 30_000_000; 2];
    assert_eq!(
        stored,
        state("0 0 100000 1 20|", head(now, [1, 7, 7], ends), record)
    );
    let forged = [
        with([0, 7, 7], [next, last]),
        with([8, 7, 7], [next, last]),
        with([1025, 2000, 7], [next, last]),
        with([1, 7, 8], [next, last]),
        with([1, 0, 0], [next, last]),
        with([1, 7, 7], [last, next]),
        with([1, 7, 7], [next, 9_007_199_254_740_993]),
        with([1, 7, 7], [-1, last]),
        state(&plain, head(-1, [1, 7, 7], [next, last]), record),
        state(&format!("{now} 0 100000 1 20 {now}|"), good.clone(), record),
        state(
            &format!("{now} 0 100000 1 20 |"),
            good.clone(),
            &record[..32],
        ),
        state("x|", good.clone(), record),
        state("|", good.clone(), record),
        state(&plain, good.clone(), &[record, &[0]].concat()),
        state(&plain, good.clone(), &[]),
        state(&plain, Vec::new(), &[]),
        // Records that are read only when a hold has ended.
        state(&plain, head(now, [1, 7, 7], [now, last]), &[255; 33]),
        state(&plain, head(now, [1, 7, 7], [now, last]), &[0; 33]),
        state(
            &plain,
            head(now, [1, 7, 7], [now, last]),
            &[&record[..29], &[0; 4]].concat(),
        ),
    ];
    for value in forged {
        forger.is_refused(&value).await;
    }
    let key = forger.key();
    forger
        .time
        .client
        .query::<()>(redis::cmd("DEL").arg(key))
        .unwrap();
    assert!(hold.capture(3).await.unwrap().ended);
}

#[tokio::test]
async fn forged_states_are_refused() {
    // At this offset from UTC, midnight is 40 s later.
    let mut forger = Forger::new(Quota::per_calendar_day(3).at_offset(-(8 * 60 + 54))).await;
    assert!(forger.bucket.allow_n("k", 2).await.unwrap().is_admitted());
    let stored = String::from_utf8(forger.get()).unwrap();
    let code = stored.split(' ').nth(6).unwrap();
    assert_eq!(code, "3786", "{stored}"); // a day, at -534 minutes: 2880 + 1440 - 534
    let window = stored.split(' ').nth(3).unwrap();
    assert_eq!(stored, format!("0 2 -1 {window} 0 0 {code} 3"));
    let late = 1_u64 << 53;
    for value in [
        format!("2 -1 0 {code} 3"),                       // without a window
        format!("0 2 -1 0 0 0 {code} 3"),                 // window 0
        format!("0 2 -1 {window} 1 0 {code} 3"),          // a part of a window
        format!("0 2 0 {window} 0 0 {code} 3"),           // a time
        format!("0 2 -1 {window} 0 0 2880 3"),            // an offset of -24 hours
        format!("0 2 -1 {window} 0 0 1048576 3"),         // no code
        format!("0 2 -1 {window} 0 0 7 3"),               // no code
        format!("0 2 -1 {window} 0 0 {code} 0"),          // no tokens
        format!("0 60000 -1 {window} 0 0 {code} 3"),      // used for ever
        format!("0 9007199254740991 -1 1 0 0 {code} 3"),  // used for ever
        format!("{} 0 9007199254740991 1 99", START + 9), // it fills after all times
        format!("0 2 -1 {window} 0 0 {code} 3 x"),        // more than a state
        format!("0 2 -1 {window} 0 0 {code} 3 {late}"),   // written after all times
        format!("{START} 0 10 1 0"),                      // no tokens
        format!("{START} 0 10 1 3 {late}"),               // written after all times
        format!("1 0 1 1 {}x", "9".repeat(100_000)),      // long, to be read at once
    ] {
        forger.is_refused(value.as_bytes()).await;
    }
    // The window of a clock that was years ahead.
    forger.set(format!("0 3 -1 9007199254740991 0 0 {code} 3").as_bytes());
    let refused = forger.bucket.allow("k").await.unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(86_440)));
}
