//! What operators do: they look, forget and reset, and find the keys that are refused most. And keys of other programs.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tower_distributed::dedupe::Claimed;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::{Entry, Kind, Operator, State};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, BreakerState, Dedupe, Error, Mutex, Quota, SingleFlight, Store, TokenBucket, WaitGroup,
};

use super::super::shape::Shape;
use super::super::{Process, World};
use super::FOR_EVER;

/// What a bucket has.
const TOKENS: u32 = 50;
/// How keys end: any bytes may be part of them. Long keys are stored by their digests.
const TAILS: [&str; 5] = ["", "{x}:lock", " %\0\r\n", "}é", LONG];
const LONG: &str = match std::str::from_utf8(&[b'l'; 700]) {
    Ok(long) => long,
    Err(_) => "",
};
/// How many holds a bucket has at a time: more than one record of 32 takes.
const HOLDS: u32 = 40;
/// How long an answer is fresh.
const FRESH: Duration = Duration::from_secs(60);
/// How long a caller waits for what is not free.
const SHORT: Duration = Duration::from_millis(100);

/// No other callers use these names.
pub struct Desk {
    operator: Operator,
    flight: SingleFlight<String>,
    items: Dedupe,
    filter: BloomFilter,
    bucket: TokenBucket,
    refused: RefusedKeys,
    permits: WaitGroup,
    mutex: Mutex,
}

impl Desk {
    pub fn new(shape: &Shape, store: &Store) -> Result<Self, Error> {
        let flight = SingleFlight::builder(Postcard).max_wait(shape.max_wait).lease_ttl(shape.ttl).ttl(FRESH);
        let filter = BloomFilter::builder().capacity(1_000).false_positive_rate(1e-9).keys(2);
        Ok(Self {
            operator: Operator::new(store),
            flight: flight.local_cache(1 << 20).build(store, "of")?,
            items: Dedupe::exact(store, "od").remember_for(FOR_EVER).ttl(shape.ttl).build()?,
            filter: filter.build(store, "ol")?,
            bucket: TokenBucket::new(store, "ob", Quota::per_hour(TOKENS))?,
            refused: RefusedKeys::with_plain_keys(store, "or")?,
            permits: WaitGroup::builder(1).ttl(shape.ttl).max_wait(SHORT).build(store, "og")?,
            mutex: Mutex::new(store, "om")?,
        })
    }
}

impl World {
    pub(super) async fn operate(&self, process: &Process, desk: &Desk) {
        // No other caller has this key.
        let plain = format!("o{}", self.network.draw(1 << 50));
        let key = format!("{plain}{}", self.network.one(&TAILS).copied().unwrap_or_default());
        match self.network.draw(10) {
            0 => self.forget_answer(desk, &key).await,
            1 => self.forget_item(desk, &key).await,
            2 => self.reset(desk, &key).await,
            3 => self.count_refused(process, desk).await,
            4 => self.inspect_filter(desk, &key).await,
            5 => self.wait_for_all(desk, &key).await,
            6 => self.list(desk, &key).await,
            // It has as many calls as forty others.
            7 if self.network.happens(200) => self.hold_many(desk, &key).await,
            8 => self.read_status(process, desk).await,
            _ if self.shape.has_foreign_keys => self.meet_foreign_key(desk, &plain).await,
            _ => {}
        }
    }

    /// Whether the servers have everything since then.
    pub(super) fn has_all(&self, since: u64) -> bool {
        self.judges.losses() == since && !self.may_forget()
    }

    async fn state(&self, desk: &Desk, entry: Result<Entry, Error>) -> Option<State> {
        match entry {
            Ok(entry) => {
                self.call("operate", Duration::ZERO, desk.operator.inspect(&entry)).await?.ok().flatten()
            }
            Err(error) => {
                self.judges.condemn(format!("an entry: {error}"));
                None
            }
        }
    }

    async fn run(&self, desk: &Desk, key: &str, answer: &str) -> Option<Result<String, Error>> {
        let answer = answer.to_owned();
        let run = desk.flight.run(key, move || async move { answer });
        self.call("run to forget", self.shape.max_wait, run).await
    }

    /// An answer that is forgotten does not appear again.
    async fn forget_answer(&self, desk: &Desk, key: &str) {
        let (since, wait) = (self.judges.losses(), self.shape.max_wait);
        let Some(Ok(_)) = self.run(desk, key, "old").await else { return };
        let entry = || Entry::new(Kind::SingleFlight, "of", key);
        if let Some(State::Flight(state)) = self.state(desk, entry()).await
            && state.answer.is_some_and(|answer| answer.fresh_for > FRESH || answer.bytes == 0)
        {
            self.judges.condemn(format!("{key}: the stored answer is empty, or fresh for too long"));
        }
        let Some(Ok(())) = self.call("forget an answer", wait, desk.flight.forget(key)).await else { return };
        let is_stored = matches!(
            self.state(desk, entry()).await,
            Some(State::Flight(state)) if state.answer.is_some()
        );
        let next = self.run(desk, key, "new").await;
        let is_old = matches!(&next, Some(Ok(answer)) if answer != "new");
        if (is_stored || is_old) && self.has_all(since) {
            self.judges.condemn(format!("{key}: a forgotten answer is back: {is_stored}, {is_old}"));
        }
    }

