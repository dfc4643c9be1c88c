//! Operators: what they list and show, reset and forget.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use deadpool_redis::redis;
use futures::future::join_all;
use tower_distributed::dedupe::Dedupe;
use tower_distributed::operator::{Entry, Kind, Operator, State};
use tower_distributed::single_flight::Json;
use tower_distributed::{
    BloomFilter, Mutex, Quota, RwLock, SingleFlight, Store, TokenBucket, WaitGroup,
};

use crate::claims::take;
use crate::stores::{Place, SOON};
use support::eventually;
use support::patient;
use support::program::since_7_0;
use support::redis_server::RedisServer;
use support::requires;

const HOUR: Duration = Duration::from_secs(3600);

async fn list(operator: &Operator, namespace: &str) -> Vec<Entry> {
    let (mut scan, mut entries) = (operator.scan_namespace(namespace).unwrap(), BTreeSet::new());
    while let Some(page) = scan.next().await.unwrap() {
        assert!(!page.is_empty());
        entries.extend(page);
    }
    entries.into_iter().collect()
}

/// What an operator is shown of an entry of this kind of state.
macro_rules! shown {
    ($operator:expr, $entry:expr, $kind:ident) => {
        match $operator.inspect($entry).await.unwrap() {
            Some(tower_distributed::operator::State::$kind(state)) => state,
            other => panic!("{other:?}"),
        }
    };
}
pub(crate) use shown;

/// All keys of a namespace on all servers, what they hold, and when they expire.
fn dump(place: &Place, namespace: &str) -> BTreeMap<String, (Vec<u8>, i64)> {
    let mut all = BTreeMap::new();
    for server in place.servers() {
        let keys: Vec<String> = server
            .query(&["KEYS", &place.part(&format!("{namespace}:*"), "*")])
            .unwrap();
        for key in keys {
            let ttl = server.query(&["PTTL", &key]).unwrap();
            all.insert(key.clone(), (server.query(&["DUMP", &key]).unwrap(), ttl));
        }
    }
    all
}

pub(crate) async fn leases(
    operator: &Operator,
    entry: &Entry,
) -> tower_distributed::lease::Snapshot {
    let state = operator.inspect(entry).await.unwrap().unwrap();
    state
        .leases()
        .unwrap_or_else(|| panic!("{entry} has no holders: {state:?}"))
        .clone()
}

/// Waits until an answer is stored and its run is over: the caller of the run gets the answer before.
pub(crate) async fn is_answered(operator: &Operator, entry: &Entry) {
    eventually("the answer", SOON, async || {
        match operator.inspect(entry).await.unwrap() {
            Some(State::Flight(flight)) => flight.answer.is_some() && flight.runs.is_free(),
            _ => false,
        }
    })
    .await;
}

