//! Quotas and tables of them that are changed for the whole fleet.

use crate::bucket::chosen::{ChosenQuotas, IntoQuotas as _, QuotaTable};
use crate::bucket::quotas::Quotas;
use crate::error::Error;
use crate::fleet::FleetSetting;
use crate::fleet::value::Sealed;
use crate::key::Key;
use crate::layers::rate_limit::quotas::{ChooseQuotas, Table};

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

/// Chooses the quotas that currently apply to the whole fleet.
impl<Req> ChooseQuotas<Req> for FleetSetting<Quotas> {
    fn quotas(&self, _: &Req) -> ChosenQuotas {
        self.current().into_quotas()
    }
}

impl Sealed for Quotas {
    const NAME: &'static str = "quotas";
    const PARTS: &'static [&'static str] = &["setting:quotas"];

    fn parse(text: &str) -> Result<Self, Error> {
        text.parse()
    }

    fn text(&self) -> Result<String, Error> {
        Ok(self.to_string())
    }
}

/// A table of quotas that is changed for the whole fleet, without a deployment. See [`fleet`](crate::fleet).
///
/// ```
/// use tower_distributed::fleet::FleetTable;
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// struct Call { route: &'static str, user: u64 }
///
/// let store = Store::in_memory();
/// let table = FleetTable::new(&store, "api", "/export = 10/h; 2/min\n/search = 20/s, burst 50")?;
/// let bucket = TokenBucket::new(&store, "api", Quota::per_second(100))?;
/// let layer = RateLimitLayer::new(bucket, |call: &Call| call.user).quota_table(table.clone(), |call: &Call| call.route);
///
/// table.set("/search = 5/s", "ann").await?; // `/export` has no row any more
/// assert_eq!(table.current().get("/search").map(|quotas| quotas.max_cost()), Some(5));
/// # let _: RateLimitLayer<_, ()> = layer;
/// # Ok(()) }
/// ```
pub type FleetTable = FleetSetting<QuotaTable>;

impl From<FleetTable> for Table {
    fn from(table: FleetTable) -> Self {
        Self::Current(Box::new(move || table.current()))
    }
}

/// Between the name and the quotas of a row.
const IS: &str = " = ";

impl Sealed for QuotaTable {
    const NAME: &'static str = "table";
    const PARTS: &'static [&'static str] = &["setting:table"];

    fn parse(text: &str) -> Result<Self, Error> {
        text.try_into()
    }

    fn text(&self) -> Result<String, Error> {
        let row = |(name, quotas): (&Key, &Quotas)| {
            let name = String::from_utf8_lossy(name.as_bytes());
            if name.contains(IS) || name.contains('\n') {
                let text = format!(
                    "the name of a row must have no line feed and no {IS:?} in a text, is {name:?}"
                );
                return Err(Error::invalid(text));
            }
            Ok(format!("{name}{IS}{quotas}"))
        };
        Ok(self
            .rows()
            .map(row)
            .collect::<Result<Vec<_>, _>>()?
            .join("\n"))
    }
}

/// Parses a table: a line for each row, such as `/search = 20/s, burst 50`. See [`Quotas`] for the syntax of quotas.
///
/// ```
/// use tower_distributed::QuotaTable;
///
/// let table = QuotaTable::try_from("/export = 10/h; 2/min\n/search = 20/s, burst 50")?;
/// assert_eq!(table.get("/export").map(|quotas| quotas.max_cost()), Some(2));
/// assert!(QuotaTable::try_from("/export: 10/h").unwrap_err().to_string().contains("/export: 10/h"));
/// # Ok::<(), tower_distributed::Error>(())
/// ```
impl TryFrom<&str> for QuotaTable {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        let row = |line| {
            str::split_once(line, IS).ok_or_else(|| {
                Error::invalid(format!(
                    "a row must be a name, {IS:?} and quotas, such as \"/search = 20/s\", is {line:?}"
                ))
            })
        };
        Self::new(text.lines().map(row).collect::<Result<Vec<_>, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::quota::Quota;

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let table = |rows: &[(&'static str, u32)]| {
            QuotaTable::new(
                rows.iter()
                    .map(|(name, rate)| (*name, Quota::per_second(*rate))),
            )
            .unwrap()
        };
        for rows in [&[][..], &[("/a", 2)], &[("", 4), ("/a", 2), ("b=c", 3)]] {
            let text = table(rows).text().unwrap();
            assert_eq!(text.lines().count(), rows.len());
            let read = <QuotaTable as Sealed>::parse(&text).unwrap();
            let read: Vec<_> = read
                .rows()
                .map(|(name, of)| (name.clone(), of.max_cost()))
                .collect();
            assert_eq!(
                read,
                rows.iter()
                    .map(|(name, rate)| (Key::from(*name), *rate))
                    .collect::<Vec<_>>()
            );
        }
        for name in ["a = b", "a\nb"] {
            let error = table(&[("/a", 2), (name, 1)]).text().unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains(&format!("{name:?}")),
                "{error}"
            );
        }
    }
}
