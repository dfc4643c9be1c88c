//! The layers that are held to the contract, and who else occupies their keys.

use tower::util::BoxCloneService;
use tower::{BoxError, Layer, ServiceExt as _};
use tower_distributed::dedupe::Claim;
use tower_distributed::rw_lock::RwLockWriteGuard;
use tower_distributed::{
    BudgetLayer, ConcurrencyLimitLayer, DedupeLayer, Error, Layered, MutexGuard, MutexLayer,
    Permit, Quota, RateLimitLayer, RefusalKind, RwLockLayer, SingleFlightLayer, Store, TokenBucket,
    TokenBuckets,
};

use crate::families::{locks, mutexes, permits};
use crate::flights::{build, builder, by_name, is_free};
use crate::items::{claim, dedupe, handled, is_handled};
use crate::stores::{HOUR, SOON, Stores, at_most};
use support::eventually;

/// The service around which a layer is, and the layer's own.
pub(crate) type Service = BoxCloneService<String, String, BoxError>;

pub(crate) fn boxed<S>(service: S) -> Service
where
    S: tower::Service<String, Response = String, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    BoxCloneService::new(service.map_err(Into::into))
}

/// What becomes of a key with its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Free,
    /// By somebody who will leave it.
    Occupied,
    /// For good.
    Spent,
}

/// A kind of layer, which lets through one request of `ann` at a time: that of `ann:7`, for example. What has no colon
/// has no key.
pub(crate) trait Subject {
    type Layer: Layer<Service, Service = Self::Around>
        + Layer<String, Service = Layered<String, Self::Layer>>
        + Clone;
    type Around: tower::Service<String, Response = String, Error = BoxError, Future: Send>
        + Clone
        + Send
        + 'static;

    /// The states of a key whose request was called and dropped, and answered.
    const CALLED: State;
    const ANSWERED: State;

    fn layer(store: &Store) -> Self::Layer;

    /// The layer's service around another.
    fn around<S>(layer: &Self::Layer, inner: S) -> Service
    where
        S: tower::Service<String, Response = String, Error: Into<BoxError>, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        // As it is: futures of combinators panic if they are polled again.
        BoxCloneService::new(layer.layer(boxed(inner)))
    }

    async fn state(stores: &Stores, key: &str) -> State;

    async fn becomes(stores: &Stores, key: &str, state: State) {
        let what = format!("{key} to be {state:?}");
        eventually(&what, SOON, async || {
            Self::state(stores, key).await == state
        })
        .await;
    }
}

/// A kind of layer that refuses requests of keys that are occupied, or has them wait.
pub(crate) trait Refusing: Subject {
    type Occupied;

    /// How requests of an occupied key are refused, and of one whose request was answered.
    const REFUSAL: RefusalKind;
    const AFTER_ANSWER: Option<RefusalKind>;

    /// Occupies a key, as another process does.
    async fn occupy(stores: &Stores, key: &str) -> Self::Occupied;

    async fn free(occupied: Self::Occupied);

    /// Lets requests wait for an hour.
    fn waiting(layer: Self::Layer) -> Self::Layer;
}

macro_rules! subjects {
    ($($subject:ident, $called:ident, $answered:ident: $layer:ty = |$store:ident| $build:expr;
       |$stores:ident, $key:ident| $state:expr;
       $(=> $refusal:ident, $after:expr, $occupied:ty:
           |$by:ident, $at:ident| $occupy:expr, |$left:pat_param| $leave:expr;)?)*) => {$(
        pub(crate) struct $subject;

        impl Subject for $subject {
            type Layer = $layer;
            type Around = Layered<Service, $layer>;
            const CALLED: State = State::$called;
            const ANSWERED: State = State::$answered;

            fn layer($store: &Store) -> $layer {
                $build
            }

            async fn state($stores: &Stores, $key: &str) -> State {
                $state
            }
        }

        $(impl Refusing for $subject {
            type Occupied = $occupied;
            const REFUSAL: RefusalKind = RefusalKind::$refusal;
            const AFTER_ANSWER: Option<RefusalKind> = $after;

            async fn occupy($by: &Stores, $at: &str) -> $occupied {
                $occupy
            }

            async fn free($left: $occupied) {
                $leave
            }

            fn waiting(layer: $layer) -> $layer {
                layer.max_wait(HOUR)
            }
        })?
    )*};
}

