//! Deduplication: each item is handled once across all processes.
//!
//! A process claims an item, handles it, and confirms the claim:
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
//!     // Handle the event here. If that fails, drop the claim.
//!     assert!(claim.confirm().await?); // true: the claim was held until now
//! }
//! assert!(matches!(webhooks.try_claim("evt_1").await?, Claimed::Duplicate));
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! Only one caller in all processes holds the *claim* on an item at a time. The holder handles the item and then
//! [confirms](Claim::confirm) the claim. Confirming records that the item was handled and releases the claim, in
//! one step. From then on the item is a duplicate.
//!
//! A claim that is dropped is released, for example after a failure, a panic or a timeout. Then the item can be
//! claimed again, so a handler that fails loses no item. A claim is renewed while it is held. The claims of a
//! process that crashed expire after their [ttl](DedupeBuilder::ttl).
//!
//! An item that is sent again until it is handled is handled successfully at least once. It can be handled more
//! than once in three cases:
//!
//! * The claim is *lost* while the item is handled: the process is stopped for longer than the ttl, or the store
//!   loses its data. Another caller may then handle the item too. The loss is always reported:
//!   [`lost`](crate::LeaseHandle::lost) completes as soon as the process knows, and [`confirm`](Claim::confirm) returns
//!   `false`.
//! * The store is unavailable during `confirm`, and may not record that the item was handled. `confirm` returns an
//!   error and retries in the background until the claim expires.
//! * The process crashes after it handled the item and before it confirmed the claim. The store has no record of
//!   the item then. If an effect must not happen twice even in this case, write it in one transaction with the
//!   item's id.
//!
//! A claim takes one round trip, and a confirmation takes another.
//!
//! # Exact mode or a filter
//!
//! Choose by the cost of a lost message and by memory. Both modes have the same claims, layers and events.
//!
//! | | [`Dedupe::exact`] | [`Dedupe::new`] on a [`BloomFilter`](crate::BloomFilter) |
//! |---|---|---|
//! | a new item is reported as a duplicate | never, except for a collision of 128 bits of SHA-256 | at the filter's false-positive rate, always for the same items: **such an item is not handled, however often it is sent** |
//! | memory per item, with 10⁶ items and a capacity of 10⁶ | 22 bytes, or 33 bytes after a long run (with fewer items: 25 bytes for 10⁵, 47 bytes for 10⁴) | 8 bytes at a false-positive rate of 10⁻⁶, for two generations that are allocated in full |
//! | more items than the capacity | stays exact; an item takes 72 bytes | [fails open](FilterFull::FailOpen): duplicates are handled again, and an event reports it |
//! | an item is remembered for | `remember_for` to 1.5 × `remember_for` | `remember_for` to 2 × `remember_for` |
//! | [`web::dedupe`](crate::web::dedupe) answers a duplicate with | 200 | 409, unless `confirm_duplicate` verified it |
//! | a sender that chooses ids can make two of them collide | no | yes: XXH3 is not a cryptographic hash |
//!
//! Use exact mode for payments, orders and other items whose loss is noticed too late. Use it also for ids that
//! untrusted senders choose. Use a filter if one message in `1 / false_positive_rate` may be lost, such as crawled
//! URLs or metrics. A filter loses no message if you can verify duplicates against your own records: with
//! [`confirm_duplicate`](crate::DedupeLayer::confirm_duplicate) of the layer, or with
//! [`claim_anyway`](Dedupe::claim_anyway). If a client that repeats its request must get the same response, use
//! [`web::idempotency`](crate::web::idempotency).
//!
//! # The capacity
//!
//! The capacity is the number of different items that arrive within `remember_for`. For 20 messages a second and
//! one day it is 20 · 86 400 = 1 728 000. Take the busiest day. In both modes the capacity determines the stored
//! configuration: all processes must use the same value, and a change needs another name.
//!
//! A **filter** that never forgets fills up. So the filter must set
//! [`remember_for`](crate::bloom_filter::BloomFilterBuilder::remember_for), or the builder of the `Dedupe` must set
//! [`remember_forever`](DedupeBuilder::remember_forever). A filter that forgets has two generations. Each lasts for
//! `remember_for` and holds the whole capacity, so at the stated rate no generation exceeds its capacity.
//!
//! Each confirmation and each duplicate measures how full the filter is, without another round trip. Read the
//! result from [`Dedupe::fill`] or from the gauge `tower_distributed_filter_fill_ratio`. The events
//! `filter_nearly_full` (80 %) and `filter_full` (100 %) are each sent once when the threshold is crossed. Above
//! the capacity, an item that the filter reports as a duplicate is [handled](FilterFull), so that no new item is
//! lost.
//!
//! # Ids
//!
//! The id of an item is any bytes of any length. The store keeps 16 bytes or a few bits of it, whatever its length,
//! so long ids do not fill the server. A longer id only takes longer to hash. This process keeps an id as long as
//! its request.
//!
//! Ids of different senders are the same item if their bytes are equal. If several senders share a `Dedupe`, make
//! the sender a part of the item: [`Key::of`](crate::Key::of) keeps `("a", "b:c")` and `("a:b", "c")` apart. Use
//! the authenticated sender, not a name from the message, and authenticate *before* the item is claimed: see
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
//! # The stored format of exact mode
//!
//! For each handled item, the store keeps the digest `d`: the first 16 bytes of the item's SHA-256. The number of
//! buckets `N` is the capacity divided by 144 and rounded up. An item belongs to bucket
//! `b = (first 4 bytes of d, big-endian, · N) >> 32`. Time is divided into slices. The length `S` of a slice is
//! half of `remember_for` in µs, rounded up. Slice `n` of bucket `b` begins at `n · S − ⌊b · S / N⌋` of the
//! server's clock. The current slice and the two slices before it count.
//!
//! | Redis key | value |
//! |---|---|
//! | `prefix:{name:b}:exact:i` | A hash for the slice `n` with `n mod 3 = i`. The field `s` is `n`. Each other field is a digest with an empty value. The hash expires when its slice no longer counts. |
//! | `prefix:{name:b}:d:exact:claim` | The holder of the claim on `d` (hexadecimal). The keys `exact:queue` and `exact:beats` beside it are the waiters. |
//! | `prefix:{name:layout}:layout` | `exact1 N W`, where `W` is `remember_for` in ms. It is compared at first use, and again after each half of `remember_for`. |
//!
//! Redis stores a hash of up to `hash-max-listpack-entries` fields (128 by default) as one packed list. At capacity
//! a hash has about 72 fields. All keys of a digest are in one slot of a Cluster. If the server's clock is set
//! back, items are remembered for that much longer. If it is set forward, they are remembered for that much less.
//!
//! # The layer
//!
//! [`DedupeLayer`] handles each item once across all processes.
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
//! ## How a request is handled
//!
//! A closure or function extracts the request's [key](crate::KeyExtractor), which is the item. If it returns
//! `None`, the request passes. A request without a part of the key, such as the header field of its id, is refused. The
//! layer claims the item, calls the inner service, and confirms the claim if the
//! outcome is a [success](DedupeLayer::success). From then on the item is a duplicate. After a failure or a panic,
//! or if the response future is dropped, the layer releases the claim, and the request can be sent again.
//!
//! The layer returns the response after it has confirmed or released the claim. So a client that gets the response
//! can rely on it, unless [`on_unsure`](DedupeLayer::on_unsure) reports the item. See [`dedupe`](crate::dedupe) for
//! the guarantees, and for the choice between exact mode and a filter: **false positives of a filter are not
//! handled**.
//!
//! | the item | the request |
//! |---|---|
//! | is new | is handled |
//! | was handled | is refused as [`Duplicate`](crate::RefusalKind::Duplicate), or [marked](DedupeLayer::mark_duplicates) and handled, or [answered](DedupeLayer::answer_duplicates) by a closure |
//! | is being handled elsewhere | is refused as [`InFlight`](crate::RefusalKind::InFlight), or [waits](DedupeLayer::max_wait) |
//!
//! [`confirm_duplicate`](DedupeLayer::confirm_duplicate) verifies each duplicate against your own record, and
//! handles the request if it is not a duplicate. Without `confirm_duplicate`, a duplicate that is reported by a
//! filter above its capacity is [handled](crate::dedupe::FilterFull).
//!
//! If several senders share the layer, use the sender and the id as the key: two extractors in a tuple, or
//! [`Key::of`](crate::Key::of). Requests without a key are not deduplicated. If requests must have an id, refuse
//! the others in a layer outside of this one.
//!
//! ## When a claim is lost
//!
//! A claim is lost if the process stops for longer than the ttl, or if the store loses its data. If the item is
//! being handled then, another process may handle it too. The layer calls [`on_unsure`](DedupeLayer::on_unsure) and
//! sends an event (`claim_lost` or `claim_not_confirmed`; see [`telemetry`](crate::telemetry)). The handler can
//! watch its claim with [`on_lease`](DedupeLayer::on_lease), or the layer can
//! [cancel](DedupeLayer::cancel_when_lost) it.
//!
//! ## When the store is unavailable
//!
//! The default is [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed). With `FailOpen`, requests are
//! handled without a claim, including duplicates. With `LocalShare`, each process deduplicates only its own
//! requests, in its memory. All layers with this `Dedupe` share what it remembers.
//!
//! ## Readiness
//!
//! `poll_ready` is that of the inner service. The response future calls the instance that was polled ready.

pub use crate::layer::dedupe::*;
pub use crate::primitive::dedupe::*;
