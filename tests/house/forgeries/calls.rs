//! One of each primitive, and a call of one of them at random.

use std::any::Any;
use std::convert::Infallible;
use std::future::{pending, ready};
use std::num::NonZeroU32;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{ServiceExt as _, service_fn};
use tower_distributed::dedupe::Claimed;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::Operator;
use tower_distributed::response::UpstreamLimits;
use tower_distributed::single_flight::Postcard;
use tower_distributed::wait_group::{Adaptive, Signal, Turn};
use tower_distributed::{
    BloomFilter, ConcurrencyLimitLayer, Dedupe, Error, FleetQuotas, Mutex, Quota, Quotas,
    RateLimitLayer, RwLock, SingleFlight, Store, StoreFailure, TokenBucket, TokenBuckets,
    WaitGroup,
};
use tower_layer::Layer as _;

/// Tokens of each bucket.
pub(crate) const BURST: u32 = 5;
/// Permits of each group.
pub(crate) const LIMIT: u32 = 3;
pub(crate) const KEY: &str = "k";
const SHORT: Duration = Duration::from_millis(200);
const HOUR: Duration = Duration::from_secs(3600);

/// No call takes longer: what it waits for, the timeout of its store, and more.
const LONGEST: Duration = Duration::from_secs(15);

/// What comes of a call, which may not hang.
pub(crate) async fn bounded<T>(call: impl Future<Output = T>) -> T {
    timeout(LONGEST, call).await.expect("a call hangs")
}

/// What callers of a round hold until its end.
#[derive(Default)]
pub(crate) struct Kept {
    held: Vec<Box<dyn Any + Send>>,
    pub(crate) waiting: JoinSet<()>,
}

impl Kept {
    async fn keep<T: Send + 'static>(&mut self, call: impl Future<Output = Result<T, Error>>) {
        self.held.extend(
            bounded(call)
                .await
                .ok()
                .map(|held| Box::new(held) as Box<dyn Any + Send>),
        );
    }

    /// Waits for something, and holds it.
    fn wait<T: Send>(&mut self, waiting: impl Future<Output = Result<T, Error>> + Send + 'static) {
        self.waiting.spawn(async {
            let _held = waiting.await;
            pending::<()>().await;
        });
    }
}

#[derive(Clone)]
pub(crate) struct Calls {
    /// Each has so many tokens, and gets none back in the time of a test.
    pub(crate) buckets: [TokenBucket; 3],
    pub(crate) both: TokenBuckets<2>,
    pub(crate) permits: [WaitGroup; 2],
    pub(crate) mutex: Mutex,
    pub(crate) rw_lock: RwLock,
    pub(crate) flights: SingleFlight<u64, Infallible>,
    pub(crate) dedupes: [Dedupe; 2],
    pub(crate) filter: BloomFilter,
    pub(crate) setting: FleetQuotas,
    pub(crate) refused: RefusedKeys,
    pub(crate) operator: Operator,
}

impl Calls {
    /// The primitives of a round have names of their own.
    pub(crate) async fn new(store: &Store, round: u64) -> Result<Self, Error> {
        let name = |kind: &str| format!("{kind}{round}");
        let daily = Quota::per_day(1).burst(BURST);
        let bucket = |kind: &str, quotas: Quotas| TokenBucket::new(store, &name(kind), quotas);
        let both = Quotas::new([daily.clone(), Quota::non_refilling(BURST)])?;
        let buckets = [
            bucket("daily", daily.try_into()?)?,
            bucket("yearly", Quota::per_calendar_year(BURST).try_into()?)?,
            bucket("several", both)?,
        ];
        let group = WaitGroup::builder(LIMIT)
            .max_wait(SHORT)
            .newest_first_after(Duration::from_millis(1));
        let fair = WaitGroup::builder(LIMIT)
            .max_wait(SHORT)
            .fair()
            .priorities(2);
        let filter = BloomFilter::builder()
            .capacity(1000)
            .false_positive_rate(1e-9)
            .remember_for(HOUR);
        let filter = filter.build(store, &name("filter"))?;
        Ok(Self {
            both: TokenBuckets::new([buckets[0].clone(), buckets[1].clone()])?,
            buckets,
            permits: [
                group.build(store, &name("permits"))?,
                fair.build(store, &name("fair"))?,
            ],
            mutex: Mutex::builder()
                .max_wait(SHORT)
                .build(store, &name("mutex"))?,
            rw_lock: RwLock::builder()
                .max_wait(SHORT)
                .build(store, &name("rw"))?,
            flights: SingleFlight::builder(Postcard)
                .max_wait(SHORT)
                .ttl(Duration::from_millis(1))
                .on_store_failure(StoreFailure::FailClosed)
                .build(store, &name("flights"))?,
            dedupes: [
                Dedupe::exact(store, &name("exact"))
                    .capacity(1)
                    .remember_for(HOUR)
                    .build()?,
                Dedupe::builder().build(&filter)?,
            ],
            filter,
            setting: FleetQuotas::new(store, &name("setting"), "1/s")?,
            refused: RefusedKeys::new(store, &name("daily"))?,
            operator: Operator::new(store),
        })
    }

