//! The order in which waiters are served: flows with fair shares, and classes.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::key::Key;
use crate::lease::options::micros;
use crate::lease::settings::Rules;
use crate::lease::token::{Ending, Suffix};
use crate::macros::in_range;
use crate::wait_group::permits;

/// The maximum number of classes.
const MOST_CLASSES: u8 = permits::IDLE as u8;

/// The rank of the lowest class, and of callers without a class.
const LOWEST: i64 = permits::IDLE - 1;

/// The place of a call among the waiters for permits: its flow, the share of the flow, and its class.
///
/// ```
/// use tower_distributed::wait_group::Turn;
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let model = WaitGroup::builder(16).fair().priorities(2).build(&Store::in_memory(), "model")?;
///
/// let acme = model.with_turn(Turn::of("acme"))?;            // an equal share of the lowest class
/// let premium = model.with_turn(Turn::of("initech").share(3))?; // three times the share of acme
/// let interactive = model.with_turn(Turn::of("acme").class(0))?; // before all calls of class 1
/// for caller in [acme, premium, interactive] {
///     assert!(caller.add("gpu").await?.done().await?);
/// }
///
/// assert!(model.with_turn(Turn::new().class(2)).unwrap_err().is_invalid()); // the classes are 0 and 1
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// A digest of its flow.
    flow: Option<u128>,
    share: Option<u32>,
    class: Option<u8>,
}

impl Turn {
    /// A turn without a flow, in the lowest class.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A turn of a flow, such as a tenant or a user.
    #[must_use]
    pub fn of(flow: impl Into<Key>) -> Self {
        Self::new().flow(flow)
    }

    /// Sets the flow, such as a tenant or a user. The flows of a key that have waiters get equal shares of the permits.
    ///
    /// Flows are distinguished by 128 bits of the SHA-256 of their names, so a caller cannot choose a name that
    /// shares the queue of another flow.
    #[must_use]
    pub fn flow(self, flow: impl Into<Key>) -> Self {
        Self {
            flow: Some(digest(flow.into().as_bytes())),
            ..self
        }
    }

    /// Sets how many shares the flow gets, 1 to 1000. Default: 1.
    #[must_use]
    pub fn share(self, share: u32) -> Self {
        Self {
            share: Some(share),
            ..self
        }
    }

    /// Sets the class: 0, the highest, up to the number of [`priorities`](super::WaitGroupBuilder::priorities) minus
    /// one. Default: the lowest.
    #[must_use]
    pub fn class(self, class: u8) -> Self {
        Self {
            class: Some(class),
            ..self
        }
    }
}

/// How the waiters of a WaitGroup are ordered.
#[derive(Clone, Debug)]
pub(super) struct Queueing {
    /// Whether calls without a flow count as one flow.
    pub(super) fair: bool,
    pub(super) classes: u8,
    pub(super) aging: Duration,
    /// The number of last permits that only this class and higher classes can acquire.
    pub(super) reserved: Vec<(u8, u32)>,
    /// Whether calls that cannot be served in time are refused immediately.
    pub(super) early: bool,
    /// How long there must have been waiters before the newest is served first.
    pub(super) newest: Option<Duration>,
}

impl Default for Queueing {
    fn default() -> Self {
        let aging = Duration::from_secs(10);
        Self {
            fair: false,
            classes: 1,
            aging,
            reserved: Vec::new(),
            early: false,
            newest: None,
        }
    }
}

impl Queueing {
    pub(super) fn check(&self, limit: u32) -> Result<(), Error> {
        in_range(
            "the number of classes",
            1..=MOST_CLASSES,
            "1 to 8",
            self.classes,
        )?;
        let shortest = Duration::from_millis(1);
        let longest = Duration::from_secs(86_400);
        in_range("aging", shortest..=longest, "1 ms to 1 day", self.aging)?;
        in_range(
            "the interval of newest first",
            shortest..=longest,
            "1 ms to 1 day",
            self.newest,
        )?;
        self.check_flows(self.fair)?;
        for (class, permits) in &self.reserved {
            let classes = self.classes;
            in_range(
                "the class of reserved permits",
                ..classes,
                format_args!("below {classes}"),
                *class,
            )?;
            in_range(
                "the number of reserved permits",
                ..limit,
                format_args!("below the limit ({limit})"),
                *permits,
            )?;
        }
        Ok(())
    }