    /// An item that is forgotten is new again.
    async fn forget_item(&self, desk: &Desk, key: &str) {
        let (since, none) = (self.judges.losses(), Duration::ZERO);
        let Some(Ok(Claimed::New(claim))) =
            self.call("claim to forget", none, desk.items.try_claim(key)).await
        else {
            return;
        };
        let Some(Ok(true)) = self.call("confirm", none, claim.confirm()).await else { return };
        let before = self.is_handled(desk, key).await;
        let Some(Ok(_)) = self.call("forget an item", none, desk.items.forget(key)).await else { return };
        let after = self.is_handled(desk, key).await;
        let again = self.call("claim again", none, desk.items.try_claim(key)).await;
        let is_known = matches!(&again, Some(Ok(claimed)) if !matches!(claimed, Claimed::New(_)));
        if (before == Some(false) || after == Some(true) || is_known) && self.has_all(since) {
            self.judges.condemn(format!("{key}: handled {before:?}, forgotten {after:?}, known {is_known}"));
        }
    }

    async fn is_handled(&self, desk: &Desk, key: &str) -> Option<bool> {
        match self.state(desk, Entry::new(Kind::Dedupe, "od", key)).await {
            Some(State::Dedupe(state)) => state.is_handled,
            _ => None,
        }
    }

    /// A bucket that is reset is full again.
    async fn reset(&self, desk: &Desk, key: &str) {
        let (since, none) = (self.judges.losses(), Duration::ZERO);
        let Some(Ok(taken)) = self.call("take all", none, desk.bucket.allow_n(key, TOKENS)).await else {
            return;
        };
        let Ok(entry) = Entry::new(Kind::TokenBucket, "ob", key) else { return };
        let seen = match self.state(desk, Ok(entry.clone())).await {
            Some(State::Bucket(bucket)) => bucket.remaining(),
            _ => 0,
        };
        let reset = match self.network.happens(500) {
            true => self.call("reset", none, desk.operator.reset(&entry)).await,
            false => self.call("reset", none, desk.bucket.reset(key)).await,
        };
        let Some(Ok(())) = reset else { return };
        let again = self.call("take all", none, desk.bucket.allow_n(key, TOKENS)).await;
        let is_refused = matches!(&again, Some(Ok(decision)) if !decision.is_admitted());
        if (!taken.is_admitted() || seen > 1 || is_refused) && self.has_all(since) {
            self.judges.condemn(format!("{key}: {seen} left of all, refused after a reset: {is_refused}"));
        }
    }

    /// A page of the status tells that the server answers, where nothing is wrong.
    async fn read_status(&self, process: &Process, desk: &Desk) {
        let pinged = self.call("ping", Duration::ZERO, process.store.ping()).await;
        let stats = process.store.stats();
        let is_well = stats.breaker == BreakerState::Closed && matches!(pinged, None | Some(Ok(_)));
        if self.runs_alone() && !is_well {
            self.judges
                .condemn(format!("nothing is wrong, but the ping told {pinged:?}, and the status {stats:?}"));
        }
        if let Err(error) = desk.operator.acl_rule("ops") {
            self.judges.condemn(format!("no rules for an operator: {error}"));
        }
    }

    /// A list of what is stored has each bucket that is not full.
    async fn list(&self, desk: &Desk, key: &str) {
        let (since, none) = (self.judges.losses(), Duration::ZERO);
        let Some(Ok(_)) = self.call("take to be listed", none, desk.bucket.allow_n(key, 10)).await else {
            return;
        };
        let (Ok(entry), Ok(mut scan)) =
            (Entry::new(Kind::TokenBucket, "ob", key), desk.operator.scan_namespace("ob"))
        else {
            return self.judges.condemn("the entry of a bucket is not valid");
        };
        let mut is_listed = false;
        loop {
            match self.call("scan", Duration::from_secs(1), scan.next()).await {
                Some(Ok(Some(page))) => {
                    // Of a long key, only the digest is known.
                    let is_long = |other: &Entry| key.len() > LONG.len() && other.key().is_none();
                    is_listed |=
                        page.iter().any(|other| other.key_text() == entry.key_text() || is_long(other));
                }
                Some(Ok(None)) => break,
                _ => return,
            }
        }
        if !is_listed && self.has_all(since) {
            self.judges.condemn(format!("the bucket {} is not listed", entry.key_text()));
        }
    }

