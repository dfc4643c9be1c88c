//! Processes of the oldest version that writes the promised forms, beside those of this one, under load: what they hold,
//! wait for and write is forged in the forms of the page `wire_format`. Its tokens lack the endings that came later, such as
//! flow, cost and aging.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as Lock};
use std::time::Duration;

use deadpool_redis::redis;
use futures::future::join_all;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tower_distributed::dedupe::Claimed;
use tower_distributed::single_flight::Postcard;
use tower_distributed::wait_group::{PermitId, Turn};
use tower_distributed::{Dedupe, Error, Mutex, Quota, SingleFlight, Store, TokenBucket, WaitGroup};

use crate::stores::SOON;
use crate::wire_format::{Heard, Scene};
use support::eventually;

/// Far more than the slowest of these tests takes.
const LONG: Duration = Duration::from_secs(60);

/// How many waiters an old process has.
const OLD: usize = 20;

/// Another process of this version.
fn again(scene: &Scene) -> Store {
    Store::builder().timeout(Duration::from_secs(10)).redis(&scene.server.url()).unwrap()
}

/// The commands by which an old process has waiters in line, with the ids 0x10 and on.
fn in_line(key: &str, part: &str, token: impl Fn(usize) -> String) -> String {
    let one = |number| {
        let token = token(number);
        format!("ZADD {key}:{part}waiters {number} {token}\nZADD {key}:{part}beats <NOW+60s> {token}\n")
    };
    let ttls = format!("PEXPIRE {key}:{part}waiters 60000\nPEXPIRE {key}:{part}beats 60000\n");
    (0..OLD).map(one).chain([ttls]).collect()
}

/// The fence and the number of the waiter that a message grants something.
async fn granted(heard: &mut Heard) -> (u64, usize) {
    loop {
        let message = heard.next().await;
        let words: Vec<_> = message.split(' ').collect();
        if words[0] != "0" {
            return (words[1].parse().unwrap(), usize::from_str_radix(words[2], 16).unwrap() - 0x10);
        }
    }
}

/// Who is inside, as an outside referee counts.
#[derive(Default)]
struct Inside(AtomicU32);