pub(crate) async fn each_kind_is_listed_and_shown(place: &Place, name: &str) {
    let (operator, filters) = (place.operator(), &format!("{name}.filter"));
    assert!(list(&operator, name).await.is_empty());
    let bucket = TokenBucket::new(place, name, [Quota::per_hour(10), Quota::per_day(50)]).unwrap();
    assert!(bucket.allow_n("bucket", 3).await.unwrap().is_admitted());
    let permit = WaitGroup::new(place, name, 5)
        .unwrap()
        .add_n("permits", 2)
        .await
        .unwrap();
    let lock = Mutex::new(place, name).unwrap().lock("lock").await.unwrap();
    let shared = RwLock::new(place, name).unwrap();
    let readers = [
        shared.read("shared").await.unwrap(),
        shared.read("shared").await.unwrap(),
    ];
    let writer = shared.write("written").await.unwrap();
    let answers = SingleFlight::<String>::builder(Json)
        .ttl(HOUR)
        .build(place, name)
        .unwrap();
    answers
        .run("answer", || async { "seven".to_owned() })
        .await
        .unwrap();
    is_answered(
        &operator,
        &Entry::new(Kind::SingleFlight, name, "answer").unwrap(),
    )
    .await;
    let items = Dedupe::exact(place, name)
        .remember_for(HOUR)
        .build()
        .unwrap();
    assert!(take(&items, "handled").await.confirm().await.unwrap());
    let claim = take(&items, "in flight").await;
    let filter = BloomFilter::builder()
        .capacity(1000)
        .false_positive_rate(0.01)
        .keys(3);
    let filter = filter.remember_for(HOUR).build(place, filters).unwrap();
    filter.insert_all(["a", "b", "c"]).await.unwrap();
    let filtered = take(&Dedupe::new(&filter).unwrap(), "d").await;

    let before = [name, filters].map(|name| dump(place, name));
    let (entries, of_filter) = (list(&operator, name).await, list(&operator, filters).await);
    let listed = entries
        .iter()
        .map(Entry::to_string)
        .collect::<Vec<_>>()
        .join("\n")
        .replace(name, "-");
    let expected = "token_bucket - bucket\nwait_group - permits\nmutex - lock\nrw_lock - shared\nrw_lock - written\n\
                    single_flight - answer\ndedupe -\nexact_claim - ";
    assert!(
        listed.starts_with(expected) && entries.len() == 8,
        "{listed}"
    );
    let kinds: Vec<_> = of_filter.iter().map(Entry::kind).collect();
    assert_eq!(kinds, [Kind::BloomFilter, Kind::FilterClaim]);
    let (mut scan, mut everything) = (operator.scan(), Vec::new());
    while let Some(page) = scan.next().await.unwrap() {
        everything.extend(page);
    }
    assert!(
        entries
            .iter()
            .chain(&of_filter)
            .all(|entry| everything.contains(entry))
    );

    let bucket = shown!(operator, &entries[0], Bucket);
    let balances: Vec<_> = bucket
        .balances()
        .map(|balance| (balance.limit, balance.remaining))
        .collect();
    assert_eq!(balances, [(10, 7), (50, 47)]);
    for (entry, token, fence, weight, is_exclusive) in [
        (&entries[1], permit.token(), None, 2, false),
        (&entries[2], lock.token(), Some(lock.fence()), 1, true),
        (&entries[4], writer.token(), Some(writer.fence()), 1, true),
    ] {
        let seen = leases(&operator, entry).await;
        assert_eq!(
            (seen.in_use, seen.waiting, seen.holders.len()),
            (weight, 0, 1),
            "{entry}"
        );
        let holder = &seen.holders[0];
        assert_eq!(
            (holder.token(), holder.fence, holder.weight),
            (token, fence, weight),
            "{entry}"
        );
        assert_eq!(holder.is_exclusive, is_exclusive, "{entry}");
        assert!(
            (Duration::from_secs(10)..=Duration::from_secs(30)).contains(&holder.time_left),
            "{entry}"
        );
    }
    let seen = leases(&operator, &entries[3]).await;
    let tokens: BTreeSet<_> = seen.holders.iter().map(|holder| holder.token()).collect();
    assert_eq!(
        tokens,
        BTreeSet::from(readers.each_ref().map(|reader| reader.token()))
    );
    assert!(!seen.holders[0].is_exclusive);
    let flight = shown!(operator, &entries[5], Flight);
    let answer = flight.answer.unwrap();
    assert!(
        flight.runs.is_free() && answer.codec.is_some() && answer.bytes >= "seven".len() as u64
    );
    assert!(
        answer.fresh_for > HOUR / 2
            && answer.kept_for + Duration::from_millis(1) >= answer.fresh_for
    );
    let dedupe = shown!(operator, &entries[6], Dedupe);
    assert_eq!((dedupe.remember_for, dedupe.is_handled), (HOUR, None));
    let of_keys = [
        Kind::TokenBucket,
        Kind::WaitGroup,
        Kind::Mutex,
        Kind::RwLock,
        Kind::SingleFlight,
        Kind::Dedupe,
    ];
    for (item, handled) in [("handled", true), ("in flight", false), ("new", false)] {
        let item = Entry::new(Kind::Dedupe, name, item).unwrap();
        assert_eq!(
            shown!(operator, &item, Dedupe).is_handled,
            Some(handled),
            "{item}"
        );
    }
    assert_eq!(leases(&operator, &entries[7]).await.in_use, 1);
    let seen = shown!(operator, &of_filter[0], Filter);
    let size = filter.size();
    assert_eq!(
        (seen.size.bits, seen.size.hashes, seen.size.keys),
        (size.bits, size.hashes, size.keys)
    );
    assert_eq!(
        (seen.size.remember_for, seen.estimated_count),
        (Some(HOUR), 3)
    );
    let filled = 3.0 * f64::from(size.hashes) / size.bits as f64;
    assert!(
        seen.filled > 0.5 * filled && seen.filled <= 1.01 * filled,
        "{} of {filled}",
        seen.filled
    );
    assert!(leases(&operator, &of_filter[1]).await.holders[0].is_exclusive);
    for kind in of_keys {
        let none = Entry::new(kind, &format!("{name}.none"), "k").unwrap();
        assert!(operator.inspect(&none).await.unwrap().is_none(), "{none}");
    }

    // Nothing has changed, and nothing is kept longer.
    for (name, before) in [name, filters].into_iter().zip(before) {
        let after = dump(place, name);
        assert_eq!(
            after.keys().collect::<Vec<_>>(),
            before.keys().collect::<Vec<_>>()
        );
        for (key, (value, ttl)) in after {
            let (was, lasted) = &before[&key];
            assert!(value == *was && ttl <= *lasted, "{key} has changed");
        }
    }
    assert!(claim.release().await.unwrap() && filtered.release().await.unwrap());
    assert!(permit.done().await.unwrap() && lock.unlock().await.unwrap());
    for reader in readers {
        assert!(reader.release().await.unwrap());
    }
    assert!(writer.release().await.unwrap());
    let left: Vec<_> = list(&operator, name)
        .await
        .iter()
        .map(Entry::kind)
        .collect();
    assert_eq!(left, [Kind::TokenBucket, Kind::SingleFlight, Kind::Dedupe]);
}

