//! Limits that are changed for the whole fleet.

use crate::error::Error;
use crate::fleet::FleetSetting;
use crate::fleet::value::{Hook, Sealed};
use crate::lease::settings::FleetSet;
use crate::store::Store;

/// The limit of a [`WaitGroup`](crate::WaitGroup), changed for the whole fleet without a deployment. See
/// [`fleet`](crate::fleet).
///
/// Once a version is set, it is the limit of the `WaitGroup` of the same name in the same store. It replaces the limit
/// of the `WaitGroup` and [adaptive](crate::ConcurrencyLimitLayer::adaptive) limits. A limit that is
/// [chosen](crate::ConcurrencyLimitLayer::limit) for a request applies if it is lower. The limit is read at each grant,
/// so it also applies to waiting callers. A process without a handle follows it while callers of a process with a
/// handle wait for the same key.
///
/// A process follows the limit as long as it has a handle. If the first version is [undone](FleetLimit::undo), callers
/// that are already waiting keep its limit: set the intended limit before.
///
/// If the limit is lowered, holders keep their permits. New permits are granted when fewer permits than the limit are
/// held. A caller whose weight is above a lowered limit acquires its permit when no other is held. With a limit of 0,
/// no permit is granted, and all callers are refused, including waiting ones.
///
/// ```
/// use tower_distributed::{Store, WaitGroup};
/// use tower_distributed::fleet::FleetLimit;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limit = FleetLimit::new(&store, "exports", 1_u32)?;
/// let exports = WaitGroup::new(&store, "exports", limit.current())?;
///
/// let held = exports.add("acme").await?;
/// limit.set(2_u32, "ann").await?;
/// let second = exports.try_add("acme").await?;
///
/// limit.set(0_u32, "ann").await?; // the exports have to stop
/// let error = exports.add("acme").await.unwrap_err();
/// assert!(error.is_refused() && error.to_string() == "no permit: the limit is 0");
/// # drop((held, second));
/// # Ok(()) }
/// ```
pub type FleetLimit = FleetSetting<u32>;

impl Sealed for u32 {
    const NAME: &'static str = "limit";
    const PARTS: &'static [&'static str] = &["setting:limit"];

    fn hook(store: &Store, name: &str) -> Option<Hook<Self>> {
        let fleet = FleetSet::of(store, name);
        Some(Box::new(move |version, limit| {
            fleet.set(
                i64::try_from(version).unwrap_or(i64::MAX),
                limit.map(i64::from),
            );
        }))
    }

    fn parse(text: &str) -> Result<Self, Error> {
        text.parse()
            .map_err(|_| Error::invalid(format!("a limit must be a whole number, is {text:?}")))
    }

    fn text(&self) -> Result<String, Error> {
        Ok(self.to_string())
    }
}
