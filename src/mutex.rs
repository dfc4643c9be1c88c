//! A distributed mutex for each key, on one Redis server or on a quorum of independent servers.
//!
//! ```
//! use tower_distributed::{Mutex, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let invoices = Mutex::new(&store, "invoices")?;
//!
//! let guard = invoices.lock("invoice-42").await?;
//! println!("fencing token {}", guard.fence());
//! assert!(invoices.try_lock("invoice-42").await.unwrap_err().is_refused());
//! assert!(guard.unlock().await?); // `true`: the lock was still held
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! * **Order.** Within a process, waiters get the lock in the order of arrival, also through different [`Mutex`]
//!   values of the same name. A process that holds the lock hands it over to its own next waiter without a call to
//!   the store, up to 31 times or for 2 ms, whichever ends first. Then the process that has waited longest gets the
//!   lock. So a process waits for at most one such turn of each other process. This is lock cohorting (Dice,
//!   Marathe, Shavit, "Lock Cohorting", PPoPP 2012). With [`strict_fifo`](MutexBuilder::strict_fifo), waiters are
//!   served in the order of arrival across processes. Each lock then costs a call to the store.
//! * **Wakeup.** A waiter on one server is woken by a pushed message and does not poll. A waiter polls on a
//!   [quorum](Mutex::quorum), with [`tries`](MutexBuilder::tries), and with
//!   [`exact_names`](MutexBuilder::exact_names) unless `strict_fifo` is set.
//! * **Crash.** The lock of a crashed process expires after its [ttl](MutexBuilder::ttl).
//! * **Loss.** A guard renews its lock while it exists, and [signals](crate::LeaseHandle::lost) its loss.
//! * **Fencing.** The [fencing token](MutexGuard::fence) grows with every holder, also when a process hands the
//!   lock over. A resource that checks the token can refuse a holder that has lost the lock and has not noticed it
//!   yet: see [`guarantees`](crate::guarantees), and a [picture](crate::guide::pictures#a-mutex-a-crash-and-a-pause).
//! * **Futures that are not polled.** If a future gets the lock and is not polled, it keeps the lock for about 1 s
//!   (half of the ttl if that is shorter). If its own call to the store acquired a free lock, it keeps the lock for
//!   up to the time that [a call can take](crate::StoreBuilder#how-long-a-call-can-take) plus 1.5 s. Then the next
//!   waiter gets the lock. The future asks for the lock again when it is polled.
//!
//! # Sharing locks with other libraries
//!
//! In Redis, the lock is a string with a ttl. It is set only if it does not exist, and compared before it is deleted.
//! redsync, rslock, node-redlock and the pattern in Redis's documentation do the same. With
//! [`exact_names`](MutexBuilder::exact_names), the lock has the same name as theirs, so their locks and these locks
//! exclude each other.
//!
//! Those libraries poll. If waiters here stood in a queue and handed the lock over, a polling client would never
//! find it free. So with exact names the waiters here poll as well, every
//! [`retry_delay`](MutexBuilder::retry_delay), and all clients have the same chance.
//!
//! # On a quorum (Redlock)
//!
//! [`quorum`](Mutex::quorum) locks on several independent servers. The lock is held if a majority of them has granted
//! it (Antirez, "Distributed locks with Redis"). It survives the loss of a minority of the servers, and of their
//! state. A quorum has no queue: a waiter tries again after a delay. Four servers tolerate the loss of one, as three
//! do, so use an odd number. The fencing token costs a second round trip, which stores the token on a majority.
//!
//! # Coming from redsync, gocorex, rslock
//!
//! | there | here |
//! |---|---|
//! | redsync `NewMutex(name, options…)` | [`Mutex::builder`], [`MutexBuilder::build`]; the name is the key of each call |
//! | several pools | [`MutexBuilder::build_quorum`] |
//! | `WithExpiry` (8 s) | [`ttl`](MutexBuilder::ttl) (30 s, renewed; at least 10 ms, of which the allowance for clocks takes 2 ms or more) |
//! | `WithTries` (32) | [`tries`](MutexBuilder::tries) (default: none on one server, where waiters queue; 32 on a quorum) |
//! | `WithRetryDelay`, `WithRetryDelayFunc` (50–250 ms) | [`retry_delay`](MutexBuilder::retry_delay), [`retry_delay_with`](MutexBuilder::retry_delay_with) |
//! | `WithDriftFactor` (0.01) | [`drift_factor`](MutexBuilder::drift_factor) |
//! | `WithTimeoutFactor` (0.05) | [`timeout_factor`](MutexBuilder::timeout_factor) |
//! | `WithGenValueFunc`, `WithValue` | [`value_with`](MutexBuilder::value_with); two holders with the same value still exclude each other; a value that a guard of this process already uses for the key is an error |
//! | `WithSetNXOnExtend` | none: `extend` never takes a lost lock again; lock again instead |
//! | `WithFailFast` | [`fail_fast`](MutexBuilder::fail_fast) |
//! | `WithShufflePools` | [`shuffle_nodes`](MutexBuilder::shuffle_nodes) |
//! | `Lock`, `TryLock`, `Unlock` | [`lock`](Mutex::lock), [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock) |
//! | `Extend`, and a goroutine that calls it | [`extend`](crate::Lease::extend), [`watchdog`](MutexBuilder::watchdog) |
//! | `Until`, `Value`, `Name` | [`until`](crate::LeaseHandle::until), [`token`](crate::LeaseHandle::token), [`key`](crate::LeaseHandle::key) |
//! | `ErrTaken`, `ErrFailed` | [`Error::is_refused`](crate::Error::is_refused), [`Error::is_unavailable`](crate::Error::is_unavailable) |
//! | `ErrLockAlreadyExpired` | [`Error::is_lost`](crate::Error::is_lost), from [`extend`](crate::Lease::extend) and [`unlock_checked`](MutexGuard::unlock_checked) |
//! | gocorex `NewLock(client, key, expiration)`, `Lock(id)`, `UnLock(id)` | [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock); the `id` from [`value_with`](MutexBuilder::value_with) |
//! | rslock `LockManager`, `lock`, `acquire`, `extend`, `unlock` | [`Mutex::quorum`], [`try_lock`](Mutex::try_lock), [`lock`](Mutex::lock), [`extend`](crate::Lease::extend), [`unlock`](MutexGuard::unlock) |
//! | "lock or skip" (billing) | [`try_with_lock`](Mutex::try_with_lock), [`MutexLayer`] |
//!
//! # The layer
//!
//! [`MutexLayer`] handles the requests of a key one at a time, across all processes. Other requests of the key wait
//! or are refused.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_distributed::{Mutex, MutexLayer, Refusal, Store};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower::BoxError> {
//! let store = Store::in_memory(); // or Store::redis("redis://127.0.0.1/")?
//! let bills = Mutex::new(&store, "bills")?;
//!
//! let mut bill = ServiceBuilder::new()
//!     .layer(MutexLayer::new(bills.clone(), |user: &&'static str| *user))
//!     .service(service_fn(async |user: &'static str| Ok::<_, std::io::Error>(format!("{user} was billed"))));
//!
//! assert_eq!(bill.ready().await?.call("ann").await?, "ann was billed");
//!
//! let elsewhere = bills.lock("ann").await?; // for example in another process
//! let error = bill.ready().await?.call("ann").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some(), "skipped");
//! # Ok(()) }
//! ```
//!
//! ## Key and waiting
//!
//! A closure or function [names the key](crate::KeyExtractor) of a request. A request without a key (`None`) passes
//! without a lock; one without a part of its key, such as a header field, is refused. If the lock is held by another holder, the request is refused immediately, unless
//! [`max_wait`](MutexLayer::max_wait) is set. Any [`Mutex`] can be used, also one on a quorum.
//!
//! ## While the lock is held
//!
//! The same as for [`RwLockLayer`](crate::rw_lock#while-the-lock-is-held).
//!
//! ## When the store is unavailable
//!
//! The layer fails closed ([`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed)), unless
//! [`on_store_failure`](MutexLayer::on_store_failure) is set.
//!
//! ## Readiness
//!
//! The same as for [`ConcurrencyLimitLayer`](crate::wait_group#readiness).

pub use crate::layer::mutex::*;
pub use crate::primitive::mutex::*;
