//! Limits that are changed for the whole fleet.

use super::builder::check_limit;
use crate::Error;
use crate::fleet::{FleetSetting, Sealed};

/// The limit of a [`WaitGroup`](crate::WaitGroup), changed for the whole fleet without a deployment. See
/// [`fleet`](crate::fleet).
///
/// A lower limit takes no permit from its holder. New permits are granted when those held are fewer than the limit.
///
/// ```
/// use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};
/// use tower_distributed::wait_group::FleetLimit;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let store = Store::in_memory();
/// let limit = FleetLimit::new(&store, "exports", 1_u32)?;
/// let exports = WaitGroup::new(&store, "exports", limit.current())?;
///
/// let held = exports.add("acme").await?;
/// limit.set(2_u32, "ann").await?;
/// let second = exports.with_limit(limit.current())?.try_add("acme").await?;
///
/// let layer = ConcurrencyLimitLayer::new(exports, |request: &String| request.clone())
///     .limit(move |_: &String| Some(limit.current()));
/// # let _: ConcurrencyLimitLayer<_> = layer;
/// # drop((held, second));
/// # Ok(()) }
/// ```
pub type FleetLimit = FleetSetting<u32>;

impl Sealed for u32 {
    const NAME: &'static str = "limit";
    const PARTS: &'static [&'static str] = &["setting:limit"];

    fn parse(text: &str) -> Result<Self, Error> {
        let limit = text
            .parse()
            .map_err(|_| Error::invalid(format!("a limit must be a whole number, is {text:?}")))?;
        check_limit(limit)
    }

    fn text(&self) -> Result<String, Error> {
        Ok(self.to_string())
    }
}
