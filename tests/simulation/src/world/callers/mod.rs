//! What callers do: they call one of the primitives of their process, hold what they get, and pause.

mod flights;
pub mod layers;
mod leases;
mod limits;
mod looks;
mod operators;
pub mod quorums;
mod settings;
mod shares;

use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tower_distributed::dedupe::FilterFull;
use tower_distributed::single_flight::Postcard;
use tower_distributed::wait_group::WaitGroupBuilder;
use tower_distributed::{
    BloomFilter, Dedupe, Error, LeaseHandle, Mutex, Quota, RwLock, SingleFlight, Store,
    TokenBucket, TokenBuckets, WaitGroup,
};

use self::layers::Layers;
use self::looks::Looks;
use self::operators::Desk;
use self::quorums::Quorum;
use self::settings::Settings;
use super::shape::{Fault, Kind, Shape};
use super::{Process, World};
use crate::network::Dialer;

/// What a call may take beyond the time that it waits for its turn: some calls of the store, with what connects and retries.
const MOST: Duration = Duration::from_secs(6);

/// Long enough for all of a world.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A limit of tokens.
#[derive(Clone, Copy)]
pub struct Rate {
    pub burst: u32,
    pub per_second: u32,
}

impl Rate {
    /// Its burst, and what it gets in a second.
    fn terms(self) -> (f64, f64) {
        (f64::from(self.burst), f64::from(self.per_second))
    }

    /// The same burst at half of the speed.
    fn half(self) -> Self {
        Self {
            per_second: self.per_second.div_ceil(2),
            ..self
        }
    }
}

/// Built once it is used: most worlds use few kinds.
type Lazy<T> = LazyLock<T, Box<dyn FnOnce() -> T + Send>>;

fn lazy<T>(
    store: &Store,
    build: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
) -> Lazy<T> {
    let store = store.clone();
    LazyLock::new(Box::new(move || {
        build(&store).unwrap_or_else(|error| panic!("{error}"))
    }))
}

/// Permits with the times of a world.
fn permits(shape: &Shape, limit: u32) -> WaitGroupBuilder {
    WaitGroup::builder(limit)
        .ttl(shape.ttl)
        .max_wait(shape.max_wait)
}

/// The primitives of a process. Those of all processes have the same settings.
pub struct Primitives {
    process: usize,
    rate: Rate,
    bucket: Lazy<TokenBucket>,
    buckets: Lazy<TokenBuckets<2>>,
    held: Lazy<TokenBucket>,
    /// Two limits of which is held together.
    held_two: Lazy<TokenBuckets<2>>,
    pub mutex: Lazy<Mutex>,
    /// Whether the mutex is given in strict order.
    is_strict: bool,
    pub permits: Lazy<WaitGroup>,
    /// The same name and limit without flows and without a bound for the queue, as a part of a fleet may have it.
    plain: Lazy<WaitGroup>,
    has_classes: bool,
    is_fair: bool,
    /// Whether permits are given in the order in which they are asked for.
    is_fifo: bool,
    pub lock: Lazy<RwLock>,
    pub flight: Lazy<SingleFlight<String>>,
    pub claims: Lazy<Dedupe>,
    pub filter_claims: Lazy<Dedupe>,
    /// In worlds that use them: they are not idle where nobody calls.
    layers: Option<Layers>,
    settings: Option<Settings>,
    looks: Option<Looks>,
    desk: Option<Desk>,
    pub quorum: Option<Quorum>,
    shares: Lazy<WaitGroup>,
}