/// Buckets are reset, answers and items are forgotten, and nothing else.
pub(crate) async fn each_is_reset_or_forgotten(place: &Place, name: &str) {
    let operator = place.operator();
    let bucket = TokenBucket::new(place, name, Quota::per_day(5)).unwrap();
    bucket.allow_n("k", 5).await.unwrap();
    let [entry, answer, item, lock] = [
        Kind::TokenBucket,
        Kind::SingleFlight,
        Kind::Dedupe,
        Kind::Mutex,
    ]
    .map(|kind| Entry::new(kind, name, "k").unwrap());
    operator.reset(&entry).await.unwrap();
    assert_eq!(bucket.peek("k").await.unwrap().remaining(), 5);
    assert!(operator.inspect(&entry).await.unwrap().is_none());

    let answers = SingleFlight::<u32>::builder(Json)
        .ttl(HOUR)
        .build(place, name)
        .unwrap();
    assert_eq!(answers.run("k", || async { 1 }).await.unwrap(), 1);
    is_answered(&operator, &answer).await;
    assert!(operator.forget(&answer).await.unwrap() && !operator.forget(&answer).await.unwrap());
    assert_eq!(answers.run("k", || async { 2 }).await.unwrap(), 2);

    let items = Dedupe::exact(place, name)
        .remember_for(HOUR)
        .build()
        .unwrap();
    assert!(take(&items, "k").await.confirm().await.unwrap());
    assert!(operator.forget(&item).await.unwrap());
    assert!(take(&items, "k").await.confirm().await.unwrap());
    assert!(items.forget("k").await.unwrap() && !items.forget("k").await.unwrap());

    let whole = Entry::whole(Kind::BloomFilter, name).unwrap();
    for entry in [&whole, &lock] {
        assert!(operator.forget(entry).await.unwrap_err().is_invalid());
    }
    assert!(operator.reset(&lock).await.unwrap_err().is_invalid());
}