    /// Of many holds, all are charged that are captured, and nothing else is.
    async fn hold_many(&self, desk: &Desk, key: &str) {
        let (since, none) = (self.judges.losses(), Duration::ZERO);
        let authorized =
            (0..HOLDS).map(|_| self.call("hold one of many", none, desk.bucket.authorize(key, 1)).boxed());
        let holds: Vec<_> = join_all(authorized).await.into_iter().filter_map(|hold| hold?.ok()).collect();
        let captures =
            holds.into_iter().map(|hold| self.call("capture one of many", none, hold.capture(1)).boxed());
        let captured: Vec<_> =
            join_all(captures).await.into_iter().map(|captured| captured.and_then(Result::ok)).collect();
        let Some(Ok(state)) = self.call("peek", none, desk.bucket.peek(key)).await else { return };
        let charged: u32 = captured.iter().flatten().map(|captured| captured.charged).sum();
        let is_known = captured.len() == HOLDS as usize && captured.iter().all(Option::is_some);
        let (left, most) = (state.remaining(), TOKENS.saturating_sub(charged) + 1);
        if (left > most || is_known && left + 1 < most) && self.has_all(since) {
            self.judges.condemn(format!("{key}: {charged} of {TOKENS} were captured, and {left} are left"));
        }
    }

    /// The numbers of the keys that are refused most are bounds of what was counted.
    async fn count_refused(&self, process: &Process, desk: &Desk) {
        let key = self.shape.key(&self.network);
        let process = process.number;
        self.judges.note(&key);
        self.judges.note(&format!("p{process} {key}"));
        desk.refused.record(&*key);
        for one in desk.refused.top(4) {
            let counted = self.judges.noted(&format!("p{process} {}", one.key));
            if !(one.at_least..=one.at_most).contains(&counted) {
                self.judges.condemn(format!("{}: {} to {} of {counted}", one.key, one.at_least, one.at_most));
            }
        }
        if self.network.happens(100) {
            let top = self
                .call("top refused", Duration::from_secs(1), desk.operator.top_refused("or", 4).boxed())
                .await;
            for one in top.into_iter().flatten().flatten() {
                let counted = self.judges.noted(&one.key);
                if one.at_least > counted {
                    self.judges.condemn(format!("{}: at least {} of {counted}", one.key, one.at_least));
                }
            }
        }
    }

    /// What is told of a filter is so.
    async fn inspect_filter(&self, desk: &Desk, key: &str) {
        let since = self.judges.losses();
        let Some(Ok(_)) = self.call("insert", Duration::ZERO, desk.filter.insert(key)).await else { return };
        let Some(State::Filter(state)) = self.state(desk, Entry::whole(Kind::BloomFilter, "ol")).await else {
            return;
        };
        let (told, own) = (state.size, desk.filter.size());
        let differs = (told.bits, told.hashes, told.keys) != (own.bits, own.hashes, own.keys);
        if differs && self.has_all(since) {
            self.judges.condemn(format!("a filter of {own:?} is told as {told:?}"));
        }
    }

    /// Nobody is told that all permits are free while one is held, and there are never more than the limit.
    async fn wait_for_all(&self, desk: &Desk, key: &str) {
        let (since, permits) = (self.judges.losses(), &desk.permits);
        let Some(Ok(permit)) = self.call("add", SHORT, permits.add(key)).await else { return };
        let count = self.call("count", Duration::ZERO, permits.count(key)).await;
        let waited = self.call("wait for all", SHORT, permits.wait(key)).await;
        let is_wrong = matches!(count, Some(Ok(count)) if count != 1) || matches!(waited, Some(Ok(())));
        if is_wrong && permit.is_held() && self.has_all(since) {
            self.judges.condemn(format!("{key}: one holds, counted as {count:?}, waited for: {waited:?}"));
        }
        drop(self.call("done", Duration::ZERO, permit.done()).await);
    }

    /// Another program has a key of this name: that is told, and it is left as it is.
    async fn meet_foreign_key(&self, desk: &Desk, key: &str) {
        const PARTS: [(&str, &str); 5] = [
            ("ob", "tat"),
            ("om", "lock"),
            ("og", "permits:holders"),
            ("of", "flight:answer"),
            ("or", "refused"),
        ];
        let which = self.network.draw(PARTS.len() as u64) as usize;
        let (name, part) = PARTS[which];
        let since = self.judges.losses();
        self.network.put_foreign(&self.servers, format!("td:{{{name}:{key}}}:{part}").as_bytes());
        let entry = |kind| Entry::new(kind, name, key);
        let outcome = match which {
            0 => desk.bucket.allow(key).await.map(|_| ()),
            1 => desk.mutex.try_lock(key).await.map(|_| ()),
            2 => desk.permits.try_add(key).await.map(|_| ()),
            kind => match entry(if kind == 3 { Kind::SingleFlight } else { Kind::RefusedKeys }) {
                Ok(entry) => desk.operator.inspect(&entry).await.map(|_| ()),
                Err(error) => Err(error),
            },
        };
        self.judges.count(if matches!(&outcome, Err(error) if error.is_wrong_type()) {
            "foreign"
        } else {
            "errors"
        });
        let is_told = matches!(&outcome, Err(error) if error.is_unavailable() || error.is_overloaded());
        if !is_told && self.has_all(since) {
            self.judges.condemn(format!("{name} meets a foreign key: {outcome:?}"));
        }
    }
}
