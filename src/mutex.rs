//! A distributed mutex per key, on one Redis or on a quorum of independent ones.
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
//! assert!(guard.unlock().await?); // it was held to the end
//! # Ok(()) }
//! ```
//!
//! # What holds
//!
//! Who waits on one server is woken; on a quorum and with [`exact_names`](MutexBuilder::exact_names) it polls. Within a process the lock goes round in the order of arrival, through whatever values of
//! that name it is asked for. A process that has the lock hands it on within itself without asking the store, each time with
//! a greater fence: up to 31 times or for 2 ms, whichever is first (lock cohorting; Dice, Marathe, Shavit, "Lock Cohorting",
//! PPoPP 2012). Then the process has its turn that has waited longest. So a process waits for at most one such turn of each
//! other process. [`strict_fifo`](MutexBuilder::strict_fifo) keeps the order of arrival across processes instead, at the cost
//! of a call each time.
//!
//! The lock of a crashed process is free again after its [time to live](MutexBuilder::ttl). While a guard is held it is
//! renewed, and it tells when it is [lost](crate::Lease::lost). The [fencing token](MutexGuard::fence) only grows, so that
//! what is written to can refuse a holder that does not know yet that it is none: see [`guarantees`](crate::guarantees).
//! A future that is granted the lock and not polled keeps it for 1 s at most; where it had just asked for a lock that was
//! free, for the time that [a call can take](crate::StoreBuilder#how-long-a-call-can-take) and 1.5 s. Then it goes to the
//! next, and the future asks anew.
//!
//! # Beside locks of others
//!
//! The lock is a plain string with a time to live, set if there is none, and compared before it is deleted: what
//! redsync, rslock, node-redlock and the pattern in Redis's documentation do. With
//! [`exact_names`](MutexBuilder::exact_names) it has the name that they give it, and they exclude ours and the other
//! way round. They poll, and would never find a lock free that goes from one who waits in a queue to the next. So with exact
//! names those who wait here poll as well, every [`retry_delay`](MutexBuilder::retry_delay), and all have the same chance.
//!
//! # On a quorum (Redlock)
//!
//! [`quorum`](Mutex::quorum) locks on several servers that know nothing of each other, and holds what a majority has
//! granted (Antirez, "Distributed locks with Redis"). It survives the loss of a minority of servers and of their
//! state; in return there is no queue: those who wait try again after a delay. Four servers tolerate the loss of one,
//! as three do, so take an odd number. The fencing token costs a second round trip, in which a majority learns it.
//!
//! # Coming from redsync, gocorex, rslock
//!
//! | there | here |
//! |---|---|
//! | redsync `NewMutex(name, options…)` | [`Mutex::builder`], [`MutexBuilder::build`]; the name is the key of each call |
//! | several pools | [`MutexBuilder::build_quorum`] |
//! | `WithExpiry` (8 s) | [`ttl`](MutexBuilder::ttl) (30 s, renewed; 10 ms at least, of which the allowance for clocks takes 2 ms and more) |
//! | `WithTries` (32) | [`tries`](MutexBuilder::tries) (none on one server: waits its turn; 32 on a quorum) |
//! | `WithRetryDelay`, `WithRetryDelayFunc` (50–250 ms) | [`retry_delay`](MutexBuilder::retry_delay), [`retry_delay_with`](MutexBuilder::retry_delay_with); called before each pause, but for exact names with `strict_fifo`: once, when it is built |
//! | `WithDriftFactor` (0.01) | [`drift_factor`](MutexBuilder::drift_factor) |
//! | `WithTimeoutFactor` (0.05) | [`timeout_factor`](MutexBuilder::timeout_factor) |
//! | `WithGenValueFunc`, `WithValue` | [`value_with`](MutexBuilder::value_with); a value does not make two holders one; one that a guard of this process has already is refused |
//! | `WithSetNXOnExtend` | none: what was lost is never taken again by extending; lock anew |
//! | `WithFailFast` | [`fail_fast`](MutexBuilder::fail_fast) |
//! | `WithShufflePools` | [`shuffle_nodes`](MutexBuilder::shuffle_nodes) |
//! | `Lock`, `TryLock`, `Unlock` | [`lock`](Mutex::lock), [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock) |
//! | `Extend`, a goroutine that does so | [`extend`](crate::Lease::extend), [`watchdog`](MutexBuilder::watchdog) |
//! | `Until`, `Value`, `Name` | [`until`](crate::Lease::until), [`token`](crate::Lease::token), [`key`](crate::Lease::key) |
//! | `ErrTaken`, `ErrFailed`; `ErrLockAlreadyExpired` | [`Error::is_refused`](crate::Error::is_refused), [`Error::is_unavailable`](crate::Error::is_unavailable); [`Error::is_lost`](crate::Error::is_lost), by [`extend`](crate::Lease::extend) and [`unlock_checked`](MutexGuard::unlock_checked) |
//! | gocorex `NewLock(client, key, expiration)`, `Lock(id)`, `UnLock(id)` | [`try_lock`](Mutex::try_lock), [`unlock`](MutexGuard::unlock); `id` by [`value_with`](MutexBuilder::value_with) |
//! | rslock `LockManager`, `lock`, `acquire`, `extend`, `unlock` | [`Mutex::quorum`], [`try_lock`](Mutex::try_lock), [`lock`](Mutex::lock), [`extend`](crate::Lease::extend), [`unlock`](MutexGuard::unlock) |
//! | "lock or skip" (billing) | [`try_with_lock`](Mutex::try_with_lock), [`MutexLayer`] |
//!
//! # The layer
//!
//! [`MutexLayer`]: requests of a key are handled one at a time, across all processes; the others wait or are refused.
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
//! let elsewhere = bills.lock("ann").await?; // in another process, perhaps
//! let error = bill.ready().await?.call("ann").await.unwrap_err();
//! assert!(error.downcast_ref::<Refusal>().is_some(), "skipped");
//! # Ok(()) }
//! ```
//!
//! ## What it asks
//!
//! The [key](crate::KeyExtractor) by a closure or function; `None` lets a request pass. A request whose lock is held by
//! another is refused at once, unless it may [wait](MutexLayer::max_wait). Any [`Mutex`] will do, also one of a quorum.
//!
//! ## While the lock is held
//!
//! As of [`RwLockLayer`](crate::rw_lock#while-the-lock-is-held).
//!
//! ## When the store is away
//!
//! [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed) unless set.
//!
//! ## Readiness
//!
//! As of [`concurrency_limit`](crate::wait_group#readiness).

pub use crate::layer::mutex::*;
pub use crate::primitive::mutex::*;
