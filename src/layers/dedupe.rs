//! The layer that handles each item once, see the public module [`dedupe`](crate::dedupe#the-layer): its settings, and
//! how it treats items that are new, known or handled.

pub(crate) mod go_on;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use derive_where::derive_where;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tower::Service;

use crate::dedupe::Dedupe;
use crate::dedupe::claim::{Claim, ClaimAnswer};
use crate::dedupe::claims::HandledBy;
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::{Extracted, KeyExtractor};
use crate::layers::lease::{Acquire, Acquired, Acquiring, LeaseLayer, Waiting, acquire};
use crate::layers::refusal::{AsError, Reject, refused};
use crate::layers::{Answer, Called, Choose, Finish, NextState, Policy, Stages, State};
use crate::lease::handle::LeaseHandle;
use crate::lease::watch::Watch;
use crate::macros::setters;
use crate::store::failure::{StoreFailure, StoreFailurePolicy};
use crate::telemetry::Outcome;
use crate::telemetry::counters::Decisions;

/// A [`Layer`](tower_layer::Layer) that handles each item once across all processes. See the
/// [module](crate::dedupe#the-layer) for details.
///
/// `Req`, `Res` and `E` are the types of the requests, responses and errors of the inner service. `R` turns
/// [refusals](Self::reject_with) into errors or responses.
///
/// ```
/// use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::dedupe::{DuplicateAction, Unsure};
/// use tower_distributed::{Dedupe, DedupeLayer, LeaseHandle, Refusal, Store, StoreFailure};
///
/// struct Order { id: u64, claim: Option<LeaseHandle> }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let week = Duration::from_secs(7 * 86_400);
/// let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(week).build()?;
/// let once = DedupeLayer::new(orders, |order: &Order| order.id)
///     .success(|status: &Result<u16, std::io::Error>| matches!(status, Ok(200..300)))
///     .on_duplicate(|_, _| DuplicateAction::Answer(208))
///     .max_wait(Duration::from_secs(5)) // while the same order is handled elsewhere
///     .on_lease(|claim: &LeaseHandle, order: &mut Order| order.claim = Some(claim.clone()))
///     .cancel_when_lost(true)
///     .on_unsure(|unsure: &Unsure| eprintln!("order {:?} may be handled twice", unsure.key))
///     .on_store_failure(StoreFailure::FailClosed)
///     .reject_with(|_: Refusal| 503);
/// let mut place = once.layer(service_fn(async |order: Order| {
///     Ok::<u16, std::io::Error>(if order.claim.is_some() { 201 } else { 500 })
/// }));
///
/// assert_eq!(place.ready().await?.call(Order { id: 7, claim: None }).await?, 201);
/// assert_eq!(place.ready().await?.call(Order { id: 7, claim: None }).await?, 208);
/// # Ok(()) }
/// ```
pub type DedupeLayer<Req, Res, E, R = AsError> = LeaseLayer<Req, RequestClaims<Req, Res, E>, R>;

/// The claims on the items of the requests of a [`DedupeLayer`].
#[derive_where(Clone)]
pub struct RequestClaims<Req, Res, E> {
    source: Source,
    success: Choose<Result<Res, E>, bool>,
    on_duplicate: Arc<dyn Fn(Req, Evidence) -> DuplicateAction<Req, Res> + Send + Sync>,
    /// `None`: duplicates are not verified.
    confirm_duplicate: Option<Confirm<Req>>,
    on_unsure: OnUnsure,
}

type Confirm<Req> = Arc<dyn Fn(&Req) -> BoxFuture<'static, bool> + Send + Sync>;

type OnUnsure = Option<Arc<dyn Fn(&Unsure) + Send + Sync>>;

/// An item that was handled and may be handled twice.
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsure {
    /// The key of the request.
    pub key: Key,
    /// Why the store could not record that the item was handled. The confirmation is retried until the claim
    /// expires.
    ///
    /// `None` if the item was recorded but the claim was lost. Then another caller may have handled the item too.
    /// The item is a duplicate from now on.
    pub error: Option<Error>,
}