subjects! {
    RateLimit, Spent, Spent: RateLimitLayer<String, String> = |store| {
        RateLimitLayer::new(at_most(1, store), by_name)
    };
    |stores, key| state_of([at_most(1, &stores.open())], key).await;
    => RateLimited, Some(RefusalKind::RateLimited), (TokenBucket, String): |stores, key| empty(at_most(1, &stores.open()), key).await,
        |(bucket, key)| bucket.reset(key).await.unwrap();

    SeveralLimits, Spent, Spent: RateLimitLayer<String, String> = |store| {
        let limits = TokenBuckets::new([at_most(1, store), second(store)]).unwrap();
        RateLimitLayer::all_of(limits, (by_name, by_name))
    };
    |stores, key| state_of([at_most(1, &stores.open()), second(&stores.open())], key).await;
    => RateLimited, Some(RefusalKind::RateLimited), (TokenBucket, String): |stores, key| empty(second(&stores.open()), key).await,
        |(bucket, key)| bucket.reset(key).await.unwrap();

    ConcurrencyLimit, Free, Free: ConcurrencyLimitLayer<String> = |store| {
        ConcurrencyLimitLayer::new(permits(store, 1), by_name)
    };
    |stores, key| match granted(permits(&stores.open(), 1).try_add(key).await) {
        Some(permit) => is_released(permit.done().await),
        None => State::Occupied,
    };
    => NoPermit, None, Permit: |stores, key| permits(&stores.open(), 1).add(key).await.unwrap(),
        |permit| assert!(permit.done().await.unwrap());

    Mutex, Free, Free: MutexLayer<String> = |store| MutexLayer::new(mutexes(store), by_name);
    |stores, key| match granted(mutexes(&stores.open()).try_lock(key).await) {
        Some(guard) => is_released(guard.unlock().await),
        None => State::Occupied,
    };
    => Locked, None, MutexGuard: |stores, key| mutexes(&stores.open()).lock(key).await.unwrap(),
        |guard| assert!(guard.unlock().await.unwrap());

    RwLock, Free, Free: RwLockLayer<String> = |store| RwLockLayer::new(locks(store), by_name);
    |stores, key| match granted(locks(&stores.open()).try_write(key).await) {
        Some(guard) => is_released(guard.release().await),
        None => State::Occupied,
    };
    => Locked, None, RwLockWriteGuard: |stores, key| locks(&stores.open()).write(key).await.unwrap(),
        |guard| assert!(guard.release().await.unwrap());

    // What nobody counts costs the estimate, which is all there is.
    Budget, Spent, Spent: BudgetLayer<String> = |store| BudgetLayer::new(at_most(1, store), by_name, |_: &String| 1);
    |stores, key| state_of([at_most(1, &stores.open())], key).await;

    // Its keys are occupied by a claim, as long as an item is handled elsewhere.
    Dedupe, Free, Spent: DedupeLayer<String, String, BoxError> = |store| DedupeLayer::new(dedupe(store), by_name);
    |stores, key| match is_handled(stores, key).await {
        Some(false) => State::Free,
        Some(true) => State::Spent,
        None => State::Occupied,
    };
    => InFlight, Some(RefusalKind::Duplicate), Claim: |stores, key| claim(stores, key).await, |claim| assert!(claim.release().await.unwrap());

    // Its keys are occupied for good, by items that were handled.
    Duplicates, Free, Spent: DedupeLayer<String, String, BoxError> = |store| Dedupe::layer(store);
    |stores, key| Dedupe::state(stores, key).await;
    => Duplicate, Some(RefusalKind::Duplicate), (): |stores, key| handled(stores, key).await, |_nothing| ();

    SingleFlight, Free, Free: SingleFlightLayer<String, String, BoxError> = |store| {
        SingleFlightLayer::new(build(builder(), store), by_name)
    };
    |stores, key| if is_free(stores, key).await { State::Free } else { State::Occupied };
}

fn second(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "second", Quota::new(1, HOUR).burst(1)).unwrap()
}

async fn empty(bucket: TokenBucket, key: &str) -> (TokenBucket, String) {
    assert!(bucket.allow(key).await.unwrap().is_admitted());
    (bucket, key.to_owned())
}

/// Full buckets are free, and empty ones spent; some of each are neither.
async fn state_of<const N: usize>(buckets: [TokenBucket; N], key: &str) -> State {
    let mut full = 0;
    for bucket in buckets {
        let state = bucket.peek(key).await.unwrap();
        full += usize::try_from(state.remaining()).unwrap();
        assert!(
            state.available_after(1).is_none_or(|after| after <= HOUR),
            "charged twice"
        );
    }
    match full {
        0 => State::Spent,
        full if full == N => State::Free,
        _ => State::Occupied,
    }
}

fn granted<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome
        .map_err(|error| assert!(error.is_refused(), "{error}"))
        .ok()
}

fn is_released(outcome: Result<bool, Error>) -> State {
    assert!(outcome.unwrap());
    State::Free
}

/// Makes of an `async fn test<T: Subject>(stores: Stores)` a test for each of the subjects on each store.
macro_rules! on_subjects {
    (@one $test:ident [$($subject:ident)+]) => {
        #[allow(non_snake_case, reason = "the tests are named as their subjects")]
        mod $test {
            use $crate::contract::subjects;
            use $crate::stores::Stores;

            mod in_memory {
                $(#[tokio::test]
                async fn $subject() {
                    super::super::$test::<super::subjects::$subject>(super::Stores::in_memory()).await;
                })+
            }

            mod redis {
                $(#[tokio::test]
                async fn $subject() {
                    super::super::$test::<super::subjects::$subject>(super::Stores::redis().await).await;
                })+
            }
        }
    };
    (all: $($test:ident),+ $(,)?) => {
        on_subjects!(
            [RateLimit SeveralLimits Budget ConcurrencyLimit Mutex RwLock Dedupe SingleFlight]: $($test),+
        );
    };
    (refusing: $($test:ident),+ $(,)?) => {
        on_subjects!([RateLimit SeveralLimits ConcurrencyLimit Mutex RwLock Dedupe]: $($test),+);
    };
    (waiting: $($test:ident),+ $(,)?) => {
        on_subjects!([ConcurrencyLimit Mutex RwLock Dedupe]: $($test),+);
    };
    ($subjects:tt: $($test:ident),+ $(,)?) => {
        $(on_subjects!(@one $test $subjects);)+
    };
}
pub(crate) use on_subjects;

/// Calls a function for each of the subjects.
macro_rules! for_all_subjects {
    ($check:ident) => {{
        use $crate::contract::subjects::*;
        $check::<RateLimit>();
        $check::<SeveralLimits>();
        $check::<Budget>();
        $check::<ConcurrencyLimit>();
        $check::<Mutex>();
        $check::<RwLock>();
        $check::<Dedupe>();
        $check::<SingleFlight>();
    }};
}
pub(crate) use for_all_subjects;
