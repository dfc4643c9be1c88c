//! The hooks of a rate limit layer, and the blocks that responses request.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use derive_where::derive_where;

use crate::bucket::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::layers::key::Cost;
use crate::learn::LearnFromResponse;
use crate::macros::in_range;

/// Reads from a response how long to block its key. Implemented by functions and closures from `&Res` to an
/// `Option<Duration>` or a [`Block`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not read how long to wait from a `{Res}`",
    note = "pass a closure with a typed argument that returns `Option<Duration>`, or `response::RetryAfter`"
)]
pub trait BlockOnResponse<Res> {
    /// Returns the block that the response requests.
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

/// How long a response requests its key to be blocked.
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
    /// The default maximum for a time to wait that a response requests.
    pub(crate) const LONGEST: Duration = Duration::from_secs(300);

    /// Checks that a maximum is in its range.
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
/// A hook that writes header fields. The flag is whether the requests of the layer cost different numbers of tokens.
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
    /// Whether a hook reads how a request was admitted.
    pub(super) fn read_decisions(&self) -> bool {
        self.fields.is_some()
            || !self.on_admit.is_empty()
            || !self.on_response.is_empty()
            || !self.cost_of_response.is_empty()
            || self.read_blocks()
    }

    /// Whether a response can block its key, or teaches the limits of an upstream.
    pub(super) fn read_blocks(&self) -> bool {
        self.learn.is_some() || !self.block_on_response.is_empty()
    }
}
