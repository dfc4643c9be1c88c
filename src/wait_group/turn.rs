//! The order in which waiters are served: flows with fair shares, and classes.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use super::holders::{self, MOST_FLOWS};
use crate::lease::token::{Ending, Suffix};
use crate::setters::in_range;
use crate::{Error, Key};

/// How many classes there can be.
const MOST_CLASSES: u8 = holders::IDLE as u8;

/// The cost of a permit of weight 1 to a flow with share 1. A lower cost is possible for flows with a higher share.
const COST: u64 = 1024;

/// Where a call stands among the waiters for permits: its flow, the share of that, and its class.
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
    /// A hash of its flow.
    flow: Option<u64>,
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
    /// Flows are told apart by 22 bits of a hash of the key and the flow: of two flows, one in four million shares its
    /// place with the other.
    #[must_use]
    pub fn flow(self, flow: impl Into<Key>) -> Self {
        Self { flow: Some(hash(FNV_OFFSET, flow.into().as_bytes())), ..self }
    }

    /// Sets how many shares the flow gets, 1 to 1000. Default: 1.
    #[must_use]
    pub fn share(self, share: u32) -> Self {
        Self { share: Some(share), ..self }
    }

    /// Sets the class, of the number of [`priorities`](super::WaitGroupBuilder::priorities). 0 is the highest. Default: the
    /// lowest.
    #[must_use]
    pub fn class(self, class: u8) -> Self {
        Self { class: Some(class), ..self }
    }
}

/// How the waiters of a WaitGroup are ordered.
#[derive(Clone, Debug)]
pub(super) struct Queueing {
    /// Whether calls without a flow count as one flow.
    pub(super) fair: bool,
    pub(super) classes: u8,
    pub(super) aging: Duration,
    /// The last permits that only this class and those above it get.
    pub(super) reserved: Vec<(u8, u32)>,
    /// Whether calls that cannot be served in time are refused when they come.
    pub(super) early: bool,
    /// For how long a class must have had waiters, so that the newest of them is served first.
    pub(super) newest: Option<Duration>,
}

impl Default for Queueing {
    fn default() -> Self {
        let aging = Duration::from_secs(10);
        Self { fair: false, classes: 1, aging, reserved: Vec::new(), early: false, newest: None }
    }
}

impl Queueing {
    pub(super) fn check(&self, limit: u32) -> Result<(), Error> {
        in_range("the number of classes", 1..=MOST_CLASSES, "1 to 8", self.classes)?;
        let (shortest, longest) = (Duration::from_millis(1), Duration::from_secs(86_400));
        in_range("aging", shortest..=longest, "1 ms to 1 day", self.aging)?;
        in_range("the interval of newest first", shortest..=longest, "1 ms to 1 day", self.newest)?;
        self.check_flows(self.fair)?;
        for (class, permits) in &self.reserved {
            let classes = self.classes;
            in_range("the class of reserved permits", ..classes, format_args!("below {classes}"), *class)?;
            in_range(
                "the number of reserved permits",
                ..limit,
                format_args!("below the limit ({limit})"),
                *permits,
            )?;
        }
        Ok(())
    }

    /// Flows, if there are any, need the order of arrival within each.
    fn check_flows(&self, any: bool) -> Result<(), Error> {
        match self.newest {
            Some(after) if any => Err(Error::invalid(format!(
                "fair shares keep the order of arrival in each flow: newest_first_after ({after:?}) must not be set"
            ))),
            _ => Ok(()),
        }
    }

    /// The same for one of so many processes that share the limit.
    pub(super) fn share(&self, replicas: NonZeroU32) -> Self {
        let reserved = self.reserved.iter().map(|(class, permits)| (*class, *permits / replicas)).collect();
        Self { reserved, ..self.clone() }
    }

