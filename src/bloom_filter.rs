//! A Bloom filter: remembers which items it has seen, in a few bits per item.
//!
//! A [`BloomFilter`] is a named filter in a [`Store`](crate::Store). All processes that use the same store and name
//! share one filter.
//!
//! ```
//! use tower_distributed::{BloomFilter, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let seen = BloomFilter::new(&store, "webhooks", 1_000_000, 0.001)?;
//!
//! assert!(seen.check_and_insert("evt_1").await?); // new
//! assert!(!seen.check_and_insert("evt_1").await?);
//! assert_eq!(seen.contains_all(["evt_1", "evt_2"]).await?, [true, false]);
//! # Ok(()) }
//! ```
//!
//! # False positives
//!
//! The answer *no* is certain: the item was not inserted, or the filter has forgotten it. The answer *yes* is wrong
//! for some items that were never inserted. At a false-positive rate of 0.001, it is wrong for one in a thousand
//! once the filter holds its capacity, for fewer below the capacity, and for more above it. It is always wrong for
//! the same items, so a second call gives the same answer.
//!
//! [`check_and_insert`](BloomFilter::check_and_insert) checks and inserts in one step. If many callers in any
//! processes pass a new item at once, only one of them gets the answer that it is new.
//!
//! # Forgetting
//!
//! A single item cannot be removed, since items share bits. [`clear`](BloomFilter::clear) removes all items. With
//! [`remember_for`](BloomFilterBuilder::remember_for) `F`, the filter forgets old items: an item is remembered for
//! at least `F` and at most `2F` after it was last inserted or passed to `check_and_insert`. The server's clock
//! counts. If it is set back, items are remembered for that much longer.
//!
//! # Memory
//!
//! A filter takes `n·ln(1/p) / ln²2` bits for n items at rate p, within 5 %. The size of the items does not matter.
//! A filter that forgets takes a little more than twice as much.
//!
//! | capacity | 10 % | 1 % | 0.1 % | 0.01 % |
//! |---:|---:|---:|---:|---:|
//! | 10 thousand | 6 KB | 12 KB | 18 KB | 24 KB |
//! | 1 million | 0.6 MB | 1.2 MB | 1.8 MB | 2.4 MB |
//! | 10 million | 6 MB | 12 MB | 18 MB | 24 MB |
//! | 1 thousand million | 600 MB | 1.2 GB | 1.8 GB | 2.4 GB |
//!
//! Redis's allocator rounds the size of a key up, by as much as a quarter. A filter above 2 MiB that is built with
//! a capacity is spread over a number of keys that wastes little memory. A key has at most 64 MiB, so a filter of
//! 64 keys has at most 4 GiB.
//!
//! A filter that does not forget stays in Redis without a time to live until it is cleared. A filter that forgets
//! expires at the latest 5 × `remember_for` and two hours after its last use. If the server evicts keys, filters
//! forget items.
//!
//! # One configuration for all processes
//!
//! The number of bits, hashes and keys and `remember_for` are stored beside the bits and compared in every call. If
//! they differ, the call fails with an error that [is invalid](crate::Error::is_invalid) and names both
//! configurations. The stored filter does not change. To change the configuration, use another name, or first clear
//! the filter with its stored configuration. Capacity and rate are not compared, only the bits and hashes that
//! result from them.
//!
//! # The stored format
//!
//! Use this to read and write the filters in other languages.
//!
//! The hash of an item is XXH3 with 128 bits and seed 0. Its lower half is `x` and its upper half is `y`.
//! Arithmetic on them wraps at 2⁶⁴, except for the products that are shifted. With `N` keys, the item belongs to
//! key number `((y >> 32) · N) >> 32`. With `m` bits in a key's array and `k` hashes, the bits of the item are:
//!
//! ```text
//! k times { bit = (x · m) >> 64;  x = x · 6364136223846793005 + y }
//! ```
//!
//! The product with `m` has 128 bits. The multiplier is that of Knuth's MMIX generator. Double hashing (Kirsch and
//! Mitzenmacher, 2006) is not used: in small filters, it gives different items the same bits far too often.
//!
//! | item | hash | `N` | `m` | key number | first four bits |
//! |---|---|---:|---:|---:|---|
//! | (empty) | `99aa06d3014798d86001c324468d497f` | 1 | 1000003 | 0 | 375028, 675436, 773159, 564661 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 1 | 1000003 | 0 | 788376, 229938, 723424, 154789 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 5 | 536870912 | 2 | 423255060, 123446927, 388384281, 83101697 |
//! | `00 ff 00` | `ebcdd8b056f701bae0d991af43624afa` | 64 | 1000003 | 58 | 878322, 395223, 289000, 718049 |
//!
//! For key number `i` of the filter `name`, the store has:
//!
//! | Redis key | value |
//! |---|---|
//! | `prefix:{name:i}:config` | `bloom1 N m k F g`: `F` is `remember_for` in ms, or 0 if the filter does not forget; `g` is the newest generation, or 0 without generations |
//! | `prefix:{name:i}:bits0` | the bits of even generations, in the order of `SETBIT`; all bits without generations |
//! | `prefix:{name:i}:bits1` | the bits of odd generations |
//!
//! The current generation is the greater of `g` and the server's time divided by `F`, rounded down. An item is
//! contained if all its bits are set in the array of the current generation, or all are set in the array of the
//! generation before it. Only the arrays of generations `g` and `g - 1` count. The first insertion in a new
//! generation writes it to the configuration and deletes the arrays of all generations except the new one and the
//! one before it.
//!
//! # Coming from …
//!
//! | gocorex | here |
//! |---|---|
//! | `NewBloomFilter(client, key, bits, maps)` | [`BloomFilter::builder`]`().bits(bits).hashes(maps).build(&store, name)`, or [`BloomFilter::new`] with a capacity and a false-positive rate |
//! | `Add(ctx, value)` | [`insert`](BloomFilter::insert), [`insert_all`](BloomFilter::insert_all) |
//! | `Exists(ctx, value)` | [`contains`](BloomFilter::contains), [`contains_all`](BloomFilter::contains_all) |
//! | `Exists`, then `Add` | [`check_and_insert`](BloomFilter::check_and_insert), in one step |
//!
//! gocorex uses other hashes, so this crate cannot read its filters.

pub use crate::primitive::bloom_filter::*;