impl Primitives {
    pub fn new(
        shape: &Shape,
        store: &Store,
        (runtime, dialer): (&Handle, &Arc<Dialer>),
    ) -> Result<Self, Error> {
        let Shape { ttl, max_wait, .. } = *shape;
        let rate = Rate {
            burst: 1 + shape.setting(1, 8) as u32,
            per_second: [1, 5, 20, 200][shape.setting(2, 4) as usize],
        };
        let quota = move |rate: Rate, name: &'static str| {
            Quota::per_second(rate.per_second)
                .burst(rate.burst)
                .named(name)
        };
        // Two limits that are charged together; the second has the burst of the first, and half of its speed.
        let two = move |store: &Store, [first, second]: [&'static str; 2]| {
            let of = |name, rate| TokenBucket::new(store, name, quota(rate, name));
            Ok::<_, Error>([of(first, rate)?, of(second, rate.half())?])
        };
        let mut mutex = Mutex::builder().ttl(ttl).max_wait(max_wait);
        let is_strict = shape.setting(3, 2) == 0;
        if is_strict {
            mutex = mutex.strict_fifo();
        }
        let (has_classes, is_fair) = (shape.has_classes(), shape.is_fair());
        let mut permits = permits(shape, 1 + shape.setting(6, 5) as u32);
        let shares = self::permits(shape, shares::LIMIT).fair();
        if has_classes {
            permits = permits.priorities(3);
        }
        let plain = permits.clone();
        if is_fair {
            permits = permits.fair();
        }
        if shape.setting(12, 3) == 0 {
            permits = permits.max_waiters(3);
        }
        if shape.is_newest_first() {
            permits = permits.newest_first_after(Duration::from_millis(200));
        }
        let mut lock = RwLock::builder().ttl(ttl).max_wait(max_wait);
        if shape.setting(8, 2) == 0 {
            lock = lock.prefer_readers();
        }
        let mut flight = SingleFlight::builder(Postcard)
            .max_wait(max_wait)
            .lease_ttl(ttl);
        flight = flight.ttl(Duration::from_millis(
            [1, 100, 1000][shape.setting(9, 3) as usize],
        ));
        if shape.setting(10, 2) == 0 {
            flight = flight.stale_while_revalidate(Duration::from_millis(500));
        }
        if shape.setting(11, 2) == 0 {
            flight = flight.local_cache(1 << 20);
        }
        Ok(Self {
            process: dialer.process,
            rate,
            bucket: lazy(store, move |store| {
                Ok(TokenBucket::new(store, "b", quota(rate, "b"))?.with_max_wait(max_wait))
            }),
            buckets: lazy(store, move |store| {
                TokenBuckets::new(two(store, ["b1", "b2"])?)
            }),
            held: lazy(store, move |store| {
                TokenBucket::new(store, "h", quota(rate, "h"))?.with_hold_ttl(ttl)
            }),
            held_two: lazy(store, move |store| {
                let [first, second] = two(store, ["h1", "h2"])?;
                TokenBuckets::new([first.with_hold_ttl(ttl)?, second.with_hold_ttl(ttl)?])
            }),
            mutex: lazy(store, |store| mutex.build(store, "m")),
            is_strict,
            permits: lazy(store, |store| permits.build(store, "g")),
            plain: lazy(store, |store| plain.build(store, "g")),
            has_classes,
            is_fair,
            is_fifo: shape.is_fifo(),
            lock: lazy(store, |store| lock.build(store, "rw")),
            flight: lazy(store, |store| flight.build(store, "f")),
            claims: lazy(store, move |store| {
                Dedupe::exact(store, "d")
                    .remember_for(FOR_EVER)
                    .ttl(ttl)
                    .build()
            }),
            filter_claims: lazy(store, move |store| {
                let filter = BloomFilter::builder()
                    .capacity(10_000)
                    .false_positive_rate(1e-9);
                let claims = Dedupe::builder().ttl(ttl).remember_forever();
                claims
                    .on_filter_full(FilterFull::FailClosed)
                    .build(&filter.build(store, "f")?)
            }),
            layers: shape
                .has(&[Kind::Adaptive, Kind::Learned])
                .then(|| Layers::new(shape, store))
                .transpose()?,
            settings: shape
                .has(&[Kind::FleetQuotas, Kind::FleetLimit, Kind::Calendar])
                .then(|| Settings::new(shape, store))
                .transpose()?,
            looks: shape
                .has(&[Kind::Looks])
                .then(|| Looks::new(shape, store))
                .transpose()?,
            desk: shape
                .has(&[Kind::Operator])
                .then(|| Desk::new(shape, store))
                .transpose()?,
            quorum: shape
                .has(&[Kind::Quorum])
                .then(|| Quorum::new(shape, runtime, dialer))
                .transpose()?,
            shares: lazy(store, |store| shares.build(store, "sg")),
        })
    }
}

