//! The hooks of a layer.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;

use super::settings::RateLimitLayer;
use crate::fleet::RefusedKeys;
use crate::middleware::Cost;
use crate::setters::in_range;
use crate::token_bucket::Decision;
use crate::token_bucket::learn::LearnFromResponse;
use crate::{Error, Key};

/// Reads from a response how long to block its key. Implemented by functions and closures from `&Res` to an
/// `Option<Duration>` or a [`Block`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read how long to wait from a `{Res}`",
    note = "pass a closure with a typed argument that returns `Option<Duration>`, or `response::RetryAfter`"
)]
pub trait BlockOnResponse<Res> {
    /// Returns what the response asks for.
    fn block_on_response(&self, response: &Res) -> Block;
}

impl<Res, F, B> BlockOnResponse<Res> for F
where
    F: Fn(&Res) -> B,
    B: Into<Block>,
{
    fn block_on_response(&self, response: &Res) -> Block {
        self(response).into()
    }
}

/// How long a response asks to block its key.
///
/// ```
/// use std::time::Duration;
/// use tower_distributed::token_bucket::Block;
///
/// let block = Block::from(Some(Duration::from_secs(30)));
/// assert_eq!((block.duration(), block.ignored()), (Some(Duration::from_secs(30)), 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub(crate) duration: Option<Duration>,
    pub(crate) ignored: u64,
}

impl Block {
    /// The longest time that is believed by default.
    pub(crate) const LONGEST: Duration = Duration::from_secs(300);

    /// Checks the longest time that is believed.
    pub(crate) fn longest(longest: Duration) -> Result<Duration, Error> {
        const RANGE: RangeInclusive<Duration> =
            Duration::from_secs(1)..=Duration::from_secs(366 * 86_400);
        in_range(
            "the longest time that an upstream can stop its clients",
            RANGE,
            "1 s to 366 days",
            longest,
        )?;
        Ok(longest)
    }

