//! The error type of the crate: one opaque [`Error`]. `error/reasons.rs` has the causes, `error/predicates.rs` the
//! predicates for callers.

mod predicates;
pub(crate) mod reasons;

use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::reasons::{Busy, Cause, Outage, Upload};

/// The error of every operation in this crate. Its `is_…` methods return what kind of error it is.
///
/// A refusal and an outage are always distinct: [`is_refused`](Self::is_refused) means that the limit refused the call,
/// [`is_unavailable`](Self::is_unavailable) means that the store gave no usable reply. Cloning is cheap. The text and
/// the [`source`](StdError::source) are for people and may change in any release.
///
/// ```
/// use tower_distributed::{Error, Mutex, Store};
///
/// # async fn send_bill() {}
/// async fn bill(bills: &Mutex, user: &str) -> Result<&'static str, Error> {
///     match bills.try_lock(user).await {
///         Ok(lock) => lock.run(|_| send_bill()).await.map(|()| "billed"),
///         Err(error) if error.is_refused() => Ok("another process bills this user"),
///         Err(error) if error.is_unavailable() || error.is_overloaded() => Ok("later"),
///         Err(error) => Err(error),
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// let bills = Mutex::new(&Store::in_memory(), "bills")?;
/// assert_eq!(bill(&bills, "ann").await?, "billed");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Error(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    Invalid(String),
    /// The name of the extension's type.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    NoExtension(&'static str),
    BadRequest(String, Fault),
    LookUpFailed(Arc<dyn StdError + Send + Sync>),
    Refused(Refused),
    ExceedsBurst {
        cost: u32,
        burst: u32,
    },
    Busy(Busy),
    ExceedsLimit {
        weight: u32,
        limit: u32,
    },
    Lost,
    /// The text names the time limit that the body exceeded.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    BodyTimeout(&'static str),
    /// The text states whether the outcome is available.
    Duplicate(&'static str),
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Upload(Upload),
    Interrupted,
    /// The text names both versions.
    Conflict(String),
    Unavailable(Outage),
    /// The text names the bound that was reached.
    Overloaded(Cow<'static, str>),
}

/// The cause of a bad request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), allow(dead_code))]
enum Fault {
    /// Reported by a key extractor of the user. The text may be private.
    Told,
    /// Reported by this crate. Clients may see the text.
    Malformed,
    /// A part of the key is missing. Like `Malformed`, but [`or`](crate::extract::Extractor::or) tries another key.
    Missing,
}

/// A refusal by a limit.
#[derive(Debug)]
struct Refused {
    retry_after: Option<Duration>,
    /// Whether the limit is 0.
    is_closed: bool,
    /// The decision of the limit, in the limit's own type.
    decision: Box<dyn Any + Send + Sync>,
}

impl Error {
    /// An error for a request from which a [key extractor](crate::KeyExtractor) cannot get a key. It refuses the
    /// request as [`BadRequest`](crate::RefusalKind::BadRequest): 400 over HTTP, `INVALID_ARGUMENT` over gRPC.
    ///
    /// ```
    /// use tower_distributed::{Error, Key, Refusal, RefusalKind};
    ///
    /// fn tenant(path: &String) -> Result<Key, Error> {
    ///     path.split('/').nth(1).map(Key::from).ok_or_else(|| Error::bad_request("the path names no tenant"))
    /// }
    /// let error = tenant(&"x".to_owned()).unwrap_err();
    /// assert_eq!(Refusal::from(error).kind(), RefusalKind::BadRequest);
    /// ```
    pub fn bad_request(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Told)))
    }

    /// A bad request with a text that clients may see.
    #[cfg(feature = "http")]
    pub(crate) fn malformed(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Malformed)))
    }

    /// A request without a part of its key. The text names the part, never its value.
    #[cfg(feature = "http")]
    pub(crate) fn missing_part(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::BadRequest(text.into(), Fault::Missing)))
    }

    /// A request without an extension of this type: the layers are in the wrong order.
    #[cfg(feature = "http")]
    pub(crate) fn no_extension<T>() -> Self {
        Self(Arc::new(Kind::NoExtension(std::any::type_name::<T>())))
    }

    /// An error for a key that cannot be looked up now, for example in an outage of a database: see
    /// [`look_up`](crate::extract::look_up). Errors from a look-up of quotas become such an error. It refuses the
    /// request as [`LookUpFailed`](crate::RefusalKind::LookUpFailed): 503 over HTTP, `UNAVAILABLE` over gRPC. `cause`
    /// is its [`source`](StdError::source), and clients do not see it.
    ///
    /// ```
    /// use tower_distributed::{Error, Refusal, RefusalKind};
    ///
    /// let error = Error::look_up_failed("no connection to the database");
    /// assert_eq!(Refusal::from(error).kind(), RefusalKind::LookUpFailed);
    /// ```
    pub fn look_up_failed(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Arc::new(Kind::LookUpFailed(cause.into().into())))
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self(Arc::new(Kind::Invalid(text.into())))
    }

    /// `decision` is the decision of the limit that refused. `is_closed`: the limit is 0.
    pub(crate) fn refused_by<D: Any + Send + Sync>(
        decision: D,
        retry_after: Option<Duration>,
        is_closed: bool,
    ) -> Self {
        Self(Arc::new(Kind::Refused(Refused {
            retry_after,
            is_closed,
            decision: Box::new(decision),
        })))
    }

    pub(crate) fn exceeds_burst(cost: u32, burst: u32) -> Self {
        Self(Arc::new(Kind::ExceedsBurst { cost, burst }))
    }

    pub(crate) fn exceeds_limit(weight: u32, limit: u32) -> Self {
        Self(Arc::new(Kind::ExceedsLimit { weight, limit }))
    }

    pub(crate) fn lost() -> Self {
        Self(Arc::new(Kind::Lost))
    }

    /// The text names the time limit.
    #[cfg(feature = "http")]
    pub(crate) fn body_timeout(text: &'static str) -> Self {
        Self(Arc::new(Kind::BodyTimeout(text)))
    }

    pub(crate) fn duplicate() -> Self {
        Self::duplicate_as("already handled")
    }

    /// The text states whether the outcome is available.
    pub(crate) fn duplicate_as(text: &'static str) -> Self {
        Self(Arc::new(Kind::Duplicate(text)))
    }

    #[cfg(feature = "http")]
    pub(crate) fn upload(upload: Upload) -> Self {
        Self(Arc::new(Kind::Upload(upload)))
    }

    /// The text names both versions.
    pub(crate) fn conflict(text: String) -> Self {
        Self(Arc::new(Kind::Conflict(text)))
    }

    pub(crate) fn interrupted() -> Self {
        Self(Arc::new(Kind::Interrupted))
    }

    pub(crate) fn unavailable(cause: Cause, text: impl Into<Cow<'static, str>>) -> Self {
        Outage {
            cause,
            text: text.into(),
            source: None,
        }
        .into()
    }

    /// The text names the bound.
    pub(crate) fn overloaded(text: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Kind::Overloaded(text.into())))
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        Self(Arc::new(Kind::Busy(busy)))
    }
}

