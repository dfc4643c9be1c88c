//! What operators do: they look, forget and reset, and find the keys that are refused most. And keys of other programs.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::Instant;
use tower_distributed::dedupe::Claimed;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::{Entry, Kind, Operator, State};
use tower_distributed::single_flight::Postcard;
use tower_distributed::{
    BloomFilter, BreakerState, Dedupe, Error, Mutex, Quota, SingleFlight, Store, TokenBucket,
    WaitGroup,
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
        let flight = SingleFlight::builder(Postcard)
            .max_wait(shape.max_wait)
            .lease_ttl(shape.ttl)
            .ttl(FRESH);
        let filter = BloomFilter::builder()
            .capacity(1_000)
            .false_positive_rate(1e-9)
            .keys(2);
        Ok(Self {
            operator: Operator::new(store),
            flight: flight.local_cache(1 << 20).build(store, "of")?,
            items: Dedupe::exact(store, "od")
                .remember_for(FOR_EVER)
                .ttl(shape.ttl)
                .build()?,
            filter: filter.build(store, "ol")?,
            bucket: TokenBucket::new(store, "ob", Quota::per_hour(TOKENS))?,
            refused: RefusedKeys::with_plain_keys(store, "or")?,
            permits: WaitGroup::builder(1)
                .ttl(shape.ttl)
                .max_wait(SHORT)
                .build(store, "og")?,
            mutex: Mutex::new(store, "om")?,
        })
    }
}