    /// Returns the duration of the block. `None`: no block.
    #[must_use]
    pub fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// Returns how many values of the response were ignored, because they cannot be read. They are counted in the event
    /// `upstream_field_ignored`.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

impl From<Option<Duration>> for Block {
    fn from(duration: Option<Duration>) -> Self {
        Self {
            duration,
            ignored: 0,
        }
    }
}

type OnAdmit<Req> = Arc<dyn Fn(&Decision, &mut Req) + Send + Sync>;
type OnRefused<Req> = Arc<dyn Fn(&Req, &Key, &Decision) + Send + Sync>;
type OnResponse<Res> = Arc<dyn Fn(&Decision, &mut Res) + Send + Sync>;
/// Also gets whether the requests of the layer cost different numbers of tokens.
type Fields<Res> = Arc<dyn Fn(&Decision, bool, &mut Res) + Send + Sync>;

/// The hooks of a layer. Hooks of one kind are called in the order in which they were set.
#[derive_where(Clone, Default)]
pub(super) struct Hooks<Req, Res> {
    /// Called first, and for refused requests as well.
    pub(super) fields: Option<Fields<Res>>,
    pub(super) on_admit: Vec<OnAdmit<Req>>,
    pub(super) on_refused: Vec<OnRefused<Req>>,
    pub(super) on_response: Vec<OnResponse<Res>>,
    pub(super) block_on_response: Vec<Arc<dyn BlockOnResponse<Res> + Send + Sync>>,
    pub(super) learn: Option<Arc<dyn LearnFromResponse<Res> + Send + Sync>>,
    pub(super) cost_of_response: Vec<Arc<dyn Cost<Res> + Send + Sync>>,
}

impl<Req, Res> Hooks<Req, Res> {
    /// Whether no hook reads how a request was admitted.
    pub(super) fn are_unread(&self) -> bool {
        self.fields.is_none()
            && self.on_admit.is_empty()
            && self.on_response.is_empty()
            && self.block_on_response.is_empty()
            && self.learn.is_none()
            && self.cost_of_response.is_empty()
    }
}

impl<Req, Res, R> RateLimitLayer<Req, Res, R> {
    /// Adds a hook for admitted requests: a closure of `(&Decision, &mut Req)`. It can count requests, or put the
    /// decision where the inner service finds it. For HTTP, use `web::insert_decision`.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::token_bucket::Decision;
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Call { user: u64, left: Option<u32> }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "calls", Quota::per_minute(10))?;
    /// let limit = RateLimitLayer::new(bucket, |call: &Call| call.user)
    ///     .on_admit(|decision: &Decision, call: &mut Call| call.left = Some(decision.remaining()));
    /// let handle = limit.layer(service_fn(async |call: Call| Ok::<_, std::io::Error>(call.left)));
    /// assert_eq!(handle.oneshot(Call { user: 7, left: None }).await?, Some(9));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_admit(
        mut self,
        on_admit: impl Fn(&Decision, &mut Req) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_admit.push(Arc::new(on_admit));
        self
    }

    /// Adds a hook for refused requests: a closure of `(&Req, &Key, &Decision)`. It can log requests, or count
    /// them. It is not called for refusals without a decision, as in an outage.
    #[must_use]
    pub fn on_refused(
        mut self,
        on_refused: impl Fn(&Req, &Key, &Decision) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_refused.push(Arc::new(on_refused));
        self
    }

    /// Counts which keys are refused most. With [several limits](Self::all_of), the key of the limit that refused is counted.
    /// See [`RefusedKeys`].
    #[must_use]
    pub fn count_refused(self, refused: &RefusedKeys) -> Self {
        let refused = refused.clone();
        self.on_refused(move |_, key, _| refused.record(key))
    }

    /// Sets the hook that writes the fields of admitted and refused responses.
    #[cfg(feature = "http")]
    pub(crate) fn with_fields(
        mut self,
        fields: impl Fn(&Decision, bool, &mut Res) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.fields = Some(Arc::new(fields));
        self
    }

    /// Adds a hook for the responses to admitted requests: a closure of `(&Decision, &mut Res)`. The decision
    /// has the [key](Decision::key). For the RateLimit fields of HTTP, use `fields`.
    #[must_use]
    pub fn on_response(
        mut self,
        on_response: impl Fn(&Decision, &mut Res) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.on_response.push(Arc::new(on_response));
        self
    }

    /// Reads from the inner service's responses how long to block their key, by a closure from `&Res` to
    /// `Option<Duration>`.
    ///
    /// If one process gets a 429 from the upstream, all processes stop. For HTTP, use `response::RetryAfter`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// struct Reply { status: u16, retry_after: u64 }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
    /// let limit = RateLimitLayer::new(bucket, |host: &&'static str| *host)
    ///     .block_on_response(|reply: &Reply| (reply.status == 429).then(|| Duration::from_secs(reply.retry_after)));
    /// let upstream = async |_: &'static str| Ok::<_, std::io::Error>(Reply { status: 429, retry_after: 60 });
    /// let mut call = limit.layer(service_fn(upstream));
    ///
    /// assert_eq!(call.ready().await?.call("example.com").await?.status, 429);
    /// assert!(call.ready().await?.call("example.com").await.is_err(), "refused here, for 60 s");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn block_on_response(
        mut self,
        block: impl BlockOnResponse<Res> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.block_on_response.push(Arc::new(block));
        self
    }

    /// Learns the limit of an upstream from its responses, around a client. For HTTP, use `response::UpstreamLimits`. The last
    /// call replaces those before.
    ///
    /// * A policy that the upstream tells becomes the quota of the key, in all processes. It replaces the quotas of the bucket
    ///   and those of [`quotas`](Self::quotas). Until one is told, these apply. It is stored beside the bucket and forgotten
    ///   7 days after the last request. Other processes use it after their next response, or within 2 s.
    /// * If less remains at the upstream than the bucket has left, the bucket is charged the difference. Nothing is given
    ///   back, so requests in flight stay charged.
    /// * A response that asks to wait blocks the key, as [`block_on_response`](Self::block_on_response).
    ///
    /// Responses may arrive in any order. A response to a request that was charged before another does not undo
    /// what was learned from the other. Responses to requests that were decided with
    /// [prefetched](crate::TokenBucket::prefetch) tokens do not lower the level. The configured quotas apply to a request that
    /// costs more than the learned quotas can ever admit. With
    /// [several limits](Self::all_of), the quotas of the first limit are learned. A policy with a partition key (`pk`) is
    /// taken as the policy of the request's key.
    ///
    /// What is learned is sent in the background, only if it is new, and one call per key at a time. The first request of a
    /// process for a key waits for a call that reads what others learned; in an outage, the configured quotas apply.
    ///
    /// ```
    /// # #[cfg(feature = "http")] {
    /// use http::{Request, Response};
    /// use tower_distributed::response::UpstreamLimits;
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let guess = Quota::per_second(10);
    /// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", guess)?;
    /// let per_host = RateLimitLayer::new(bucket, |request: &Request<String>| request.uri().host().map(str::to_owned))
    ///     .learn(UpstreamLimits::default());
    /// # let _: RateLimitLayer<_, Response<String>> = per_host;
    /// # Ok(()) }
    /// # main().unwrap();
    /// # }
    /// ```
    #[must_use]
    pub fn learn(mut self, limits: impl LearnFromResponse<Res> + Send + Sync + 'static) -> Self {
        self.hooks.learn = Some(Arc::new(limits));
        self.settings.limiter = self.settings.limiter.learning();
        self
    }

    /// Charges the additional cost of a request after its response, by a closure from `&Res` to `u32`: for example,
    /// the rows that a query returned, or the tokens of a language model. It is charged in addition to the
    /// [`cost`](Self::cost).
    ///
    /// The bucket may go into [debt](crate::TokenBucket::charge). It admits nothing until the debt is paid by the
    /// tokens that come back. The charge is made in the background; if the store is unavailable, it is lost. A request
    /// that passed without a decision is charged nothing. Let each request [cost](Self::cost) at least one token,
    /// because a request that costs 0 is never refused.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let bucket = TokenBucket::new(&Store::in_memory(), "rows", Quota::per_minute(1000))?;
    /// let layer = RateLimitLayer::new(bucket, |_: &&str| "ann").cost_of_response(|rows: &Vec<u32>| rows.len() as u32);
    /// let mut query = layer.layer(service_fn(async |_: &str| Ok::<_, std::io::Error>(vec![7; 5000])));
    ///
    /// assert_eq!(query.ready().await?.call("all").await?.len(), 5000);
    /// assert!(query.ready().await?.call("all").await.is_err(), "4001 tokens of debt");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn cost_of_response(mut self, cost: impl Cost<Res> + Send + Sync + 'static) -> Self {
        self.hooks.cost_of_response.push(Arc::new(cost));
        self
    }
}
