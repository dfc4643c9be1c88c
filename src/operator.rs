//! Looks into a store, and changes single states: [`Operator`], for support tools and admin pages.
//!
//! An operator lists what is stored, shows the state of an entry, and can reset a bucket, revoke a lease and forget an
//! answer. It knows neither the quotas nor the limits of the services, since these are stored with the states.
//!
//! ```
//! use tower_distributed::operator::{Operator, State};
//! use tower_distributed::{Mutex, Quota, Store, TokenBucket};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory();
//! TokenBucket::new(&store, "api", Quota::per_minute(10))?.allow_n("ann", 3).await?;
//! let guard = Mutex::new(&store, "reports")?.lock("2026-11").await?;
//!
//! let operator = Operator::new(&store);
//! let mut scan = operator.scan();
//! while let Some(page) = scan.next().await? {
//!     for entry in page {
//!         match operator.inspect(&entry).await? {
//!             Some(State::Bucket(bucket)) => {
//!                 assert_eq!((entry.to_string(), bucket.remaining()), ("token_bucket api ann".into(), 7));
//!                 operator.reset(&entry).await?;
//!             }
//!             Some(State::Leases(leases)) => {
//!                 let holder = &leases.holders()[0];
//!                 assert_eq!((entry.namespace(), holder.fence()), ("reports", Some(guard.fence())));
//!                 assert!(operator.revoke(&entry, holder).await?);
//!             }
//!             Some(other) => println!("{entry}: {other:?}"),
//!             None => {} // it has ended meanwhile
//!         }
//!     }
//! }
//! assert!(operator.scan().next().await?.is_none());
//! # Ok(()) }
//! ```
//!
//! An answer of a single flight:
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed::operator::{Entry, Kind, Operator, State};
//! use tower_distributed::single_flight::Postcard;
//! use tower_distributed::{SingleFlight, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory();
//! let prices = SingleFlight::builder(Postcard).ttl(Duration::from_secs(60)).build(&store, "prices")?;
//! let price: u64 = prices.run("book-7", || async { 1990 }).await?;
//!
//! let (operator, entry) = (Operator::new(&store), Entry::new(Kind::SingleFlight, "prices", "book-7")?);
//! let Some(State::Flight(flight)) = operator.inspect(&entry).await? else { panic!("the answer is stored") };
//! let answer = flight.answer().expect("the run has ended");
//! assert!(flight.runs().is_free() && answer.fresh_for() > Duration::from_secs(50) && answer.bytes() > 0);
//! assert!(operator.forget(&entry).await?);
//! assert!(operator.inspect(&entry).await?.is_none());
//! # Ok(()) }
//! ```
//!
//! A Bloom filter:
//!
//! ```
//! use tower_distributed::operator::{Entry, Kind, Operator, State};
//! use tower_distributed::{BloomFilter, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory();
//! let urls = BloomFilter::new(&store, "urls", 1000, 0.01)?;
//! urls.insert_all((0..500_u32).map(u32::to_be_bytes)).await?;
//!
//! let operator = Operator::new(&store);
//! let Some(page) = operator.scan_namespace("urls")?.next().await? else { panic!("the filter is stored") };
//! let Some(State::Filter(filter)) = operator.inspect(&page[0]).await? else { panic!("it is a filter") };
//! assert_eq!((filter.bits(), filter.hashes(), filter.keys()), (urls.bits(), urls.hashes(), 1));
//! assert!((450..550).contains(&filter.estimated_count()) && (0.2..0.4).contains(&filter.filled()));
//! assert!(operator.forget(&page[0]).await.unwrap_err().is_invalid()); // it cannot forget one item
//! # Ok(()) }
//! ```
//!
//! The example `inspect` is a tool for the terminal, and
//! [`guide::operations`](crate::guide::operations#an-operators-tool) shows its use and its permissions.

pub use crate::primitive::lease::{Holder, Snapshot};
pub use crate::primitive::operator::*;