/// What worlds have that use it.
fn built<T>(part: &Option<T>) -> &T {
    part.as_ref().expect("a kind was not built")
}

/// For how long a future is not polled at most.
const NEGLECTED: Duration = Duration::from_secs(6);

/// Polls a future until it ends, or until one of its polls.
async fn polled<T>(poll: u64, mut future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut polls = 0;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if polls >= poll => Poll::Ready(None),
        Poll::Pending => {
            polls += 1;
            Poll::Pending
        }
    })
    .await
}

impl World {
    pub(super) async fn call_again_and_again(self: &Arc<Self>, process: &Process) {
        while !self.is_over() {
            let Some(kind) = self.network.one(&self.shape.kinds).copied() else {
                return;
            };
            let key = self.shape.key(&self.network);
            self.call_one(process, kind, &key).await;
            self.pause(self.shape.idle).await;
        }
    }

    /// `None`: the call was refused, failed, or was dropped.
    async fn call_one(self: &Arc<Self>, process: &Process, kind: Kind, key: &str) -> Option<()> {
        let all = &process.primitives;
        match kind {
            Kind::Bucket => self.charge(all, key).await,
            Kind::Buckets => self.charge_two(all, key).await,
            Kind::Hold => self.authorize(all, key).await,
            Kind::Mutex => self.lock(all, key).await,
            Kind::Mutexes => self.lock_all(all).await,
            Kind::Permit => self.permit(all, key).await,
            Kind::RwLock => self.read_or_write(all, key).await,
            Kind::Flight => self.fly(all, key).await,
            Kind::Claim => self.claim(all, &all.claims, key).await,
            Kind::FilterClaim => self.claim(all, &all.filter_claims, key).await,
            Kind::Adaptive => self.adapt(built(&all.layers), key).await,
            Kind::Learned => self.learn(built(&all.layers), key).await,
            Kind::FleetQuotas => self.fleet_quotas(built(&all.settings), key).await,
            Kind::FleetLimit => self.fleet_limit(built(&all.settings), key).await,
            Kind::Calendar => self.calendar(built(&all.settings), key).await,
            Kind::Looks => self.look(all, built(&all.looks), key).await,
            Kind::Operator => self.operate(process, built(&all.desk)).await,
            Kind::Quorum => self.lock_by_quorum(built(&all.quorum), key).await,
            Kind::Shares => self.share(&all.shares).await,
            Kind::Holds => self.authorize_two(all, key).await,
        }
    }

    /// Awaits a call, which may be dropped before it ends: then `None`. Judges how long it took, and its error.
    async fn call<T>(
        &self,
        what: &'static str,
        waits: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<Result<T, Error>> {
        let began = Instant::now();
        let outcome = match self.network.happens(self.shape.dropped) {
            false => Some(call.await),
            true => polled(self.network.draw(6), pin!(call)).await,
        };
        // Who stands still is late.
        if !self.shape.has_runtimes || !self.shape.faults.contains(&Fault::Freeze) {
            self.judges.in_time(what, began, waits + MOST);
        }
        let told = match &outcome {
            None => "dropped".into(),
            Some(Ok(_)) => {
                self.judges.count(what);
                "done".into()
            }
            Some(Err(error)) => {
                self.judges.count("errors");
                self.judges.failed(what, error);
                error.to_string()
            }
        };
        self.network.note(what, told);
        outcome
    }

    /// What a call got.
    async fn get<T>(
        &self,
        what: &'static str,
        waits: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        self.call(what, waits, call).await?.ok()
    }

    /// The same of one that waits for nothing but its answer.
    async fn ask<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        self.get(what, Duration::ZERO, call).await
    }

    /// Awaits a call that waits for a lease. At times it is not polled for a while.
    async fn call_that_waits<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Option<T> {
        if !self.network.happens(self.shape.neglected) {
            return self.get(what, self.shape.max_wait, call).await;
        }
        let (poll, span) = (
            self.network.draw(6),
            self.network.draw(NEGLECTED.as_millis() as u64),
        );
        let call = async {
            let mut call = pin!(call);
            if let Some(output) = polled(poll, call.as_mut()).await {
                return output;
            }
            self.judges.count("neglected");
            sleep(Duration::from_millis(span)).await;
            call.await
        };
        self.get(what, self.shape.max_wait + NEGLECTED, call).await
    }