impl Inside {
    async fn stay(&self, limit: u32) {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= limit, "{now} at once");
        tokio::task::yield_now().await;
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_permits_and_their_waiters_keep_to_the_limit() {
    const LIMIT: u32 = 3;
    let (scene, inside) = (Scene::new().await, Arc::new(Inside::default()));
    let mut heard = scene.other_process().await;
    let token = |number| format!("fedcba9876543210-{:x}.3938700/1/3", number + 0x10);
    let key = "td:{permits:k}";
    scene.run(&in_line(key, "permits:", token));
    scene.run(
        r#"
        ZADD td:{permits:k}:permits:holders <NOW+60s> 0123456789abcdef-1.3938700/2/3
        ZADD td:{permits:k}:permits:holders <NOW+60s> 0123456789abcdef-2.3938700/1/3
        ZADD td:{permits:k}:permits:holders 4503599627370497 excess
        PEXPIRE td:{permits:k}:permits:holders 172800000
        "#,
    );
    let plain = WaitGroup::new(&scene.store, "permits", LIMIT).unwrap();
    let fair = WaitGroup::builder(LIMIT).fair().priorities(2).build(&again(&scene), "permits").unwrap();
    let worker = |number: u8| {
        let turn = fair.with_turn(Turn::of(u64::from(number % 3)).class(number % 2)).unwrap();
        let group = if number.is_multiple_of(3) { plain.clone() } else { turn };
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for _ in 0..10 {
                let permit = group.add("k").await.unwrap();
                inside.stay(LIMIT).await;
                assert!(permit.done().await.unwrap());
            }
        })
    };
    let workers: Vec<_> = (0..24).map(worker).collect();
    let done =
        async |token: &str| plain.done(&format!("permits:k:{token}").parse::<PermitId>().unwrap()).await;
    for holder in ["0123456789abcdef-1.3938700/2/3", "0123456789abcdef-2.3938700/1/3"] {
        assert!(done(holder).await.unwrap());
    }
    let mut served = Vec::new();
    while served.len() < OLD {
        let (_, number) = granted(&mut heard).await;
        let (token, until) = (token(number), (scene.now() + 60_000_000).to_string());
        let holders = format!("{key}:permits:holders");
        // As its heartbeat does that accepts the grant, unless this machine was too slow for it.
        if scene.server.query::<u8>(&["ZADD", &holders, "XX", "CH", &until, &token]) == Ok(1) {
            inside.stay(LIMIT).await;
            assert!(done(&token).await.unwrap());
        }
        served.push(number);
    }
    assert_eq!(served, (0..OLD).collect::<Vec<_>>(), "in the order of arrival, once each");
    for worker in workers {
        timeout(LONG, worker).await.expect("a new waiter is not served").unwrap();
    }
    assert_eq!(plain.count("k").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_locks_and_their_waiters_exclude_new_ones() {
    let (scene, inside) = (Scene::new().await, Arc::new(Inside::default()));
    let mut heard = scene.other_process().await;
    let token = |number: usize| {
        let fence_ttl = if number.is_multiple_of(2) { "" } else { "~36ee80" };
        format!("fedcba9876543210-{:x}.3938700{fence_ttl}", number + 0x10)
    };
    let key = "td:{mutex:k}";
    scene.run(&in_line(key, "", token));
    scene.run(
        r#"
        SET td:{mutex:k}:lock 0123456789abcdef-1.3938700 PX 60000
        SET td:{mutex:k}:fence "4000000000000000 " PX 691200000
        "#,
    );
    let last = Arc::new(Lock::new(4_000_000_000_000_000));
    let rises = |last: &Lock<u64>, fence| {
        let before = std::mem::replace(&mut *last.lock().unwrap(), fence);
        assert!(before < fence, "{fence} after {before}");
    };
    let mutexes = [&scene.store, &again(&scene)].map(|store| Mutex::new(store, "mutex").unwrap());
    let worker = |number: usize| {
        let (mutex, inside, last) = (mutexes[number % 2].clone(), Arc::clone(&inside), Arc::clone(&last));
        tokio::spawn(async move {
            for _ in 0..10 {
                let guard = mutex.lock("k").await.unwrap();
                rises(&last, guard.fence());
                inside.stay(1).await;
                assert!(guard.unlock().await.unwrap());
            }
        })
    };
    let workers: Vec<_> = (0..16).map(worker).collect();
    let unlock = async |token: &str| {
        let holder = mutexes[0].inspect("k").await.unwrap().holders.remove(0);
        assert_eq!(holder.token(), token);
        assert!(mutexes[0].revoke("k", &holder).await.unwrap());
    };
    unlock("0123456789abcdef-1.3938700").await;
    let mut served = Vec::new();
    while served.len() < OLD {
        let (fence, number) = granted(&mut heard).await;
        let (token, lock) = (token(number), format!("{key}:lock"));
        let accept = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], 60000)";
        if scene.server.query::<Option<u8>>(&["EVAL", accept, "1", &lock, &token]) == Ok(Some(1)) {
            rises(&last, fence);
            inside.stay(1).await;
            unlock(&token).await;
        }
        served.push(number);
    }
    assert_eq!(served, (0..OLD).collect::<Vec<_>>(), "in the order of arrival, once each");
    for worker in workers {
        timeout(LONG, worker).await.expect("a new waiter is not served").unwrap();
    }
    assert!(!mutexes[0].is_locked("k").await.unwrap());
}

/// The old leader crashes, the first of its followers takes over and publishes an answer, as its script does in one step. The
/// messages to the other followers are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_an_old_leader_reaches_new_followers() {
    let scene = Scene::new().await;
    let mut heard = scene.other_process().await;
    scene.run(
        r#"
        SET td:{flights:k}:flight:lock 0123456789abcdef-1.3938700 PX 1000
        ZADD td:{flights:k}:flight:waiters 0 fedcba9876543210-10.3938700
        ZADD td:{flights:k}:flight:beats <NOW+60s> fedcba9876543210-10.3938700
        PEXPIRE td:{flights:k}:flight:waiters 60000
        PEXPIRE td:{flights:k}:flight:beats 60000
        "#,
    );
    let flights = [&scene.store, &again(&scene)]
        .map(|store| SingleFlight::<u64>::builder(Postcard).ttl(LONG).build(store, "flights").unwrap());
    let call = |number: usize| {
        let flights = flights[number % 2].clone();
        tokio::spawn(async move { flights.run("k", || async { 9 }).await.unwrap() })
    };
    let calls: Vec<_> = (0..16).map(call).collect();
    assert_eq!(granted(&mut heard).await.1, 0);
    scene.run(
        r#"
        EVAL "redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) redis.call('DEL', unpack(KEYS, 2))" 4 td:{flights:k}:flight:answer td:{flights:k}:flight:lock td:{flights:k}:flight:waiters td:{flights:k}:flight:beats "<NOW> 60000000 60000000 postcard/1+ +\x07"
        "#,
    );
    for call in calls {
        assert_eq!(timeout(LONG, call).await.expect("it does not follow").unwrap(), 7, "a second run");
    }
}