/// What other programs keep under names like ours is not listed, or shown as an error, and stays.
#[tokio::test]
async fn keys_of_others_are_told_apart() {
    const HUGE: &str =
        "0 9007199254740000 0 9007199254740000 0 9007199254740000 1 9007199254740000";
    const SHARDS: &str = "bloom1 4294967295 0 0 9223372036854775807 0";
    const BUCKETS: &str = "exact1 4294967295 9223372036854775807";
    let server = RedisServer::start().await;
    let operator = Operator::new(&patient!(server.url()));
    // What is stored, and what is told of it, if it is listed.
    let rows: [(&[&str], &str); 18] = [
        (&["SET", "td:{x:k}:other", "1"], ""),
        (&["SET", "tdx:{x:k}:tat", "1"], ""),
        (&["SET", "td:x:k:tat", "1"], ""),
        (&["SET", "td:{x:%zz}:tat", "1"], ""),
        (&["SET", "td:{x y:k}:tat", "1"], ""),
        (
            &["RPUSH", "td:{x:list}:tat", "a"],
            "token_bucket x list: wrong type",
        ),
        (
            &["SET", "td:{x:text}:tat", "hello"],
            "token_bucket x text: wrong type",
        ),
        (
            &["SET", "td:{x:huge}:tat", HUGE],
            "token_bucket x huge: wrong type",
        ),
        (
            &["SET", "td:{x:null}:tat", "0 1 0 1 0 0 0 0"],
            "token_bucket x null: wrong type",
        ),
        (
            &["SET", "td:{x:0}:config", SHARDS],
            "bloom_filter x: wrong type",
        ),
        (
            &["SET", "td:{x:layout}:layout", BUCKETS],
            "dedupe x: wrong type",
        ),
        (
            &["SET", "td:{damaged:0}:config", "garbage"],
            "bloom_filter damaged: wrong type",
        ),
        (
            &["SET", "td:{damaged:layout}:layout", "garbage"],
            "dedupe damaged: wrong type",
        ),
        (
            &["SET", "td:{x:k}:flight:answer", "hello"],
            "single_flight x k: 5 bytes",
        ),
        (
            &["SET", "td:{x:k}:lock", "of another library"],
            "mutex x k: 1 holders",
        ),
        (
            &["RPUSH", "td:{x:list}:lock", "a"],
            "mutex x list: wrong type",
        ),
        (
            &[
                "ZADD",
                "td:{x:k}:permits:holders",
                "inf",
                "a",
                "9e15",
                "b/x/y",
                "-inf",
                "c",
            ],
            "wait_group x k: nothing",
        ),
        (
            &[
                "ZADD",
                "td:{x:k}:rw:holders",
                "inf",
                "a",
                "9e15",
                "b",
                "-inf",
                "c",
            ],
            "rw_lock x k: nothing",
        ),
    ];
    for (command, _) in &rows {
        server.query::<redis::Value>(command).unwrap();
    }
    let all = || {
        server
            .cli(&["KEYS", "*"])
            .lines()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    };
    let (before, mut told) = (all(), BTreeSet::new());
    for entry in [list(&operator, "x").await, list(&operator, "damaged").await].concat() {
        let text = match operator.inspect(&entry).await {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(State::Leases(leases))) => format!("{} holders", leases.holders.len()),
            Ok(Some(State::Flight(flight))) => format!("{} bytes", flight.answer.unwrap().bytes),
            Ok(Some(other)) => panic!("{entry}: {other:?}"),
            Err(error) => {
                assert!(error.is_wrong_type(), "{entry}: {error}");
                "wrong type".to_owned()
            }
        };
        told.insert(format!("{entry}: {text}"));
    }
    let expected = rows
        .iter()
        .map(|(_, told)| (*told).to_owned())
        .filter(|told| !told.is_empty());
    assert_eq!(told, expected.collect::<BTreeSet<_>>());
    let item = Entry::new(Kind::Dedupe, "damaged", "k").unwrap();
    assert!(operator.forget(&item).await.unwrap_err().is_wrong_type());
    assert_eq!(all(), before);
    // A lock that another library took with this name can be revoked, too.
    let lock = Entry::new(Kind::Mutex, "x", "k").unwrap();
    let holder = &leases(&operator, &lock).await.holders[0];
    assert_eq!((holder.token(), holder.fence), ("of another library", None));
    assert!(operator.revoke(&lock, holder).await.unwrap());
    assert!(!all().contains("td:{x:k}:lock"));
}

/// More keys than one call of `SCAN` looks at, on each master.
#[tokio::test]
async fn a_cluster_is_listed_by_urls_and_by_a_pool() {
    requires!(since_7_0());
    let cluster = support::cluster::RedisCluster::start().await;
    let pool = support::pools::pool_of_cluster(cluster.urls());
    let stores = [
        patient!().cluster(cluster.urls()).unwrap(),
        patient!().pool(pool).unwrap(),
    ];
    let bucket = TokenBucket::new(&stores[0], "many", Quota::non_refilling(5)).unwrap();
    for chunk in (0..4000_u32).collect::<Vec<_>>().chunks(500) {
        for allowed in join_all(chunk.iter().map(|key| bucket.allow(*key))).await {
            assert!(allowed.unwrap().is_admitted());
        }
    }
    for store in stores {
        let entries = list(&Operator::new(&store), "many").await;
        assert_eq!(entries.len(), 4000, "{store:?}");
    }
}