    /// A caller of this process waits no more for names that begin so.
    pub(super) fn waits_no_more(&self, all: &Primitives, name: &str) {
        self.network
            .wakes
            .iter()
            .for_each(|wakes| wakes.has_ended(all.process, name));
    }

    /// Notes that a caller holds something of which there is `limit`. Returns its number.
    fn acquired(&self, name: &str, held: (LeaseHandle, u32, bool), limit: u32, since: u64) -> u64 {
        self.network
            .wakes
            .iter()
            .for_each(|wakes| wakes.got(held.0.token()));
        self.judges.acquired(name, held, limit, since)
    }

    /// Whether each renewal arrives in time, also where the memory is full.
    fn loses_nothing(&self) -> bool {
        let harmless = |fault: &Fault| matches!(fault, Fault::Full | Fault::Flush);
        // Where calls wait for a replica that lags, they wait for each other, and a ttl of a second may be too short.
        let is_quick = !self.shape.waits_for_replica() || self.shape.ttl >= Duration::from_secs(3);
        // What a future got that was not polled lasts for a short time.
        let is_quick = is_quick && self.shape.neglected == 0;
        is_quick && self.shape.weather.often_late == 0 && self.shape.faults.iter().all(harmless)
    }

    /// Holds something for a while, unless it is lost before.
    async fn hold(&self, lost: impl Future<Output = ()>) {
        let held = match self.network.happens(20) {
            true => self.shape.ttl.as_millis() as u64 * 2,
            false => self.shape.held,
        };
        let held = Duration::from_millis(self.network.draw(held.min(6000) + 1));
        tokio::select! {
            biased;
            () = lost => {
                self.judges.count("lost");
                if self.loses_nothing() {
                    self.condemn("a lease was lost, although nothing is wrong");
                }
            }
            () = sleep(held) => {}
        }
    }

    /// Once nothing is wrong any more, each primitive serves.
    pub(super) async fn all_works(&self, process: &Process) {
        for kind in &self.shape.kinds {
            let what = format!("process {}, {kind:?}", process.number);
            let ends = Instant::now() + Duration::from_secs(60);
            // Messages are still late at times, and a short wait may end before its answer.
            while let Err(error) = self.works(&process.primitives, *kind).await {
                if Instant::now() > ends {
                    self.condemn(format!("{what}, once nothing is wrong: {error}"));
                    break;
                }
                sleep(Duration::from_millis(500)).await;
            }
        }
    }

    async fn works(&self, all: &Primitives, kind: Kind) -> Result<(), Error> {
        match kind {
            Kind::Bucket => all.bucket.allow("k0").await.map(drop),
            Kind::Buckets => all.buckets.allow(["k0", "k0"]).await.map(drop),
            Kind::Hold => all.held.peek("k0").await.map(drop),
            Kind::Mutex | Kind::Mutexes => all.mutex.lock("k0").await?.unlock().await.map(drop),
            Kind::Permit => all.permits.add("k0").await?.done().await.map(drop),
            Kind::RwLock => {
                all.lock.read("k0").await?.release().await?;
                all.lock.write("k0").await?.release().await.map(drop)
            }
            Kind::Flight => all
                .flight
                .run("end", || async { "end".to_owned() })
                .await
                .map(drop),
            Kind::Claim => all.claims.try_claim("end").await.map(drop),
            Kind::FilterClaim => all.filter_claims.try_claim("end").await.map(drop),
            Kind::FleetQuotas | Kind::FleetLimit => {
                self.settings_agree(built(&all.settings));
                Ok(())
            }
            Kind::Quorum => built(&all.quorum)
                .mutex
                .lock("k0")
                .await?
                .unlock()
                .await
                .map(drop),
            Kind::Shares => all.shares.add("k0").await?.done().await.map(drop),
            Kind::Holds => all.held_two.allow(["k0", "k0"]).await.map(drop),
            Kind::Adaptive | Kind::Learned | Kind::Calendar | Kind::Looks | Kind::Operator => {
                Ok(())
            }
        }
    }
}