/// A third of the items was handled by old processes, one of which holds claims on another third and then crashes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_old_processes_are_handled_once() {
    const ITEMS: usize = 60;
    let scene = Scene::new().await;
    let item = |number: usize| format!("evt_{number}");
    let digest = |number: usize| Sha256::digest(item(number))[..16].to_vec();
    scene.run(
        r#"
        SET td:{exact:layout}:layout "exact1 1 7200000" PX 18000000
        HSET td:{exact:0}:exact:<HOUR%3> s <HOUR>
        PEXPIRE td:{exact:0}:exact:<HOUR%3> 7200000
        "#,
    );
    let slice = scene.keys("td:{exact:0}:exact:?").remove(0);
    let mut client = scene.server.client().unwrap();
    for number in 0..ITEMS {
        let hexadecimal: String = digest(number).iter().map(|byte| format!("{byte:02x}")).collect();
        let claim = format!("td:{{exact:0}}:{hexadecimal}:exact:claim");
        match number % 3 {
            0 => client.query::<()>(redis::cmd("HSET").arg(&slice).arg(digest(number)).arg("")).unwrap(),
            1 => client
                .query::<()>(
                    redis::cmd("SET").arg(&claim).arg("0123456789abcdef-1.3938700").arg("PX").arg(2000),
                )
                .unwrap(),
            _ => {}
        }
    }
    let dedupes = [&scene.store, &again(&scene)].map(|store| {
        let dedupe = Dedupe::exact(store, "exact").capacity(100).remember_for(Duration::from_secs(7200));
        dedupe.build().unwrap()
    });
    let handled = Lock::new(HashMap::<usize, u32>::new());
    let worker = |number: usize| {
        let (dedupe, handled) = (&dedupes[number % 2], &handled);
        async move {
            for number in 0..ITEMS {
                let mut claimed = dedupe.try_claim(item(number)).await;
                // As a queue delivers a message again that was refused.
                eventually("the claim of another to end", SOON, async || {
                    if claimed.as_ref().is_err_and(Error::is_refused) {
                        claimed = dedupe.try_claim(item(number)).await;
                    }
                    claimed.is_ok()
                })
                .await;
                if let Claimed::New(claim) = claimed.unwrap() {
                    *handled.lock().unwrap().entry(number).or_default() += 1;
                    assert!(claim.confirm().await.unwrap());
                }
            }
        }
    };
    join_all((0..8).map(worker)).await;
    let handled = handled.lock().unwrap();
    for number in 0..ITEMS {
        let times = handled.get(&number).copied().unwrap_or_default();
        assert_eq!(times, u32::from(number % 3 != 0), "{}", item(number));
    }
}

/// Old processes charge a bucket in the form for one quota, beside new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_and_new_charges_keep_to_one_burst() {
    const BURST: u32 = 100;
    let scene = Scene::new().await;
    scene.run(r#"SET td:{bucket:k}:tat "<NOW+36000s> 0 3600000000 1 100" PX 36000000"#);
    let charge = r"
        local time = redis.call('TIME')
        local now = time[1] * 1000000 + time[2]
        local whole = tonumber(string.match(redis.call('GET', KEYS[1]), '^%d+'))
        local full = math.max(whole, now) + 3600000000
        if full > now + 100 * 3600000000 then return 0 end
        redis.call('SET', KEYS[1], string.format('%.0f 0 3600000000 1 100', full), 'PX', 360000000)
        return 1";
    let buckets = [&scene.store, &again(&scene)]
        .map(|store| TokenBucket::new(store, "bucket", Quota::per_hour(1).burst(BURST)).unwrap());
    let callers = (0..16).map(|number: usize| {
        let bucket = buckets[number % 2].clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..10 {
                admitted += u32::from(bucket.allow("k").await.unwrap().is_admitted());
            }
            admitted
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut client = scene.server.client().unwrap();
    let mut old = 0;
    for _ in 0..BURST {
        let command = &mut redis::cmd("EVAL");
        old += client.query::<u32>(command.arg(charge).arg(1).arg("td:{bucket:k}:tat")).unwrap();
        tokio::task::yield_now().await;
    }
    let new: u32 = join_all(callers).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(new + old, BURST - 10, "ten tokens were used before");
}