impl World {
    pub(super) async fn operate(&self, process: &Process, desk: &Desk) -> Option<()> {
        // No other caller has this key.
        let plain = format!("o{}", self.network.draw(1 << 50));
        let key = format!(
            "{plain}{}",
            self.network.one(&TAILS).copied().unwrap_or_default()
        );
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
            _ => None,
        }
    }

    /// Whether the servers have everything since then.
    pub(super) fn has_all(&self, since: u64) -> bool {
        self.judges.losses() == since && !self.may_forget()
    }

    async fn state(&self, desk: &Desk, entry: Result<Entry, Error>) -> Option<State> {
        let entry = entry
            .inspect_err(|error| self.condemn(format!("an entry: {error}")))
            .ok()?;
        self.ask("operate", desk.operator.inspect(&entry)).await?
    }

    async fn run(&self, desk: &Desk, key: &str, answer: &str) -> Option<String> {
        let answer = answer.to_owned();
        let run = desk.flight.run(key, move || async move { answer });
        self.get("run to forget", self.shape.max_wait, run).await
    }

    /// An answer that is forgotten does not appear again.
    async fn forget_answer(&self, desk: &Desk, key: &str) -> Option<()> {
        let (since, wait) = (self.judges.losses(), self.shape.max_wait);
        self.run(desk, key, "old").await?;
        let entry = || Entry::new(Kind::SingleFlight, "of", key);
        if let Some(State::Flight(state)) = self.state(desk, entry()).await
            && state
                .answer
                .is_some_and(|answer| answer.fresh_for > FRESH || answer.bytes == 0)
        {
            self.condemn(format!(
                "{key}: the stored answer is empty, or fresh for too long"
            ));
        }
        self.get("forget an answer", wait, desk.flight.forget(key))
            .await?;
        let state = self.state(desk, entry()).await;
        let is_stored = matches!(state, Some(State::Flight(state)) if state.answer.is_some());
        let is_old = self
            .run(desk, key, "new")
            .await
            .is_some_and(|answer| answer != "new");
        if (is_stored || is_old) && self.has_all(since) {
            self.condemn(format!(
                "{key}: a forgotten answer is back: {is_stored}, {is_old}"
            ));
        }
        Some(())
    }

    /// An item that is forgotten is new again.
    async fn forget_item(&self, desk: &Desk, key: &str) -> Option<()> {
        let since = self.judges.losses();
        let claimed = self
            .ask("claim to forget", desk.items.try_claim(key))
            .await?;
        let Claimed::New(claim) = claimed else {
            return None;
        };
        if !self.ask("confirm", claim.confirm()).await? {
            return None;
        }
        let before = self.is_handled(desk, key).await;
        self.ask("forget an item", desk.items.forget(key)).await?;
        let after = self.is_handled(desk, key).await;
        let again = self.ask("claim again", desk.items.try_claim(key)).await;
        let is_known = again.is_some_and(|claimed| !matches!(claimed, Claimed::New(_)));
        if (before == Some(false) || after == Some(true) || is_known) && self.has_all(since) {
            self.condemn(format!(
                "{key}: handled {before:?}, forgotten {after:?}, known {is_known}"
            ));
        }
        Some(())
    }

    async fn is_handled(&self, desk: &Desk, key: &str) -> Option<bool> {
        match self
            .state(desk, Entry::new(Kind::Dedupe, "od", key))
            .await?
        {
            State::Dedupe(state) => state.is_handled,
            _ => None,
        }
    }

    /// A bucket that is reset is full again.
    async fn reset(&self, desk: &Desk, key: &str) -> Option<()> {
        let since = self.judges.losses();
        let taken = self
            .ask("take all", desk.bucket.allow_n(key, TOKENS))
            .await?;
        let entry = Entry::new(Kind::TokenBucket, "ob", key).ok()?;
        let seen = match self.state(desk, Ok(entry.clone())).await {
            Some(State::Bucket(bucket)) => bucket.remaining(),
            _ => 0,
        };
        match self.network.happens(500) {
            true => self.ask("reset", desk.operator.reset(&entry)).await?,
            false => self.ask("reset", desk.bucket.reset(key)).await?,
        }
        let again = self.ask("take all", desk.bucket.allow_n(key, TOKENS)).await;
        let is_refused = again.is_some_and(|decision| !decision.is_admitted());
        if (!taken.is_admitted() || seen > 1 || is_refused) && self.has_all(since) {
            self.condemn(format!(
                "{key}: {seen} left of all, refused after a reset: {is_refused}"
            ));
        }
        Some(())
    }

    /// A page of the status tells that the server answers, where nothing is wrong.
    async fn read_status(&self, process: &Process, desk: &Desk) -> Option<()> {
        let pinged = self
            .call("ping", Duration::ZERO, process.store.ping())
            .await;
        let stats = process.store.stats();
        let is_well = stats.breaker == BreakerState::Closed && matches!(pinged, None | Some(Ok(_)));
        if self.runs_alone() && !is_well {
            self.condemn(format!(
                "nothing is wrong, but a ping told {pinged:?}, the status {stats:?}"
            ));
        }
        if let Err(error) = desk.operator.acl_rule("ops") {
            self.condemn(format!("no rules for an operator: {error}"));
        }
        Some(())
    }

    /// A list of what is stored has each bucket that is not full.
    async fn list(&self, desk: &Desk, key: &str) -> Option<()> {
        let since = self.judges.losses();
        self.ask("take to be listed", desk.bucket.allow_n(key, 10))
            .await?;
        let (Ok(entry), Ok(mut scan)) = (
            Entry::new(Kind::TokenBucket, "ob", key),
            desk.operator.scan_namespace("ob"),
        ) else {
            self.condemn("the entry of a bucket is not valid");
            return None;
        };
        // Of a long key, only the digest is known.
        let is_long = |other: &Entry| key.len() > LONG.len() && other.key().is_none();
        let mut is_listed = false;
        while let Some(page) = self
            .get("scan", Duration::from_secs(1), scan.next())
            .await?
        {
            is_listed |= page
                .iter()
                .any(|other| other.key_text() == entry.key_text() || is_long(other));
        }
        if !is_listed && self.has_all(since) {
            self.condemn(format!("the bucket {} is not listed", entry.key_text()));
        }
        Some(())
    }

    /// Of many holds, all are charged that are captured, and nothing else is.
    async fn hold_many(&self, desk: &Desk, key: &str) -> Option<()> {
        let since = self.judges.losses();
        let holds = (0..HOLDS).map(|_| {
            self.ask("hold one of many", desk.bucket.authorize(key, 1))
                .boxed()
        });
        let holds = join_all(holds).await.into_iter().flatten();
        let captured = holds.map(|hold| self.ask("capture one of many", hold.capture(1)).boxed());
        let captured = join_all(captured).await;
        let left = self.ask("peek", desk.bucket.peek(key)).await?.remaining();
        let charged: u32 = captured
            .iter()
            .flatten()
            .map(|captured| captured.charged)
            .sum();
        let is_known = captured.len() == HOLDS as usize && captured.iter().all(Option::is_some);
        let most = TOKENS.saturating_sub(charged) + 1;
        if (left > most || is_known && left + 1 < most) && self.has_all(since) {
            self.condemn(format!(
                "{key}: {charged} of {TOKENS} were captured, and {left} are left"
            ));
        }
        Some(())
    }

    /// The numbers of the keys that are refused most are bounds of what was counted.
    async fn count_refused(&self, process: &Process, desk: &Desk) -> Option<()> {
        let key = self.shape.key(&self.network);
        let process = process.number;
        self.judges.note(&key);
        self.judges.note(&format!("p{process} {key}"));
        desk.refused.record(&*key);
        for one in desk.refused.top(4) {
            let counted = self.judges.noted(&format!("p{process} {}", one.key));
            if !(one.at_least..=one.at_most).contains(&counted) {
                self.condemn(format!(
                    "{}: {} to {} of {counted}",
                    one.key, one.at_least, one.at_most
                ));
            }
        }
        if self.network.happens(100) {
            let top = desk.operator.top_refused("or", 4).boxed();
            for one in self.get("top refused", Duration::from_secs(1), top).await? {
                let counted = self.judges.noted(&one.key);
                if one.at_least > counted {
                    self.condemn(format!(
                        "{}: at least {} of {counted}",
                        one.key, one.at_least
                    ));
                }
            }
        }
        Some(())
    }

    /// What is told of a filter is so.
    async fn inspect_filter(&self, desk: &Desk, key: &str) -> Option<()> {
        let since = self.judges.losses();
        self.ask("insert", desk.filter.insert(key)).await?;
        let state = self
            .state(desk, Entry::whole(Kind::BloomFilter, "ol"))
            .await?;
        let State::Filter(state) = state else {
            return None;
        };
        let (told, own) = (state.size, desk.filter.size());
        let differs = (told.bits, told.hashes, told.keys) != (own.bits, own.hashes, own.keys);
        if differs && self.has_all(since) {
            self.condemn(format!("a filter of {own:?} is told as {told:?}"));
        }
        Some(())
    }

    /// Nobody is told that all permits are free while one is held, and there are never more than the limit.
    async fn wait_for_all(&self, desk: &Desk, key: &str) -> Option<()> {
        let (since, permits) = (self.judges.losses(), &desk.permits);
        let permit = self.get("add", SHORT, permits.add(key)).await?;
        let count = self.ask("count", permits.count(key)).await;
        let waited = self.call("wait for all", SHORT, permits.wait(key)).await;
        let is_wrong = count.is_some_and(|count| count != 1) || matches!(waited, Some(Ok(())));
        if is_wrong && permit.is_held() && self.has_all(since) {
            self.condemn(format!(
                "{key}: one holds, counted as {count:?}, waited for: {waited:?}"
            ));
        }
        self.ask("done", permit.done()).await.map(drop)
    }

    /// Another program has a key of this name: that is told, and it is left as it is.
    async fn meet_foreign_key(&self, desk: &Desk, key: &str) -> Option<()> {
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
        let put = Instant::now();
        let life = self.network.put_foreign(
            &self.servers,
            format!("td:{{{name}:{key}}}:{part}").as_bytes(),
        );
        let outcome = match which {
            0 => desk.bucket.allow(key).await.map(|_| ()),
            1 => desk.mutex.try_lock(key).await.map(|_| ()),
            2 => desk.permits.try_add(key).await.map(|_| ()),
            kind => {
                let kind = if kind == 3 {
                    Kind::SingleFlight
                } else {
                    Kind::RefusedKeys
                };
                let entry = Entry::new(kind, name, key).ok()?;
                desk.operator.inspect(&entry).await.map(|_| ())
            }
        };
        let is_foreign = matches!(&outcome, Err(error) if error.is_wrong_type());
        self.judges
            .count(if is_foreign { "foreign" } else { "errors" });
        let is_told =
            matches!(&outcome, Err(error) if error.is_unavailable() || error.is_overloaded());
        let is_there = put.elapsed() < life;
        if !is_told && is_there && self.has_all(since) {
            self.condemn(format!("{name} meets a foreign key: {outcome:?}"));
        }
        Some(())
    }
}