    /// If there are flows, each needs the order of arrival.
    fn check_flows(&self, any: bool) -> Result<(), Error> {
        match self.newest {
            Some(after) if any => Err(Error::invalid(format!(
                "fair shares keep the order of arrival in each flow: newest_first_after ({after:?}) must not be set"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the share of one of `replicas` processes that share the limit.
    pub(super) fn share(&self, replicas: NonZeroU32) -> Self {
        let reserved = self
            .reserved
            .iter()
            .map(|(class, permits)| (*class, *permits / replicas))
            .collect();
        Self {
            reserved,
            ..self.clone()
        }
    }

    /// The rank of a class. The lowest class has the same rank for any number of classes.
    fn rank(&self, class: u8) -> i64 {
        if class + 1 < self.classes {
            class.into()
        } else {
            LOWEST
        }
    }

    /// How many permits a rank leaves to higher classes.
    fn reserved(&self, rank: i64) -> u32 {
        let above = self
            .reserved
            .iter()
            .filter(|(class, _)| self.rank(*class) < rank);
        above.map(|(_, permits)| *permits).max().unwrap_or(0)
    }

    /// The settings that apply to all waiters of a key, as of now.
    pub(super) fn rules(&self) -> Arc<Rules> {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let mut reserved = [0; MOST_CLASSES as usize];
        for (rank, permits) in (0..).zip(&mut reserved) {
            *permits = self.reserved(rank).into();
        }
        let aging = if self.classes > 1 {
            micros(self.aging)
        } else {
            0
        };
        Arc::new(Rules {
            version: micros(since),
            aging,
            newest: self.newest.map_or(0, micros),
            reserved,
        })
    }

    /// Checks a turn. Returns its rank, and how many permits it leaves to higher classes.
    pub(super) fn class(&self, turn: Turn) -> Result<(i64, u32), Error> {
        if turn.flow.is_some() || turn.share.is_some() {
            in_range("the share of a flow", 1..=1000, "1 to 1000", turn.share)?;
            self.check_flows(turn.flow.is_some())?;
        }
        let mut rank = LOWEST;
        if let Some(class) = turn.class {
            let classes = self.classes;
            in_range(
                "the class",
                ..classes,
                format_args!("below {classes}"),
                class,
            )?;
            rank = self.rank(class);
        }
        Ok((rank, self.reserved(rank)))
    }

    /// Returns the suffix of a token: its weight, its limit, its flow, how many permits are missing in the limit
    /// because they are reserved, and the limit that was chosen for it alone.
    pub(super) fn suffix(
        &self,
        turn: Turn,
        n: u32,
        limit: u32,
        reserve: u32,
        chosen: Option<u32>,
    ) -> Suffix {
        let plain = Suffix::Ending(Ending::Permit { weight: n, limit });
        let flow = turn.flow.or(self.fair.then_some(0));
        if flow.is_none() && reserve == 0 && chosen.is_none() {
            return plain;
        }
        let mut suffix = format!("{plain}/");
        let mut written = match flow {
            Some(flow) => write!(suffix, "{flow:x}.{:x}.", turn.share.unwrap_or(1)),
            None => write!(suffix, ".."),
        };
        if reserve > 0 {
            written = written.and_then(|()| write!(suffix, "{reserve:x}"));
        }
        suffix.push('.');
        if let Some(chosen) = chosen {
            written = written.and_then(|()| write!(suffix, "{chosen:x}"));
        }
        debug_assert!(written.is_ok(), "memory takes any text");
        suffix.into()
    }
}

/// All processes must compute the same digest, and it must be infeasible to find a second name with the same digest.
fn digest(name: &[u8]) -> u128 {
    let digest = Sha256::digest(name);
    digest
        .iter()
        .take(16)
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_says_flow_share_reserve_and_bound() {
        let plain = Queueing::default();
        let suffix = |queueing: &Queueing, turn, n, reserve, bound| {
            queueing.suffix(turn, n, 16, reserve, bound).to_string()
        };
        assert_eq!(suffix(&plain, Turn::new(), 2, 0, None), "/2/16");
        assert_eq!(suffix(&plain, Turn::new(), 2, 10, None), "/2/16/..a.");
        assert_eq!(suffix(&plain, Turn::new(), 1, 0, Some(26)), "/1/16/...1a");
        // printf acme | sha256sum
        let acme = "822b33ad87c148a0a20a5ba7cd5ebcaa";
        assert_eq!(
            suffix(&plain, Turn::of("acme").share(20), 1, 0, None),
            format!("/1/16/{acme}.14..")
        );
        let fair = Queueing {
            fair: true,
            ..Queueing::default()
        };
        assert_eq!(suffix(&fair, Turn::new(), 1, 0, None), "/1/16/0.1..");
        assert_eq!(
            suffix(&fair, Turn::of("acme"), 1, 1, Some(2)),
            format!("/1/16/{acme}.1.1.2")
        );
    }

    #[test]
    fn the_last_permits_are_kept_for_the_classes_above() {
        let queueing = Queueing {
            classes: 4,
            reserved: vec![(0, 2), (1, 5)],
            ..Queueing::default()
        };
        let left = |class| queueing.class(Turn::new().class(class)).ok();
        assert_eq!(
            [0, 1, 2, 3, 4].map(left),
            [Some((0, 0)), Some((1, 2)), Some((2, 5)), Some((7, 5)), None]
        );
        assert_eq!(queueing.class(Turn::new()).unwrap(), (7, 5));
        assert_eq!(queueing.rules().reserved, [0, 2, 5, 5, 5, 5, 5, 5]);
    }
}
