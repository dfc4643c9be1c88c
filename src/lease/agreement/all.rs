//! Leases of several keys that are acquired in one step, among other calls for the same keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use support::redis_server::RedisServer;

use crate::key::Key;
use crate::lease::acquire_all;
use crate::lease::acquire_all::{AcquireAll, All};
use crate::lease::agreement::virtual_time::Time;
use crate::lease::agreement::{
    LATE_IDS, SPANS, Side, States, TTLS, Tried as _, random_step, tokens, virtual_time,
};
use crate::lease::holders::Exclusive;
use crate::lease::key_state::AcquireTerms;
use crate::lease::token::Token;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::memory::clock::Clock;
use crate::store::operation::Cell as _;
use crate::sync::lock;

const SEQUENCES: usize = 150;
const STEPS: usize = 30;
const KEYS: usize = 3;

fn client(store: &Store) -> Client<AcquireAll> {
    Namespace::<acquire_all::States>::each(&Exclusive::namespace(store))
        .unwrap()
        .client()
}

/// Applies the step to the states of the keys.
fn apply(states: &States<Exclusive>, keys: &[Key], acquire: &AcquireAll) -> All {
    let mut of = lock(&states.of);
    let name = |key: &Key| key.as_bytes().to_vec();
    let mut cells: Vec<_> = keys
        .iter()
        .map(|key| of.remove(&name(key)).unwrap_or_default())
        .collect();
    let answer = acquire.step(&mut cells, states.clock.load(Ordering::Relaxed));
    for (key, mut cell) in keys.iter().zip(cells) {
        lock(&states.pushed).extend(cell.pushes());
        of.insert(name(key), cell);
    }
    answer
}

#[tokio::test]
async fn leases_of_several_keys_agree() {
    let server = RedisServer::start().await;
    let clock = Arc::new(AtomicI64::new(0));
    let seed = support::seed();
    let mut rng = StdRng::seed_from_u64(seed);
    let (on_redis, in_memory) = (
        virtual_time::store(&server),
        Store::with_clock(Clock::Manual(clock.clone())),
    );
    let mut time = Time::new(server.client().unwrap(), clock.clone());
    let states = States {
        clock,
        of: Mutex::new(HashMap::new()),
        pushed: Mutex::default(),
    };
    let (lua, rust) = (
        Side::new(&on_redis, None, true),
        Side::new(&in_memory, Some(states), true),
    );
    let all = client(&on_redis);
    let (mut next, mut held, mut refused) = (LATE_IDS, 0, 0);
    for sequence in 0..SEQUENCES {
        let ttl = *TTLS.choose(&mut rng).unwrap();
        let keys: Vec<_> = (0..KEYS)
            .map(|key| Key::from(format!("all {sequence} {key}")))
            .collect();
        let suffixes = ["", "", ":alice", "~9c40@host"];
        let tokens: Vec<_> = keys
            .iter()
            .map(|_| tokens::<Exclusive>(&suffixes, &mut rng, &mut next))
            .collect();
        let (mut history, mut last) = (Vec::new(), None);
        for round in 0..STEPS {
            let jumps = [0, 0, 1, 999, 10_000, 400_000, 1_500_000, 8_000_000];
            time.set(time.now + jumps.choose(&mut rng).unwrap());
            let now = time.now;
            if rng.random_bool(0.6) {
                let key = rng.random_range(0..KEYS);
                let terms = AcquireTerms {
                    ttl,
                    max_waiters: 1000,
                    rank: 0,
                    placed: false,
                };
                let step = random_step::<Exclusive>(&mut rng, (sequence, now), &tokens[key], terms);
                history.push(format!("{now}: {key} {step:?}"));
                let answers = (
                    lua.take(keys[key].clone(), step.clone(), round).await,
                    rust.take(keys[key].clone(), step, round).await,
                );
                assert_eq!(answers.0, answers.1, "SEED={seed}\n{}", history.join("\n"));
            } else {
                let mut chosen: Vec<_> = (0..KEYS).collect();
                chosen.shuffle(&mut rng);
                chosen.truncate(rng.random_range(1..=KEYS));
                let of_key = |key: &usize| tokens[*key].choose(&mut rng).unwrap().0.clone();
                let acquire = AcquireAll {
                    channels: SPANS.with(&on_redis.channels()),
                    spans: SPANS,
                    ttl,
                    tokens: chosen.iter().map(of_key).collect(),
                };
                // Sometimes a call is sent twice, perhaps with other calls between the copies.
                let again = last.take().filter(|_| rng.random_bool(0.4));
                let (chosen, acquire) = again.unwrap_or((chosen, acquire));
                last = Some((chosen.clone(), acquire.clone()));
                history.push(format!("{now}: {chosen:?} {acquire:?}"));
                let chosen: Vec<_> = chosen.into_iter().map(|key| keys[key].clone()).collect();
                let wanted = apply(rust.states.as_ref().unwrap(), &chosen, &acquire);
                let answer = all.run(Key::of(&chosen), acquire).await.unwrap();
                assert_eq!(
                    (answer.now, &answer.what),
                    (now, &wanted),
                    "SEED={seed}\n{}",
                    history.join("\n")
                );
                held += usize::from(matches!(wanted, All::Held(_)) && chosen.len() > 1);
                refused += usize::from(matches!(wanted, All::Refused { .. }));
            }
            let told = (
                lua.told(&on_redis, time.published()),
                rust.told(&in_memory, Vec::new()),
            );
            assert_eq!(
                told.0,
                told.1,
                "SEED={seed} at {now}\n{}",
                history.join("\n")
            );
        }
    }
    assert!(
        held.min(refused) > SEQUENCES,
        "held {held}, refused {refused}: the test covers too little"
    );
}

/// A call with a key of another type fails, and acquires nothing.
#[tokio::test]
async fn a_key_of_another_type_takes_nothing() {
    let server = RedisServer::start().await;
    let (store, mut time) = (virtual_time::store(&server), server.client().unwrap());
    drop(Time::new(server.client().unwrap(), Arc::default()));
    let all = client(&store);
    for (part, command) in [
        ("lock", "RPUSH"),
        ("fence", "RPUSH"),
        ("fence", "SET"),
        ("beats", "SET"),
    ] {
        let bad = format!("bad {part} {command}");
        let name = format!("td:{{agreement:{bad}}}:{part}");
        time.query::<()>(redis::cmd(command).arg(&name).arg("x"))
            .unwrap();
        let tokens = ["aaaaaaaaaaaaaaaa-1.2710", "aaaaaaaaaaaaaaaa-2.2710"].map(Token::from);
        let channels = SPANS.with(&store.channels());
        let acquire = AcquireAll {
            channels,
            spans: SPANS,
            ttl: 10_000,
            tokens: tokens.into(),
        };
        let error = all.run(Key::of(["good", &bad]), acquire).await.unwrap_err();
        assert!(error.is_wrong_type(), "{error}");
        let names: Vec<String> = time
            .query(redis::cmd("KEYS").arg("td:{agreement:good}:*"))
            .unwrap();
        assert_eq!(names, [""; 0], "{part} {command}");
    }
}