    /// A call of one of them. Whatever comes of it is kept.
    pub(crate) async fn step(&self, rng: &mut StdRng, kept: &mut Kept) {
        let n = rng.random_range(1..4);
        match rng.random_range(0..9) {
            0 | 1 => self.spend(rng, kept, n).await,
            2 | 3 => self.share(rng, kept, n).await,
            4 => self.lock(rng, kept).await,
            5 => self.handle(rng, kept).await,
            6 => self.fly(rng).await,
            7 => drop(self.look().await),
            _ => self.layers(rng).await,
        }
    }

    async fn spend(&self, rng: &mut StdRng, kept: &mut Kept, n: u32) {
        let bucket = &self.buckets[rng.random_range(0..3)];
        match rng.random_range(0..14) {
            0..3 => kept.keep(bucket.reserve_n(KEY, n)).await,
            3 => {
                if let Ok(mut reservation) = bucket.reserve_n(KEY, n).await {
                    kept.keep(reservation.cancel()).await;
                }
            }
            4 => kept.keep(bucket.block_for(KEY, SHORT)).await,
            5 => kept.keep(bucket.charge(KEY, n)).await,
            6 => kept.keep(bucket.give_back(KEY, n)).await,
            7 => kept.keep(bucket.reset(KEY)).await,
            8 => kept.keep(bucket.authorize(KEY, n)).await,
            9 => {
                if let Ok(mut hold) = bucket.authorize(KEY, n).await {
                    kept.keep(hold.extend(1)).await;
                    kept.keep(hold.capture(n)).await;
                }
            }
            10 => kept.keep(self.both.allow_n([KEY, KEY], [n, 1])).await,
            11 => kept.keep(self.both.authorize([KEY, KEY], [n, 1])).await,
            12 => {
                if let Ok(hold) = self.both.authorize([KEY, KEY], [n, 1]).await {
                    kept.keep(hold.capture([1, 1])).await;
                }
            }
            _ => kept.keep(self.both.allow([KEY, KEY])).await,
        }
    }

    async fn share(&self, rng: &mut StdRng, kept: &mut Kept, n: u32) {
        let [permits, fair] = &self.permits;
        let turn = Turn::of(u64::from(n)).class((n % 2) as u8);
        let fair = fair
            .with_turn(if rng.random() { turn } else { Turn::new() })
            .unwrap();
        match rng.random_range(0..6) {
            0 => kept.keep(permits.try_add_n(KEY, n)).await,
            1 => kept.keep(fair.try_add(KEY)).await,
            2 => kept.keep(permits.count(KEY)).await,
            3 => {
                let permits = permits.clone();
                kept.wait(async move { permits.wait(KEY).await });
            }
            at => {
                let group = if at == 4 { permits.clone() } else { fair };
                kept.wait(async move { group.add_n(KEY, n).await });
            }
        }
    }

    async fn lock(&self, rng: &mut StdRng, kept: &mut Kept) {
        let (mutex, lock) = (self.mutex.clone(), self.rw_lock.clone());
        match rng.random_range(0..8) {
            0 => kept.keep(mutex.try_lock(KEY)).await,
            1 => kept.wait(async move { mutex.lock(KEY).await }),
            2 => kept.wait(async move { mutex.lock_all([KEY, "other"]).await }),
            3 => {
                if let Ok(snapshot) = mutex.inspect(KEY).await
                    && let Some(holder) = snapshot.holders.first()
                {
                    kept.keep(mutex.revoke(KEY, holder)).await;
                }
            }
            4 => kept.keep(lock.try_read(KEY)).await,
            5 => kept.keep(lock.try_write(KEY)).await,
            6 => kept.wait(async move { lock.read(KEY).await }),
            _ => kept.wait(async move { lock.write(KEY).await }),
        }
    }