    /// Checks a turn. Returns its class, and how many permits it leaves to others.
    pub(super) fn class(&self, turn: Turn) -> Result<(u8, u32), Error> {
        in_range("the share of a flow", 1..=1000, "1 to 1000", turn.share)?;
        self.check_flows(turn.flow.is_some())?;
        let classes = self.classes;
        in_range("the class", ..classes, format_args!("below {classes}"), turn.class)?;
        let class = turn.class.unwrap_or(classes.saturating_sub(1));
        let above = self.reserved.iter().filter(|(other, _)| *other < class);
        Ok((class, above.map(|(_, permits)| *permits).max().unwrap_or(0)))
    }

    /// Returns the suffix of a token: its weight, its limit, and its place among the waiters.
    pub(super) fn suffix(&self, key: &Key, turn: Turn, n: u32, limit: u32) -> Suffix {
        let plain = Ending::Permit { weight: n, limit }.into();
        if !self.fair && self.classes == 1 && turn.flow.is_none() && self.newest.is_none() {
            return plain;
        }
        let mut suffix = format!("{plain}/");
        let mut written = Ok(());
        if self.fair || turn.flow.is_some() {
            let flow = mix(hash(turn.flow.unwrap_or(0), key.as_bytes())) % MOST_FLOWS as u64;
            let cost = (u64::from(n) * COST / u64::from(turn.share.unwrap_or(1))).max(1);
            written = write!(suffix, "{flow:x}.{cost:x}.");
        } else {
            suffix.push_str("..");
        }
        if self.classes > 1 {
            written = written.and_then(|()| write!(suffix, "{:x}", self.aging.as_micros()));
        }
        if let Some(after) = self.newest {
            written = written.and_then(|()| write!(suffix, ".{:x}", after.as_micros()));
        }
        debug_assert!(written.is_ok(), "memory takes any text");
        suffix.into()
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: all processes must know the same flows.
fn hash(from: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(from, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The end of MurmurHash3: each bit depends on all others.
fn mix(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ (hash >> 33)).wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_says_flow_cost_and_aging() {
        let (key, plain) = (Key::from("k"), Queueing::default());
        let suffix = |queueing: &Queueing, key: &Key, turn, n| queueing.suffix(key, turn, n, 16).to_string();
        assert_eq!(suffix(&plain, &key, Turn::new(), 2), "/2/16");
        let classes = Queueing { classes: 3, aging: Duration::from_secs(1), ..Queueing::default() };
        assert_eq!(suffix(&classes, &key, Turn::new(), 1), "/1/16/..f4240");
        let fair = suffix(&classes, &key, Turn::of("acme").share(4), 2);
        let order = fair.strip_prefix("/2/16/").unwrap();
        assert!(order.ends_with(".200.f4240"), "{order}");
        assert_ne!(order, suffix(&classes, &key, Turn::of("initech").share(4), 2).split_at(6).1);
        assert_ne!(fair, suffix(&classes, &Key::from("l"), Turn::of("acme").share(4), 2));
        let newest = Some(Duration::from_millis(100));
        let newest_first = Queueing { newest, ..Queueing::default() };
        assert_eq!(suffix(&newest_first, &key, Turn::new(), 2), "/2/16/...186a0");
        assert_eq!(suffix(&Queueing { newest, ..classes }, &key, Turn::new(), 1), "/1/16/..f4240.186a0");
    }

    /// By the numbers that the authors of both functions give.
    #[test]
    fn flows_have_the_same_numbers_in_all_processes() {
        assert_eq!(hash(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(mix(1), 0xb456_bcfc_34c2_cb2c);
    }

    #[test]
    fn the_last_permits_are_kept_for_the_classes_above() {
        let queueing = Queueing { classes: 4, reserved: vec![(0, 2), (1, 5)], ..Queueing::default() };
        let left = |class| queueing.class(Turn::new().class(class)).map(|(_, reserved)| reserved).ok();
        assert_eq!([0, 1, 2, 3, 4].map(left), [Some(0), Some(2), Some(5), Some(5), None]);
        assert_eq!(queueing.class(Turn::new()).unwrap(), (3, 5));
    }
}