impl<Req, Res, E> DedupeLayer<Req, Res, E> {
    /// Creates a layer that handles each item once. The request's key is the item.
    #[must_use]
    pub fn new(dedupe: Dedupe, key: impl KeyExtractor<Req> + Send + Sync + 'static) -> Self {
        let claims = RequestClaims {
            source: Source {
                dedupe,
                away: StoreFailurePolicy::FailClosed,
            },
            success: Arc::new(|outcome| outcome.is_ok()),
            on_duplicate: Arc::new(|_, _| DuplicateAction::Refuse),
            confirm_duplicate: None,
            on_unsure: None,
        };
        Self::of(claims, key)
    }
}

setters! { DedupeLayer<Req, Res, E, R>:
    /// Sets which outcomes mean that the item was handled, by a closure of `&Result<Res, E>`.
    ///
    /// Default: every response, and no error. For HTTP there is `web::is_handled`.
    #[must_use]
    fn success(success: impl Fn(&Result<Res, E>) -> bool + Send + Sync + 'static)
        => provide.success = Arc::new(success);

    /// Sets what to do with duplicates, by a closure from the request and the [`Evidence`] to a [`DuplicateAction`]:
    /// refuse it, answer it, or pass it to the inner service. Default: duplicates are refused, except for
    /// `web::dedupe`.
    ///
    /// ```
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    /// use tower_distributed::dedupe::DuplicateAction;
    /// use tower_distributed::{Dedupe, DedupeLayer, Store};
    ///
    /// struct Event { id: u64, is_repeated: bool }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let day = std::time::Duration::from_secs(86_400);
    /// let events = Dedupe::exact(&Store::in_memory(), "events").remember_for(day).build()?;
    /// let mark = DedupeLayer::new(events, |event: &Event| event.id)
    ///     .on_duplicate(|event, _| DuplicateAction::Pass(Event { is_repeated: true, ..event }));
    /// let mut handle = mark.layer(service_fn(async |event: Event| Ok::<_, std::io::Error>(event.is_repeated)));
    ///
    /// assert!(!handle.ready().await?.call(Event { id: 1, is_repeated: false }).await?);
    /// assert!(handle.ready().await?.call(Event { id: 1, is_repeated: false }).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// For HTTP, `web::mark_duplicate` adds an extension:
    ///
    /// ```
    /// use axum::{Extension, Router, routing::post};
    /// use tower_distributed::{Dedupe, Store, extract, web};
    ///
    /// /// Answers a repeated message without doing the work again.
    /// async fn webhook(duplicate: Option<Extension<web::Duplicate>>) -> &'static str {
    ///     if duplicate.is_some() { "handled before" } else { "handled" }
    /// }
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let week = std::time::Duration::from_secs(7 * 86_400);
    /// let webhooks = Dedupe::exact(&Store::in_memory(), "webhooks").remember_for(week).build()?;
    /// let once = web::dedupe(webhooks, extract::header("webhook-id")?).on_duplicate(web::mark_duplicate);
    /// let app: Router = Router::new().route("/webhook", post(webhook)).layer(once);
    /// # Ok(()) }
    /// ```
    #[must_use]
    fn on_duplicate(on_duplicate: impl Fn(Req, Evidence) -> DuplicateAction<Req, Res> + Send + Sync + 'static)
        => provide.on_duplicate = Arc::new(on_duplicate);

    /// Calls a closure for each item that was handled and may be handled twice. Default: none is called.
    #[must_use]
    fn on_unsure(told: impl Fn(&Unsure) + Send + Sync + 'static) => provide.on_unsure = Some(Arc::new(told));
}

impl<Req, Res, E, R> DedupeLayer<Req, Res, E, R> {
    /// Verifies each duplicate against your own record, by a closure from `&Req` to a future of `bool`.
    ///
    /// The future must not borrow from the request. If it returns `false`, the layer claims the item and calls the
    /// closure again. If it still returns `false`, the request is handled. Default: duplicates are not verified.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Store};
    ///
    /// async fn was_handled(_id: u64) -> bool {
    ///     false // looked up in your database
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
    /// let filter = BloomFilter::builder().capacity(1_000_000).false_positive_rate(1e-6);
    /// let filter = filter.remember_for(std::time::Duration::from_secs(86_400)).build(&Store::in_memory(), "orders")?;
    /// let once = DedupeLayer::new(Dedupe::new(&filter)?, |id: &u64| *id)
    ///     .confirm_duplicate(|id: &u64| was_handled(*id));
    /// let place = once.layer(service_fn(async |_: u64| Ok::<_, std::io::Error>("placed")));
    ///
    /// assert_eq!(place.clone().oneshot(7).await?, "placed");
    /// assert_eq!(place.oneshot(7).await?, "placed", "the database has no such order, so the filter is not believed");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn confirm_duplicate<Fut>(
        mut self,
        confirm: impl Fn(&Req) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.provide.confirm_duplicate = Some(Arc::new(move |request| Box::pin(confirm(request))));
        self
    }

    /// Sets what to do while the store is unavailable. Default: [`StoreFailure::FailClosed`].
    ///
    /// With [`StoreFailure::LocalShare`], this process claims and remembers items in its own memory, with the settings
    /// of the `Dedupe`. A filter is allocated there when it is first used in an outage.
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: StoreFailure) -> Self {
        let Source { dedupe, away } = &mut self.provide.source;
        *away = StoreFailurePolicy::new(on_store_failure, |_| dedupe.local_share());
        self
    }
}

/// How the layer knows that a request is a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evidence {
    /// Only the filter reports it. This is wrong at the filter's [false-positive
    /// rate](crate::bloom_filter::BloomFilterBuilder::false_positive_rate).
    Filter,
    /// [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate) or [exact mode](crate::Dedupe::exact) confirms it.
    LookedUp,
}

