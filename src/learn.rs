//! Limits that an upstream reports in its responses.

#[cfg(feature = "http")]
pub(crate) mod http;
pub(crate) mod plan;
pub(crate) mod step;
pub(crate) mod table;

use std::sync::Arc;
use std::time::Duration;

use crate::bucket::quota::is_quotable;
use crate::layers::rate_limit::hooks::Block;

pub(super) use self::plan::Planner;

/// The limits of an upstream that a response reports. [`response::UpstreamLimits`](crate::response::UpstreamLimits)
/// reads them from header fields.
///
/// ```
/// # #[cfg(feature = "http")] {
/// use http::{HeaderMap, StatusCode};
/// use tower_distributed::response::UpstreamLimits;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-policy", "\"default\";q=20;w=1".parse().unwrap());
/// headers.insert("ratelimit", "\"default\";r=7;t=1".parse().unwrap());
/// let learned = UpstreamLimits::default().read(StatusCode::OK, &headers);
/// assert_eq!((learned.limits().collect::<Vec<_>>(), learned.ignored()), (vec![("default", 20, Some(7))], 0));
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    pub(crate) policies: Vec<Policy>,
    /// How long no request for the key may be sent.
    pub(crate) retry_after: Option<Duration>,
    /// The number of fields or items that could not be parsed.
    pub(crate) ignored: u64,
    pub(crate) planner: Planner,
}

impl Learned {
    /// Returns the name, the limit and the remaining requests (if reported) of each policy that has a limit.
    pub fn limits(&self) -> impl Iterator<Item = (&str, u64, Option<u64>)> {
        self.policies.iter().filter_map(|policy| {
            Some((
                policy.name.as_deref().unwrap_or("default"),
                policy.limit?,
                policy.remaining,
            ))
        })
    }

    /// Returns how long the upstream asks clients to send no request. `None`: it does not ask.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the latest reset of the policies whose window may be longer than it seems.
    fn doubtful_reset(&self) -> Option<Duration> {
        self.policies
            .iter()
            .filter(|policy| policy.is_doubtful)
            .filter_map(|policy| policy.reset)
            .max()
    }

    pub(crate) fn block(&self) -> Block {
        Block {
            duration: self.retry_after,
            ignored: self.ignored,
        }
    }

    /// Returns the number of header fields or items of a field that were ignored, because they are malformed or out of
    /// range.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

/// One limit of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: Option<Arc<str>>,
    /// The number of units in a window.
    pub(crate) limit: Option<u64>,
    pub(crate) window: Option<Duration>,
    /// If the window is a guess: longer windows that are also possible.
    pub(crate) longer: &'static [Duration],
    pub(crate) remaining: Option<u64>,
    /// The time until the window ends, at the latest.
    pub(crate) reset: Option<Duration>,
    /// The unit that is counted: `requests`, `tokens`.
    pub(crate) unit: String,
    /// Whether the window may be longer: a longer window has the same reset near its end.
    pub(crate) is_doubtful: bool,
    /// The partition that the limit applies to.
    pub(crate) partition: Option<Vec<u8>>,
    /// Whether the upstream's limit is known to refill token by token. Then `reset` is the time until it is full.
    pub(crate) refills: bool,
}

/// Longer names are cut.
const LONGEST_NAME: usize = 32;

impl Policy {
    /// A policy without numbers. Characters that the name of a quota cannot have are omitted.
    pub(crate) fn named(name: impl AsRef<str>) -> Self {
        let fits = name.as_ref().chars().filter(|c| is_quotable(*c));
        let name: String = fits.take(LONGEST_NAME).collect();
        let name = name.trim();
        Self {
            name: (!name.is_empty()).then(|| name.into()),
            ..Self::default()
        }
    }
}

/// Reads the limits of an upstream from a response. Implemented by functions and closures from `&Res` to [`Learned`],
/// and by [`response::UpstreamLimits`](crate::response::UpstreamLimits).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read an upstream's limits from a `{Res}`",
    note = "pass `response::UpstreamLimits`, or a closure with a typed argument that returns `token_bucket::Learned`"
)]
pub trait LearnFromResponse<Res> {
    /// Returns the limits that the response reports.
    fn learn(&self, response: &Res) -> Learned;
}

impl<Res, F: Fn(&Res) -> Learned> LearnFromResponse<Res> for F {
    fn learn(&self, response: &Res) -> Learned {
        self(response)
    }
}