impl From<Outage> for Error {
    fn from(outage: Outage) -> Self {
        Self(Arc::new(Kind::Unavailable(outage)))
    }
}

/// Lets `TryInto<_, Error: Into<Error>>` bounds accept infallible conversions.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Invalid(text) | Kind::BadRequest(text, _) | Kind::Conflict(text) => {
                f.write_str(text)
            }
            Kind::NoExtension(name) => write!(
                f,
                "the request has no extension `{name}`: put the layer that inserts it outside of this one"
            ),
            Kind::LookUpFailed(cause) => {
                write!(
                    f,
                    "the key or the quotas of the request cannot be looked up: {cause}"
                )
            }
            Kind::Refused(refused) if refused.is_closed => {
                f.write_str("the limit is 0: it admits no request until it is changed")
            }
            Kind::Refused(refused) => match refused.retry_after {
                Some(after) => write!(f, "rate limit exceeded, retry in {after:?}"),
                None => f.write_str("quota used up"),
            },
            Kind::ExceedsBurst { cost, burst } => {
                write!(
                    f,
                    "a cost of {cost} can never be admitted by a burst of {burst}"
                )
            }
            Kind::Busy(busy) => busy.fmt(f),
            Kind::ExceedsLimit { weight, limit } => {
                write!(
                    f,
                    "a weight of {weight} can never be admitted by a limit of {limit}"
                )
            }
            Kind::Lost => f.write_str("the lease is not held: it has expired or was revoked"),
            Kind::BodyTimeout(text) => write!(f, "response body aborted: {text}"),
            Kind::Duplicate(text) => f.write_str(text),
            Kind::Upload(upload) => upload.fmt(f),
            Kind::Interrupted => f.write_str("closed while waiting"),
            Kind::Unavailable(outage) => write!(f, "store unavailable: {}", outage.text),
            Kind::Overloaded(text) => write!(f, "store overloaded: {text}"),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &*self.0 {
            Kind::LookUpFailed(cause) => Some(cause.as_ref()),
            Kind::Unavailable(Outage {
                source: Some(cause),
                ..
            }) => Some(cause.as_ref()),
            _ => None,
        }
    }
}