    async fn handle(&self, rng: &mut StdRng, kept: &mut Kept) {
        let dedupe = &self.dedupes[rng.random_range(0..2)];
        let claimed = dedupe.try_claim(KEY).await;
        match (rng.random_range(0..6), claimed) {
            (0..3, Ok(Claimed::New(claim))) => kept.keep(claim.confirm()).await,
            (3, Ok(Claimed::New(claim))) => kept.keep(claim.release()).await,
            (4, _) => kept.keep(self.dedupes[0].forget(KEY)).await,
            (_, Err(_)) => {
                let dedupe = dedupe.clone();
                kept.wait(async move { dedupe.claim(KEY, SHORT).await });
            }
            (_, claimed) => kept.keep(ready(claimed)).await,
        }
        kept.keep(self.filter.insert_all([KEY, "other"])).await;
        kept.keep(self.filter.contains(KEY)).await;
        kept.keep(self.filter.estimated_count()).await;
        if rng.random_bool(0.1) {
            kept.keep(self.filter.clear()).await;
        }
    }

    async fn fly(&self, rng: &mut StdRng) {
        drop(bounded(self.flights.try_run(KEY, || async { Ok(7) })).await);
        if rng.random() {
            drop(bounded(self.flights.forget(KEY)).await);
        }
        drop(bounded(self.setting.set("5/s", "ann")).await);
        drop(bounded(self.setting.set("6/s", "ben")).await);
        drop(bounded(self.setting.undo("cid")).await);
        drop(bounded(self.setting.refresh()).await);
    }

    /// Looks at all states, as an operator does. Returns the errors.
    pub(crate) async fn look(&self) -> Vec<Error> {
        let (mut scan, mut errors) = (self.operator.scan(), Vec::new());
        loop {
            match bounded(scan.next()).await {
                Ok(Some(entries)) => {
                    for entry in entries {
                        errors.extend(bounded(self.operator.inspect(&entry)).await.err());
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    errors.push(error);
                    break;
                }
            }
        }
        errors.extend(
            bounded(self.operator.top_refused(self.buckets[0].name(), 9))
                .await
                .err(),
        );
        errors.extend(bounded(self.buckets[2].peek(KEY)).await.err());
        errors.extend(bounded(self.setting.history()).await.err());
        errors
    }

    /// Requests through layers whose operations no primitive has.
    async fn layers(&self, rng: &mut StdRng) {
        let inner = service_fn(async |_: Request<()>| {
            let response = Response::builder().header("ratelimit-policy", "\"default\";q=20;w=1");
            Ok::<_, Infallible>(
                response
                    .header("ratelimit", "\"default\";r=7;t=1")
                    .body(())
                    .unwrap(),
            )
        });
        if rng.random() {
            let adaptive = Adaptive::aimd().window(Duration::from_millis(10));
            let adaptive =
                adaptive.classify(|_: &Result<Response<()>, Infallible>| Signal::Success);
            let layer = ConcurrencyLimitLayer::new(self.permits[0].clone(), |_: &Request<()>| KEY);
            drop(
                bounded(
                    layer
                        .adaptive(adaptive)
                        .unwrap()
                        .layer(inner)
                        .oneshot(Request::new(())),
                )
                .await,
            );
            return drop(bounded(self.permits[0].inspect_limit(KEY)).await);
        }
        let bucket = self.buckets[0].prefetch(SHORT).unwrap();
        let layer = RateLimitLayer::new(bucket, |_: &Request<()>| KEY)
            .count_refused(&self.refused)
            .on_store_failure(StoreFailure::CountedShare {
                replicas: NonZeroU32::MIN,
                at_least: NonZeroU32::MIN,
            });
        let layer = layer.learn(UpstreamLimits::default()).layer(inner);
        let requests = (0..8).map(|_| -> BoxFuture<'_, ()> {
            let layer = layer.clone();
            Box::pin(async move { drop(bounded(layer.oneshot(Request::new(()))).await) })
        });
        futures::future::join_all(requests).await;
    }
}
