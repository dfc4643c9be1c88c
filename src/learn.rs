//! Limits that an upstream tells in its responses.

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

/// What a response says of an upstream's limit. [`response::UpstreamLimits`](crate::response::UpstreamLimits) reads it
/// from header fields.
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
    /// How long not to send any request for the key.
    pub(crate) retry_after: Option<Duration>,
    /// How many fields or items could not be read.
    pub(crate) ignored: u64,
    pub(crate) planner: Planner,
}

impl Learned {
    /// Returns the name, the limit and the remaining requests, if told, of each policy that has a limit.
    pub fn limits(&self) -> impl Iterator<Item = (&str, u64, Option<u64>)> {
        self.policies.iter().filter_map(|policy| {
            Some((
                policy.name.as_deref().unwrap_or("default"),
                policy.limit?,
                policy.remaining,
            ))
        })
    }

    /// Returns how long the upstream asks not to send any request. `None`: it does not.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The latest reset of those that may be of a longer window than they seem.
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

    /// Returns how many header fields or items of a field were ignored, because they are broken or out of range.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

/// One limit of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Policy {
    pub(crate) name: Option<Arc<str>>,
    /// How many units in a window.
    pub(crate) limit: Option<u64>,
    pub(crate) window: Option<Duration>,
    /// If the window is a guess: longer ones that it may have as well.
    pub(crate) longer: &'static [Duration],
    pub(crate) remaining: Option<u64>,
    /// When the window ends, at the latest.
    pub(crate) reset: Option<Duration>,
    /// What is counted: `requests`, `tokens`.
    pub(crate) unit: String,
    /// Whether the window may be longer, because each window has such a reset at its end.
    pub(crate) is_doubtful: bool,
    /// Whose limit it is.
    pub(crate) partition: Option<Vec<u8>>,
    /// Whether the upstream's limit is known to refill token by token. Then `reset` says when it is full.
    pub(crate) refills: bool,
}

/// Longer names are cut.
const LONGEST_NAME: usize = 32;

impl Policy {
    /// A policy without numbers. A name that a quota cannot have is left out.
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

/// Reads from a response what it says of the upstream's limit. Implemented by functions and closures from `&Res` to
/// [`Learned`], and by [`response::UpstreamLimits`](crate::response::UpstreamLimits).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read an upstream's limits from a `{Res}`",
    note = "pass `response::UpstreamLimits`, or a closure with a typed argument that returns `token_bucket::Learned`"
)]
pub trait LearnFromResponse<Res> {
    /// Returns what the response says.
    fn learn(&self, response: &Res) -> Learned;
}

impl<Res, F: Fn(&Res) -> Learned> LearnFromResponse<Res> for F {
    fn learn(&self, response: &Res) -> Learned {
        self(response)
    }
}