/// The action for a duplicate, which the closure of [`on_duplicate`](crate::DedupeLayer::on_duplicate) returns.
#[derive(Debug)]
pub enum DuplicateAction<Req, Res> {
    /// Refuse the request.
    Refuse,
    /// Pass the request to the inner service.
    Pass(Req),
    /// Return this response.
    Answer(Res),
}

/// The source of claims.
#[derive(Clone, Debug)]
struct Source {
    dedupe: Dedupe,
    away: StoreFailurePolicy<Dedupe>,
}

/// Whether to claim an item that the store reports as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Insists {
    No,
    /// If the filter is above its capacity.
    IfFull,
    /// `confirm_duplicate` answered that it is not a duplicate.
    LookedUp,
}

/// The result of a claim attempt for an item.
#[derive(Debug)]
pub struct Item {
    key: Key,
    claim: Option<Claim>,
    verdict: Verdict,
}

/// Whether an item must be handled.
#[derive(Debug)]
enum Verdict {
    /// The item is claimed.
    New(Outcome),
    /// The store reports it as known. It is verified if the layer has `confirm_duplicate`.
    Reported(HandledBy),
    Duplicate(Evidence),
}

impl Acquire for Source {
    type Asked = Insists;
    type Granted = Item;

    fn decisions(&self) -> &Decisions {
        self.dedupe.decisions()
    }

    fn is_in_memory(&self) -> bool {
        self.dedupe.is_in_memory()
    }

    async fn acquire(
        &self,
        key: Key,
        insists: Insists,
        max_wait: Option<Duration>,
    ) -> Acquired<Item> {
        let item = key.as_bytes();
        let mut is_full = false;
        let (claim, verdict) = loop {
            let claim = |dedupe: Dedupe| async move {
                dedupe
                    .look(item, max_wait, is_full || insists == Insists::LookedUp)
                    .await
            };
            let asked = claim(self.dedupe.clone()).await;
            let settled = self.away.settle(asked, |local, _| claim(local)).await;
            let (looked, outcome) =
                settled.inspect_err(|error| self.decisions().count(Outcome::of_error(error)))?;
            break match (looked, insists) {
                (None, _) => {
                    self.decisions().count(outcome);
                    return Ok(None);
                }
                // The claim with `bypass` had to wait, so the filter was read again.
                (Some(ClaimAnswer::HandledBy(known)), Insists::IfFull)
                    if is_full || known == HandledBy::ByFullFilter =>
                {
                    is_full = true;
                    continue;
                }
                (Some(ClaimAnswer::HandledBy(known)), _) => (None, Verdict::Reported(known)),
                // Another caller may have handled the item since it was verified.
                (Some(ClaimAnswer::New(claim)), Insists::LookedUp) => {
                    (Some(claim), Verdict::Reported(HandledBy::ByFilter))
                }
                (Some(ClaimAnswer::New(claim)), _) if is_full && outcome == Outcome::Admitted => {
                    (Some(claim), Verdict::New(Outcome::FilterFull))
                }
                (Some(ClaimAnswer::New(claim)), _) => (Some(claim), Verdict::New(outcome)),
            };
        };
        Ok(Some(Item {
            key,
            claim,
            verdict,
        }))
    }
}

