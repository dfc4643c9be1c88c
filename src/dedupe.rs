//! What was handled once is not handled again: claim, handle, confirm.
//!
//! ```
//! use std::time::Duration;
//! use tower_distributed::dedupe::{Claimed, Dedupe};
//! use tower_distributed::Store;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let week = Duration::from_secs(7 * 86_400);
//! let webhooks = Dedupe::exact(&store, "webhooks").capacity(1_000_000).remember_for(week).build()?;
//!
//! if let Claimed::New(claim) = webhooks.try_claim("evt_1").await? {
//!     // Handle it; if that fails, drop the claim.
//!     assert!(claim.confirm().await?); // nobody else has had it meanwhile
//! }
//! assert!(matches!(webhooks.try_claim("evt_1").await?, Claimed::Duplicate));
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! An item that is not known can be *claimed*, by one at a time in all processes. Whoever has the claim handles the item and
//! then [confirms](Claim::confirm) it, which notes that it was handled and gives the claim back, in one step. A claim that is
//! dropped, as after a failure, a panic or a timeout, is given back, and the item can be claimed again: a handler that fails
//! loses nothing. The claim of a process that was killed runs out after its [time to live](DedupeBuilder::ttl); while it is
//! held it is renewed.
//!
//! So each item is handled successfully at least once if it is sent again until it is; and once, unless a claim is *lost*
//! while its item is handled: by a process that stands still for longer than the time to live, or a store that forgets.
//! Somebody else may handle the same item then. It is never silent: [`confirm`](Claim::confirm) says so, and
//! [`lost`](crate::Lease::lost) as soon as it is known. A store that is away when an item is confirmed may not
//! know that it was handled; that is an error of `confirm`, which goes on trying in the background while the
//! claim lasts. A process that dies between handling and confirming leaves no trace of the handling: what must not
//! happen twice even then belongs into one transaction with the item's identifier.
//!
//! It takes one round trip to claim and another to confirm.
//!
//! # Exact mode or a filter
//!
//! Choose by what a lost message costs, and by memory. Both have the same claims, layers and events.
//!
//! | | [`Dedupe::exact`] | [`Dedupe::new`] on a [`BloomFilter`](crate::BloomFilter) |
//! |---|---|---|
//! | a new item is taken for a duplicate | never, but for a collision of 128 bits of SHA-256 | at the filter's false-positive rate, always the same items: **such an item is not handled, however often it is sent** |
//! | memory per message, with a million of them and a capacity of that | 22 bytes, 33 where it has run for long (25 and 47 with 10⁵ and 10⁴) | 8 bytes at a false-positive rate of 10⁻⁶, in two generations that are reserved in full |
//! | with more items than its capacity | exact; an item takes 72 bytes | [fails open](FilterFull::FailOpen): duplicates are handled again, which is told |
//! | remembered for | `remember_for` to 1.5 × as long | `remember_for` to 2 × as long |
//! | a duplicate behind [`web::dedupe`](crate::web::dedupe) | is acknowledged with 200 | is refused with 409, unless it was looked up |
//! | whoever chooses ids can make two of them collide | no | yes: XXH3 is no cryptographic hash |
//!
//! Take exact mode for payments, orders, and whatever nobody would miss until it is too late; also where ids come from
//! strangers. Take a filter where one message in `1 / false_positive_rate` may be lost, such as crawled URLs or metrics; or
//! where the truth is kept elsewhere and duplicates can be looked up there: with
//! [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate) of the layer or [`claim_anyway`](Dedupe::claim_anyway), no
//! message is lost to a filter. Where a client that repeats its request is to get the same response again, use
//! [`web::idempotency`](crate::web::idempotency).
//!
//! # The capacity
//!
//! It is the number of different items that come within `remember_for`: at 20 messages a second and a day,
//! 20 · 86 400 = 1 728 000. Take the busiest day. In both modes it is a part of what is stored: all processes must have the
//! same, and to change it takes another name.
//!
//! A **filter** must have [`remember_for`](crate::bloom_filter::BloomFilterBuilder::remember_for), or
//! [`remember_forever`](DedupeBuilder::remember_forever) must be said: a filter that never forgets fills up. Each of its two
//! generations lasts for `remember_for` and has room for the whole capacity, so at the stated rate none is ever more than
//! full. How full the newest is, is measured at each confirmation, without another round trip: see [`Dedupe::fill`], the gauge
//! `tower_distributed_filter_fill_ratio` and the events `filter_nearly_full` (80 %) and `filter_full` (100 %), each told
//! once when it is crossed. From there on what the filter takes for a duplicate is [handled](FilterFull), so that no new item
//! is lost.
//!
//! # Ids
//!
//! An item is named by any bytes of any length: what is kept of it is 16 bytes or a few bits, whatever its length, so an id
//! cannot fill the server. What it costs is hashing it. In this process an id lives as long as its request.
//!
//! Ids of different senders are the same item if their bytes are the same. Where several senders share a `Dedupe`, put the
//! sender into the item: [`Key::of`](crate::Key::of) keeps `("a", "b:c")` and `("a:b", "c")` apart. Take the sender that was
//! authenticated, not what the message says of itself, and authenticate *before* the item is claimed: see
//! [`web::dedupe`](crate::web::dedupe).
//!
//! ```
//! # use std::time::Duration;
//! # use tower_distributed::{Dedupe, Key, Store};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! # let day = Duration::from_secs(86_400);
//! # let orders = Dedupe::exact(&Store::in_memory(), "orders").remember_for(day).build()?;
//! let claimed = orders.try_claim(Key::of(["github", "evt_1"])).await?;
//! # Ok(()) }
//! ```
//!
//! # What exact mode keeps
//!
//! Of an item that was handled, the first 16 bytes of its SHA-256 (`d`). With `N` buckets, which is the capacity divided by 144
//! and rounded up, it belongs to number `b = (first 4 bytes of d, big-endian, · N) >> 32`. Time is cut into slices of `S`, half
//! of `remember_for` in µs rounded up; slice `n` of bucket `b` begins at `n · S − ⌊b · S / N⌋` of the server's clock. The
//! current slice and the two before it count.
//!
//! | Redis key | |
//! |---|---|
//! | `prefix:{name:b}:exact:i` | a hash: field `s` is the number `n` of its slice, with `n mod 3 = i`; each other field is a digest, its value empty. Expires when the slice no longer counts |
//! | `prefix:{name:b}:d:exact:claim` | who has claimed `d` (hexadecimal), with `exact:queue` and `exact:beats`: who waits |
//! | `prefix:{name:layout}:layout` | `exact1 N W`: `W` is `remember_for` in ms. Compared at first use, and again each half of `remember_for` |
//!
//! Redis keeps a hash of up to `hash-max-listpack-entries` fields (128 by default) as one packed list: at capacity one has
//! about 72. All of a digest is in one slot of a Cluster. Where the server's clock is set back, what was handled is remembered
//! for that much longer; where it is set forward, for that much less.
//!
//! # The layer
//!
//! [`DedupeLayer`]: what was handled once is not handled again, in whatever process.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{BloomFilter, Dedupe, DedupeLayer, Refusal, RefusalKind, Store};
//!
//! struct Event { id: String }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let day = std::time::Duration::from_secs(86_400);
//! let builder = BloomFilter::builder().capacity(1_000_000).false_positive_rate(1e-6);
//! let seen = builder.remember_for(day).build(&store, "events")?;
//!
//! let mut handle = ServiceBuilder::new()
//!     .layer(DedupeLayer::new(Dedupe::new(&seen)?, |event: &Event| event.id.clone()))
//!     .service(service_fn(async |event: Event| Ok::<_, std::io::Error>(format!("handled {}", event.id))));
//!
//! assert_eq!(handle.ready().await?.call(Event { id: "evt_1".into() }).await?, "handled evt_1");
//! let error = handle.ready().await?.call(Event { id: "evt_1".into() }).await.unwrap_err();
//! assert_eq!(error.downcast_ref::<Refusal>().map(Refusal::kind), Some(RefusalKind::Duplicate));
//! # Ok(()) }
//! ```
//!
//! ## What becomes of a request
//!
//! Its [key](crate::KeyExtractor), by a closure or function, names the item; `None` lets the request pass. The item is
//! claimed, the inner service called, and the claim confirmed if the outcome is a [success](DedupeLayer::success):
//! from then on the item is a duplicate. After a failure, a panic, or if the response future is dropped, the claim is
//! given back, so that the request may be sent again. The response is held back until that is done: whoever gets it
//! can rely on it. See [`dedupe`](crate::dedupe) for what holds, and for the choice between exact mode and a filter, whose
//! **false positives are not handled**.
//!
//! | the item | |
//! |---|---|
//! | is new | handled |
//! | was handled | refused as [`Duplicate`](crate::RefusalKind::Duplicate); or [marked](DedupeLayer::mark_duplicates) and handled; or [answered](DedupeLayer::answer_duplicates) by a closure |
//! | is being handled elsewhere | refused as [`InFlight`](crate::RefusalKind::InFlight); or [waited](DedupeLayer::max_wait) for |
//!
//! Where the truth can be looked up, [`confirm_duplicate`](DedupeLayer::confirm_duplicate) does that for what the filter takes
//! for a duplicate, and what is none is handled. What a filter beyond its capacity takes for a duplicate is
//! [handled](crate::dedupe::FilterFull) unless it is looked up.
//!
//! Where several senders share the layer, key it by the sender and the id: two extractors in a tuple, or
//! [`Key::of`](crate::Key::of). Requests without a key pass and are not deduplicated: refuse what has no id before.
//!
//! ## When a claim is lost
//!
//! By a process that stood still, or a store that forgot, a claim can be lost while its item is handled, and somebody
//! else may handle it too. That is told to [`on_unsure`](DedupeLayer::on_unsure), and as an event (`claim_lost`,
//! `claim_not_confirmed`; see [`telemetry`](crate::telemetry)). The handler can
//! watch its claim by [`on_lease`](DedupeLayer::on_lease), or be [cancelled](DedupeLayer::cancel_when_lost).
//!
//! ## When the store is away
//!
//! [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed) unless set. `FailOpen` handles without a claim, duplicates too; `LocalShare` remembers in this process
//! alone.
//!
//! ## Readiness
//!
//! `poll_ready` is the inner service's; the instance that was polled ready is the one that is called, from the response
//! future.

pub use crate::layer::dedupe::*;
pub use crate::primitive::dedupe::*;
