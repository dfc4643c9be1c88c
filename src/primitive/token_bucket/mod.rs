//! The token buckets. See the public module `token_bucket`.

mod acquire;
mod adjust;
mod ahead;
mod change;
mod decision;
mod local;
mod operations;
mod reservation;
mod returning;
mod several;
mod state;

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::coop::consume_budget;

pub(crate) use self::acquire::Acquire;
pub use self::decision::{Balance, BucketState, Decision};
pub use self::reservation::Reservation;
pub use self::several::TokenBuckets;
pub(crate) use self::several::{AcquireAll, Keys, Several};

use self::acquire::Decide;
use self::adjust::Adjust;
use self::ahead::{GiveBack, Prefetch};
use self::local::{Answer, Local};
use self::operations::{Block, Cancel, Peek, Reserve, Reset};
use self::returning::Returning;
use self::state::{Ask, Bucket};
use crate::primitive::clock;
use crate::primitive::quota::{MAX_SPAN, Quotas};
use crate::store::{Client, Namespace, OperationFuture};
use crate::telemetry::{Decisions, Outcome};
use crate::{Error, Key, Quota, Store};

/// A namespace of token buckets, one per key. A cheap clone; see the [module](crate::token_bucket) for the whole story.
///
/// # Cancel safety
///
/// Every future here may be dropped at any time. A request that is dropped while it is being decided, or
/// while its delay is waited for, gives its tokens back from a task of its own, as far as nothing has been built
/// upon them.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    clients: Arc<Clients>,
    quotas: Quotas,
    /// The max_wait delay, µs.
    max_wait: i64,
    local: Local,
}

#[derive(Debug)]
struct Clients {
    name: String,
    decisions: Decisions,
    reserve: Client<Reserve>,
    cancel: Client<Cancel>,
    adjust: Client<Adjust>,
    prefetch: Client<Prefetch>,
    give_back: Client<GiveBack>,
    peek: Client<Peek>,
    block: Client<Block>,
    reset: Client<Reset>,
    returning: Returning,
    store: Store,
    namespace: Namespace<Bucket>,
}

impl TokenBucket {
    /// The buckets of the namespace `name` in a store, with a quota or several.
    ///
    /// Whoever uses the same store and name shares the buckets. Where quotas differ, as during a deployment, each call goes
    /// by its own; see [below](crate::token_bucket#when-quotas-change).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where the name is not 1 to 64 of `A-Z a-z 0-9 - _ . /`, and as
    /// [`Quotas::new`] says.
    pub fn new<Q>(store: &Store, name: &str, quotas: Q) -> Result<Self, Error>
    where
        Q: TryInto<Quotas>,
        Error: From<Q::Error>,
    {
        let quotas = quotas.try_into()?;
        let clients = Arc::new(Clients::new(store, name, &Namespace::new(store, name)?));
        Ok(Self { clients, quotas, max_wait: MAX_SPAN, local: Local::default() })
    }