impl Source {
    /// Claims an item that the store reports as known, unless `is_duplicate` answers that it was handled.
    async fn verify(
        self,
        key: Key,
        claim: Option<Claim>,
        is_duplicate: BoxFuture<'static, bool>,
        max_wait: Option<Duration>,
    ) -> Acquired<Item> {
        let (claim, verdict) = match (is_duplicate.await, claim) {
            // If there is a claim, another caller handled the item between the two calls of `confirm_duplicate`.
            (true, _) => (None, Verdict::Duplicate(Evidence::LookedUp)),
            (false, None) => return self.acquire(key, Insists::LookedUp, max_wait).await,
            (false, claim) => (claim, Verdict::New(Outcome::Admitted)),
        };
        Ok(Some(Item {
            key,
            claim,
            verdict,
        }))
    }
}

/// The next step for a request whose item was looked up.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is returned"
)]
enum Next<Req, Res> {
    /// Call the inner service. `None`: without a claim.
    Handle(Option<Handling>, Req),
    /// Look the item up again.
    Acquire(BoxFuture<'static, Acquired<Item>>, Req),
    Answer(Res),
    Refuse(Error),
}

/// A claim under which a request is handled.
struct Handling {
    claim: Claim,
    key: Key,
    /// Watches the claim, if its loss ends the request.
    watched: Option<LeaseHandle>,
}

impl<Req, Res, E, R> DedupeLayer<Req, Res, E, R> {
    fn acquire(&self, key: Extracted) -> Acquiring<Item> {
        let claims = &self.provide;
        let insists = if claims.confirm_duplicate.is_some() {
            Insists::No
        } else {
            Insists::IfFull
        };
        acquire(&claims.source, key, insists, self.max_wait)
    }

    /// Decides what to do with a request whose item was looked up.
    fn next(&self, acquired: Acquired<Item>, request: Req) -> Next<Req, Res> {
        let claims = &self.provide;
        let Item {
            key,
            claim,
            verdict,
        } = match acquired {
            Ok(Some(item)) => item,
            Ok(None) => return Next::Handle(None, request),
            Err(error) => return Next::Refuse(error),
        };
        let evidence = match (verdict, &claims.confirm_duplicate) {
            (Verdict::New(outcome), _) => {
                claims.source.decisions().count(outcome);
                return self.handle(claim, key, request);
            }
            (Verdict::Reported(_), Some(confirm)) => {
                let is_duplicate = confirm(&request);
                let source = claims.source.clone();
                let verified = source.verify(key, claim, is_duplicate, self.max_wait);
                return Next::Acquire(Box::pin(verified), request);
            }
            (Verdict::Reported(HandledBy::Exactly), None) => Evidence::LookedUp,
            (Verdict::Reported(_), None) => Evidence::Filter,
            (Verdict::Duplicate(evidence), _) => evidence,
        };
        let action = (claims.on_duplicate)(request, evidence);
        claims.source.decisions().count(match action {
            DuplicateAction::Pass(_) => Outcome::Admitted,
            DuplicateAction::Answer(_) | DuplicateAction::Refuse => Outcome::Refused,
        });
        match action {
            DuplicateAction::Pass(request) => Next::Handle(None, request),
            DuplicateAction::Answer(response) => Next::Answer(response),
            DuplicateAction::Refuse => Next::Refuse(Error::duplicate()),
        }
    }

    /// Handles a new item, under its claim if it has one.
    fn handle(&self, claim: Option<Claim>, key: Key, mut request: Req) -> Next<Req, Res> {
        let handling = claim.map(|claim| {
            let handle = claim.handle();
            for hook in &self.on_lease {
                hook.on_lease(&handle, &mut request);
            }
            Handling {
                claim,
                key,
                watched: self.cancel_when_lost.then_some(handle),
            }
        });
        Next::Handle(handling, request)
    }

    /// Confirms or releases a claim. Returns the future of it, unless it is done at once.
    fn settle(
        &self,
        claim: Claim,
        key: Key,
        outcome: &Result<Res, E>,
    ) -> Option<BoxFuture<'static, ()>> {
        let claims = &self.provide;
        let success = (claims.success)(outcome);
        let settling = settle(claim, key, success, claims.on_unsure.clone());
        if !claims.source.is_in_memory() {
            return Some(Box::pin(settling));
        }
        let settled = settling.now_or_never();
        debug_assert!(settled.is_some(), "in memory it is done at once");
        None
    }
}

