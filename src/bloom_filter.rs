//! A Bloom filter: what was seen before, in a few bits per item.
//!
//! [`BloomFilter`] is a filter of a name in a [`Store`](crate::Store). Whoever uses the same store and name uses the same filter.
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
//! # What its answers mean
//!
//! *No* is certain: the item was not inserted, or was forgotten. *Yes* is wrong for some items that were never
//! inserted: one in a thousand at a false-positive rate of 0.001 once the filter is filled to its capacity, fewer before, more after. It
//! is always wrong for the same ones, so asking again does not help. [`check_and_insert`](BloomFilter::check_and_insert)
//! is one step: of many that ask for an item at once, in whatever process, one is told that it is new.
//!
//! Items cannot be removed, since their bits are shared. A filter forgets all on [`clear`](BloomFilter::clear), or what is
//! old: with [`remember_for`](BloomFilterBuilder::remember_for) `F`, an item is remembered for at least `F` and at most
//! `2F` after it was last inserted or asked for by `check_and_insert`. That goes by the server's clock; where it is set
//! back, by that much longer.
//!
//! # Memory
//!
//! `n·ln(1/p) / ln²2` bits for n items at rate p, within 5 %, whatever the items are. Twice as much, and a
//! little more, where it forgets.
//!
//! | capacity | 10 % | 1 % | 0.1 % | 0.01 % |
//! |---:|---:|---:|---:|---:|
//! | 10 thousand | 6 KB | 12 KB | 18 KB | 24 KB |
//! | 1 million | 0.6 MB | 1.2 MB | 1.8 MB | 2.4 MB |
//! | 10 million | 6 MB | 12 MB | 18 MB | 24 MB |
//! | 1 thousand million | 600 MB | 1.2 GB | 1.8 GB | 2.4 GB |
//!
//! Redis takes memory in steps of up to a quarter; filters above 2 MiB are spread over as many keys as fit these,
//! and no key has more than 64 MiB. 64 keys hold 4 GiB.
//!
//! A filter that does not forget stays in Redis, without a time to live, until it is cleared. One that does is
//! gone 5 × `remember_for` and two hours after its last use at the latest. A server that evicts keys makes filters
//! forget.
//!
//! # One configuration for all
//!
//! Bits, hashes, keys and `remember_for` are stored beside the bits and compared in every call. Where they differ the
//! call is an error that [is invalid](crate::Error::is_invalid) and names both; what is stored stays as it is. To change them
//! take another name, or clear the filter first, as the one that it was. Capacity and rate count only by the bits
//! and hashes that they make.
//!
//! # In other languages
//!
//! The hash of an item is XXH3 with 128 bits and seed 0; `x` is its lower half and `y` its upper, and all arithmetic on
//! them wraps at 2⁶⁴, but for the products that are shifted. With `N` keys, the item belongs to number
//! `((y >> 32) · N) >> 32`. With `m` bits of a key's array and `k` hashes its bits are:
//!
//! ```text
//! k times { bit = (x · m) >> 64;  x = x · 6364136223846793005 + y }
//! ```
//!
//! where the product by `m` has 128 bits and the multiplier is that of Knuth's MMIX generator. Double hashing
//! (Kirsch and Mitzenmacher, 2006) would let items of a small filter have all their bits in common far too often.
//!
//! | item | hash | `N` | `m` | number | first four bits |
//! |---|---|---:|---:|---:|---|
//! | (empty) | `99aa06d3014798d86001c324468d497f` | 1 | 1000003 | 0 | 375028, 675436, 773159, 564661 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 1 | 1000003 | 0 | 788376, 229938, 723424, 154789 |
//! | `user-7` | `6eeef1a6ea2a2373c9d2e0a4ff2c4642` | 5 | 536870912 | 2 | 423255060, 123446927, 388384281, 83101697 |
//! | `00 ff 00` | `ebcdd8b056f701bae0d991af43624afa` | 64 | 1000003 | 58 | 878322, 395223, 289000, 718049 |
//!
//! What is kept for number `i` of the filter `name`:
//!
//! | Redis key | |
//! |---|---|
//! | `prefix:{name:i}:config` | `bloom1 N m k F g`: `F` is `remember_for` in ms, 0: never; `g` the newest generation, 0 without |
//! | `prefix:{name:i}:bits0` | the bits of even generations, in the order of `SETBIT`; all of them without generations |
//! | `prefix:{name:i}:bits1` | the bits of odd generations |
//!
//! The current generation is the greater of `g` and the server's time divided by `F`, rounded down. An item is contained if
//! all its bits are set in the array of the current generation, or all in that of the one before. Only arrays of
//! generations `g` and `g - 1` count. Whoever inserts writes a new generation to the configuration and deletes the arrays
//! of all but it and the one before it.
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
//! Its filters hash otherwise, so they cannot be read here.

pub use crate::primitive::bloom_filter::*;