    /// The same buckets under other quotas: those of a customer's plan, say.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Quotas, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(10))?;
    /// let premium = Quotas::new([Quota::per_second(100)])?;
    /// let decision = bucket.with_quotas(&premium).allow("customer-1").await?;
    /// assert_eq!(decision.limit(), 100);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_quotas(&self, quotas: &Quotas) -> Self {
        Self { quotas: quotas.clone(), ..self.clone() }
    }

    /// The same buckets, where [`reserve`](Self::reserve) and [`wait`](Self::wait) refuse delays above this.
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { max_wait: to_micros(max_wait), ..self.clone() }
    }

    /// The same buckets, where this process refuses without asking what the store would refuse, by what the store told last.
    /// Default: `false`; of a [layer](crate::RateLimitLayer::cache_refusals) that does not wait, `true`.
    ///
    /// A refusal tells when the next token comes. Until then all requests for the key are refused here; then so many are let
    /// through to the store as there can be tokens. So a key that is refused costs the store hardly more than what it admits, and
    /// as many requests are admitted as without. What is given back, [reset](Self::reset), or granted under other quotas
    /// meanwhile is noticed after a second at the latest; at once where it is done by this value or its clones. In memory
    /// it changes nothing.
    #[must_use]
    pub fn cache_refusals(&self, cache: bool) -> Self {
        Self { local: self.local.clone().with_refusals(cache), ..self.clone() }
    }

    /// The same buckets, where this process charges the tokens of hot keys ahead, several in one call, holds them for up to
    /// `hold`, and admits requests by them without asking.
    ///
    /// For keys that one process asks for thousands of times per second. It sees which those are; others are not
    /// concerned. What is charged ahead is what was used in half of `hold` the last time, and at most a quarter of
    /// the tokens that are to be had; what is not used is given back. In memory it changes nothing.
    ///
    /// # What it still guarantees
    ///
    /// In every interval of length `t`, at most `burst + rate·t + min(rate·hold, K)` tokens' worth of requests act, where `K` is
    /// the most tokens that all processes together hold at once; whoever crashes, stands still or is cancelled. A request that
    /// acts at some time was charged within `hold` before, so all that act within an interval were charged within one that is
    /// longer by `hold`: that is the middle term of the bound. And all but those that were held already were charged within
    /// the interval itself: that is the last one. Tokens are used for no longer than `hold` from before the moment when they
    /// were asked for, by a clock that goes on while the host is suspended. What is given back is less by what came
    /// back since it was charged, for had it not been charged, the bucket might have been full, and that lost. A
    /// [`reset`](Self::reset), and a failover that forgets, admit up to `K` more; a [block](Self::block_for) stops what this
    /// process holds at once, and what others hold after `hold`. On a Cluster nothing is given back, since its client may
    /// repeat calls. Quotas that [never refill](crate::Quota::non_refilling) are not charged ahead. The clock that counts time in
    /// suspend is Linux's; elsewhere a host must not be suspended.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) where `hold` is not 1 ms to 1 s. 10 ms is a good choice.
    pub fn prefetch(&self, hold: Duration) -> Result<Self, Error> {
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&hold) {
            return Err(Error::invalid(format!("tokens are held for 1 ms to 1 s, is {hold:?}")));
        }
        Ok(Self { local: self.local.clone().with_prefetch(to_micros(hold)), ..self.clone() })
    }

    /// Takes one token, if there is one now.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable). A refusal is not an error here, but a [`Decision`].
    pub async fn allow(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.decide(key.into(), 1, 0).await
    }

    /// Takes `n` tokens, if there are so many now. Where `n` is 0, nobody is asked, here as in the other
    /// methods: the request is admitted, with the state of an untouched bucket.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable), and [`is_exceeds_burst`](Error::is_exceeds_burst) where no
    /// bucket ever holds so many.
    pub async fn allow_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        self.decide(key.into(), n, 0).await
    }

    /// Takes one token now or in the future.
    ///
    /// # Errors
    ///
    /// As [`reserve_n`](Self::reserve_n).
    pub async fn reserve(&self, key: impl Into<Key>) -> Result<Reservation, Error> {
        self.reserve_n(key, 1).await
    }

    /// Takes `n` tokens now or in the future; the [`Reservation`] says when to act.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable); [`is_exceeds_burst`](Error::is_exceeds_burst) where no
    /// bucket ever holds so many; [`is_refused`](Error::is_refused) where the delay would exceed the
    /// [`max_wait`](Self::with_max_wait) or the tokens never come back.
    pub async fn reserve_n(&self, key: impl Into<Key>, n: u32) -> Result<Reservation, Error> {
        let key: Key = key.into();
        let decision = self.decide(key.clone(), n, self.max_wait).await?;
        if decision.is_admitted() {
            Ok(Reservation::new(self.clone(), key, decision))
        } else {
            Err(decision.refused())
        }
    }

    /// Waits for one token.
    ///
    /// # Errors
    ///
    /// As [`reserve_n`](Self::reserve_n).
    pub async fn wait(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.wait_n(key, 1).await
    }

    /// Waits for `n` tokens, first come, first served.
    ///
    /// # Errors
    ///
    /// As [`reserve_n`](Self::reserve_n), at once: nobody waits for what will be refused.
    pub async fn wait_n(&self, key: impl Into<Key>, n: u32) -> Result<Decision, Error> {
        let decision = self.counted(self.clone().acquire(key.into(), n).await)?;
        if decision.is_admitted() { Ok(decision) } else { Err(decision.refused()) }
    }

    /// Looks at a bucket and charges nothing.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn peek(&self, key: impl Into<Key>) -> Result<BucketState, Error> {
        self.look(key.into()).await
    }

    /// Charges `n` tokens whether or not they are there: a penalty, or a cost that is known only afterwards. The bucket may go
    /// into debt (of up to 35 years), which comes back like what was admitted; until then it admits nothing. Only the
    /// [quotas](Self::quotas) of this value are concerned.
    ///
    /// ```
    /// # use tower_distributed::{Quota, Store, TokenBucket};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "logins", Quota::per_minute(10))?;
    /// let state = bucket.charge("ann", 15).await?;
    /// assert_eq!(state.remaining(), 0);
    /// assert!(state.available_after(1).is_some_and(|after| after.as_secs() > 30), "five tokens of debt, and one");
    /// bucket.give_back("ann", 15).await?;
    /// assert!(bucket.allow_n("ann", 10).await?.is_admitted());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): then it may have been charged.
    pub async fn charge(&self, key: impl Into<Key>, n: u32) -> Result<BucketState, Error> {
        self.adjust(key.into(), n.into()).await
    }

    /// Gives `n` tokens, up to a full bucket: a reward, or what a request turned out not to cost.
    ///
    /// What is given comes on top of what [the algorithm](crate::token_bucket#the-algorithm) admits. To take back a reservation that has not
    /// acted, [cancel](Reservation::cancel) it.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable): then they may have been given.
    pub async fn give_back(&self, key: impl Into<Key>, n: u32) -> Result<BucketState, Error> {
        self.adjust(key.into(), -i64::from(n)).await
    }

    /// Fills a bucket and unblocks it.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        let key: Key = key.into();
        self.local.forget(&key);
        let reset = self.clients.reset.run(key.clone(), Reset).await;
        // Once more: some may have asked in between.
        self.local.forget(&key);
        reset
    }

    /// Lets nothing through for `duration`, in any process: the upstream said so. A longer block that
    /// stands is kept; the bucket goes on filling meanwhile.
    ///
    /// Requests that wait are let through after it at the usual pace; those whose turn would have come during the
    /// block line up again.
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable).
    pub async fn block_for(&self, key: impl Into<Key>, duration: Duration) -> Result<(), Error> {
        let key: Key = key.into();
        self.local.forget(&key);
        let blocked = self.clients.block.run(key.clone(), self.blocking(duration)).await;
        self.local.forget(&key);
        blocked
    }

    /// The quotas of calls through this value.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// The name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.clients.name
    }

    /// Where decisions are counted. Those of [`acquire`](Self::acquire) and [`at_once`](Self::at_once) are not yet.
    pub(crate) fn decisions(&self) -> &Decisions {
        &self.clients.decisions
    }

    fn counted(&self, decided: Result<Decision, Error>) -> Result<Decision, Error> {
        let outcome = |decision: Decision| {
            let outcome = Outcome::of(&decision);
            (decision, outcome)
        };
        self.decisions().settle(decided.map(outcome))
    }

    async fn adjust(&self, key: Key, tokens: i64) -> Result<BucketState, Error> {
        let adjust = Adjust { quotas: self.quotas.clone(), tokens };
        let adjusted = self.clients.adjust.run(key.clone(), adjust).await;
        if tokens < 0 {
            self.local.forget_refusal(&key, &self.quotas);
        }
        adjusted
    }

    /// Charges a key without anybody waiting for that.
    pub(crate) fn charge_detached(&self, key: Key, tokens: u32) {
        self.clients.adjust.detach(key, Adjust { quotas: self.quotas.clone(), tokens: tokens.into() });
    }

    fn look(&self, key: Key) -> OperationFuture<Peek> {
        self.clients.peek.run(key, Peek { quotas: self.quotas.clone() })
    }

    /// The same buckets with a `max_wait` that is shorter by what has been waited already.
    fn with_less_wait(&self, waited: Duration) -> Self {
        Self { max_wait: (self.max_wait - to_micros(waited)).max(0), ..self.clone() }
    }

    pub(crate) fn acquire(self, key: Key, cost: u32) -> Acquire {
        Acquire::new(self, key, cost)
    }

    /// The decision, where it takes neither a wait nor another process.
    pub(crate) fn at_once(
        &self,
        quotas: Option<&Quotas>,
        key: &Key,
        cost: u32,
    ) -> Option<Result<Decision, Error>> {
        let quotas = quotas.unwrap_or(&self.quotas);
        let ask = Ask { cost: cost.into(), wait: self.max_wait };
        if cost > quotas.max_cost() {
            return None;
        }
        if !self.clients.reserve.is_in_memory() {
            return self.local.known(quotas, key, ask).map(Ok);
        }
        if self.max_wait > 0 {
            return None;
        }
        self.clients.reserve.step(key, || Reserve { quotas: quotas.clone(), ask })
    }

    /// What this process knows of a request; `None`: nothing, and it is not to learn anything.
    fn answer(&self, key: &Key, ask: Ask) -> Option<Answer> {
        if self.local.is_off() || self.clients.reserve.is_in_memory() {
            return None;
        }
        Some(self.local.answer(self, &self.quotas, key, ask))
    }

    fn blocking(&self, duration: Duration) -> Block {
        Block { quotas: self.quotas.clone(), micros: to_micros(duration) }
    }

    /// Blocks a key without anybody waiting for that.
    pub(crate) fn block_detached(&self, key: Key, duration: Duration) {
        self.local.forget(&key);
        self.clients.block.detach(key, self.blocking(duration));
    }

    /// The buckets of the same name in another store.
    pub(crate) fn in_store(&self, store: &Store) -> Self {
        let name = self.name();
        Self {
            clients: Arc::new(Clients::new(store, name, &Namespace::open(store, name))),
            local: Local::default(),
            ..self.clone()
        }
    }

    /// Other buckets in the same store, whose name is this one's and an ending.
    pub(crate) fn beside(&self, ending: &str, quota: Quota) -> Result<Self, Error> {
        let (store, name) = (&self.clients.store, format!("{}{ending}", self.name()));
        let clients = Arc::new(Clients::new(store, &name, &Namespace::open(store, &name)));
        Ok(Self { clients, quotas: quota.try_into()?, max_wait: 0, local: Local::default() })
    }

    /// The same buckets, as they are asked together with others: nobody waits, and nothing is charged ahead.
    fn as_one_of_several(&self) -> Self {
        Self { max_wait: 0, local: self.local.clone().without_prefetch(), ..self.clone() }
    }

    /// Takes a token, which is no decision on a request.
    pub(crate) async fn count(&self, key: Key) -> Result<Decision, Error> {
        self.clients
            .reserve
            .run(key, Reserve { quotas: self.quotas.clone(), ask: Ask { cost: 1, wait: 0 } })
            .await
    }

    /// Does something with the buckets for which nobody waits, on the store's own thread; in memory it is done on return.
    pub(crate) fn detached(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self.clients.store.background() {
            Some(background) => background.spawn(task),
            None => task.now_or_never().unwrap_or_default(),
        }
    }

    /// These buckets with `max_wait` of `other` and a share of its quotas.
    pub(crate) fn standing_in_for(&self, other: &Self, parts: NonZeroU32) -> Self {
        Self { quotas: other.quotas.share(parts), max_wait: other.max_wait, ..self.clone() }
    }

    async fn decide(&self, key: Key, cost: u32, wait: i64) -> Result<Decision, Error> {
        if (1..=self.quotas.max_cost()).contains(&cost)
            && let Some(decision) = self.local.known(&self.quotas, &key, Ask { cost: cost.into(), wait })
        {
            // Whoever is always answered at once lets others run now and then.
            consume_budget().await;
            self.decisions().count(Outcome::of(&decision));
            return Ok(decision);
        }
        let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
        self.counted(Decide::new(self, key, cost, wait, waker).await)
    }

    fn cancel(&self, key: &Key, cancel: Cancel) -> OperationFuture<Cancel> {
        self.clients.cancel.run(key.clone(), self.returned(key, cancel))
    }

    fn cancel_detached(&self, key: &Key, cancel: Cancel) {
        self.clients.cancel.detach(key.clone(), self.returned(key, cancel));
    }

    /// Takes back an admission that led to nothing, which was asked for at `sent`, where it does not act and nobody waits.
    ///
    /// By the rule of [`GiveBack`], which must run once; where the client may repeat it, all of it if nothing has come after
    /// it, else nothing.
    fn take_back(&self, key: Key, decision: &Decision, sent: i64) {
        if self.clients.give_back.may_repeat() {
            return self.cancel_detached(&key, Cancel::safe_to_repeat(decision));
        }
        self.local.forget_refusal(&key, &self.quotas);
        let give_back = GiveBack {
            _returning: Some(Arc::new(self.clients.returning.begin(&key))),
            ..GiveBack::new(&decision.state, decision.cost, clock::micros() - sent)
        };
        self.clients.give_back.detach(key, give_back);
    }

    /// The same, noted here.
    fn returned(&self, key: &Key, cancel: Cancel) -> Cancel {
        self.local.forget_refusal(key, &self.quotas);
        Cancel { _returning: Some(Arc::new(self.clients.returning.begin(key))), ..cancel }
    }
}

impl Clients {
    fn new(store: &Store, name: &str, namespace: &Namespace<Bucket>) -> Self {
        Self {
            name: name.to_owned(),
            decisions: Decisions::new("token_bucket", name),
            reserve: namespace.client(),
            cancel: namespace.client(),
            adjust: namespace.client(),
            prefetch: namespace.client(),
            give_back: namespace.client(),
            peek: namespace.client(),
            block: namespace.client(),
            reset: namespace.client(),
            returning: Returning::default(),
            store: store.clone(),
            namespace: namespace.clone(),
        }
    }
}

/// Whole µs, rounded up, as far as the arithmetic goes.
fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(MAX_SPAN).min(MAX_SPAN)
}