/// The claim of a request while the inner service handles it. `None`: the request passed without a claim.
pub struct Held<L> {
    claim: Option<(Claim, Key)>,
    watch: Watch,
    layer: Arc<L>,
}

debug!(Held<L>, claim);

// `Req2` is `Req`, see `Stages`.
impl<Req, Req2, Res, E, R> Stages for LeaseLayer<Req, RequestClaims<Req2, Res, E>, R> {
    type Waiting = Waiting<Item>;
    type Held = Held<Self>;
}

impl<S, Req, R> Policy<S, Req> for DedupeLayer<Req, S::Response, S::Error, R>
where
    S: Service<Req> + Clone,
    R: Reject<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = R::Error;

    fn inner_error(error: S::Error) -> R::Error {
        R::inner_error(error)
    }

    fn begin(self: &Arc<Self>, inner: &mut S, request: Req) -> NextState<Self, S, Req> {
        match self.key.extract(&request) {
            Extracted::Ready(Ok(None)) => State::calling(inner, request, Held::of(self, None)),
            key => State::waiting(self, Waiting::Key(Some(key)), inner, request),
        }
    }

    fn poll_waiting(
        self: &Arc<Self>,
        waiting: &mut Waiting<Item>,
        call: &mut Option<(S, Req)>,
        context: &mut Context<'_>,
    ) -> Poll<NextState<Self, S, Req>> {
        loop {
            let (acquired, is_fresh) = ready!(waiting.poll(|key| self.acquire(key), context));
            let Some((mut inner, request)) = call.take() else {
                return Poll::Pending;
            };
            return Poll::Ready(match self.next(acquired, request) {
                Next::Handle(handling, request) => {
                    let mut held = Held::of(self, handling);
                    held.watch = held.watch.fresh(is_fresh);
                    State::calling(&mut inner, request, held)
                }
                Next::Acquire(acquiring, request) => {
                    *waiting = Waiting::Lease(acquiring);
                    *call = Some((inner, request));
                    continue;
                }
                Next::Answer(response) => State::answered(Ok(response)),
                Next::Refuse(error) => State::answered(refused(&self.reject, error)),
            });
        }
    }

    fn poll_call(
        held: &mut Self::Held,
        future: Pin<&mut S::Future>,
        context: &mut Context<'_>,
    ) -> Poll<Called<Self, S, Req>> {
        let called = ready!(held.watch.poll(future, context));
        Poll::Ready(called.map_err(|lost| refused(&held.layer.reject, lost)))
    }

    fn finish(
        held: Self::Held,
        outcome: Result<S::Response, S::Error>,
    ) -> Finish<Answer<Self, S, Req>> {
        let work = held
            .claim
            .and_then(|(claim, key)| held.layer.settle(claim, key, &outcome));
        let answer = outcome.map_err(R::inner_error);
        match work {
            Some(work) => Finish::After(work, answer),
            None => Finish::Now(answer),
        }
    }
}

impl<L> Held<L> {
    fn of(layer: &Arc<L>, handling: Option<Handling>) -> Self {
        let (claim, watched) = match handling {
            Some(Handling {
                claim,
                key,
                watched,
            }) => (Some((claim, key)), watched),
            None => (None, None),
        };
        Self {
            claim,
            watch: Watch::new(watched),
            layer: Arc::clone(layer),
        }
    }
}

/// Confirms the claim after a success, otherwise releases it.
async fn settle(claim: Claim, key: Key, success: bool, on_unsure: OnUnsure) {
    if !success {
        // If the release fails, it is retried in the background, or the claim expires.
        let _ = claim.release().await;
        return;
    }
    let report = move |outcome: &Result<bool, Error>| {
        let error = match outcome {
            Ok(true) => return,
            Ok(false) => None,
            Err(error) => Some(error.clone()),
        };
        if let Some(hook) = on_unsure {
            hook(&Unsure { key, error });
        }
    };
    // `report` has handled the result.
    let _ = claim.confirm_and(report).await;
}

debug!(RequestClaims<Req, Res, E>, source.dedupe);
