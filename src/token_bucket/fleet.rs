//! Quotas that are changed for the whole fleet.

use crate::fleet::{FleetSetting, Sealed};
use crate::{Error, Quotas};

/// Quotas that are changed for the whole fleet, without a deployment. See [`fleet`](crate::fleet).
///
/// ```
/// use tower::{Layer, Service, ServiceExt, service_fn};
/// use tower_distributed::{FleetQuotas, RateLimitLayer, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
/// let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
/// let quotas = FleetQuotas::new(&store, "mail", "1/min")?;
/// let bucket = TokenBucket::new(&store, "mail", quotas.current())?;
/// let limit = RateLimitLayer::new(bucket, |_: &&'static str| "all").quotas(quotas.clone());
/// let mut send = limit.layer(service_fn(async |_: &'static str| Ok::<_, std::io::Error>("sent")));
///
/// assert_eq!(send.ready().await?.call("one").await?, "sent");
/// assert!(send.ready().await?.call("two").await.is_err());
/// quotas.set("100/min", "ann").await?; // in any process
/// assert_eq!(send.ready().await?.call("three").await?, "sent");
/// # Ok(()) }
/// ```
pub type FleetQuotas = FleetSetting<Quotas>;

impl Sealed for Quotas {
    const NAME: &'static str = "quotas";
    const PARTS: &'static [&'static str] = &["setting:quotas"];

    fn parse(text: &str) -> Result<Self, Error> {
        text.parse()
    }

    fn text(&self) -> String {
        self.to_string()
    }
}
