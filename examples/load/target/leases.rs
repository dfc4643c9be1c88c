//! Permits and locks, which are held for a while.

use std::time::Duration;

use tower_distributed::{Error, LeaseHandle, Mutex, RwLock, Store, WaitGroup};

use super::random_key;
use crate::args;
use crate::clock;
use crate::message::Held;
use crate::recorder::{Call, Outcome};

#[derive(Debug)]
pub(crate) struct Leases {
    kind: Kind,
    keys: u64,
    hold: Duration,
}

#[derive(Debug)]
enum Kind {
    Permits(WaitGroup),
    Mutex(Mutex),
    RwLock { lock: RwLock, writes: u32 },
}

impl Leases {
    pub(super) fn permits(
        arguments: &args::WaitGroup,
        store: &Store,
        name: &str,
    ) -> Result<Self, Error> {
        let permits = WaitGroup::builder(arguments.cap).max_wait(arguments.holding.max_wait_ms);
        Ok(Self::new(
            Kind::Permits(permits.build(store, name)?),
            &arguments.keys,
            &arguments.holding,
        ))
    }

    pub(super) fn mutex(arguments: &args::Lock, store: &Store, name: &str) -> Result<Self, Error> {
        let mutex = Mutex::builder().max_wait(arguments.holding.max_wait_ms);
        Ok(Self::new(
            Kind::Mutex(mutex.build(store, name)?),
            &arguments.keys,
            &arguments.holding,
        ))
    }

    pub(super) fn rw_lock(
        arguments: &args::RwLock,
        store: &Store,
        name: &str,
    ) -> Result<Self, Error> {
        let args::RwLock {
            lock: args::Lock { keys, holding, .. },
            writes,
        } = arguments;
        let lock = RwLock::builder()
            .max_wait(holding.max_wait_ms)
            .build(store, name)?;
        Ok(Self::new(
            Kind::RwLock {
                lock,
                writes: *writes,
            },
            keys,
            holding,
        ))
    }

    fn new(kind: Kind, keys: &args::Keys, holding: &args::Holding) -> Self {
        Self {
            kind,
            keys: keys.keys,
            hold: holding.hold_ms,
        }
    }

    pub(super) async fn call(&self, call: Call<'_>) {
        let key = random_key(self.keys);
        let done = match &self.kind {
            Kind::Permits(permits) => match permits.add(key).await {
                Ok(permit) => {
                    self.hold(&call, key, true, "permit", &permit.handle())
                        .await;
                    permit.done().await
                }
                Err(error) => return call.error(&error),
            },
            Kind::Mutex(mutex) => match mutex.lock(key).await {
                Ok(guard) => {
                    self.hold(&call, key, false, "locked", &guard.handle())
                        .await;
                    guard.unlock().await
                }
                Err(error) => return call.error(&error),
            },
            Kind::RwLock { lock, writes } if rand::random_range(0..100) < *writes => {
                match lock.write(key).await {
                    Ok(guard) => {
                        self.hold(&call, key, false, "write", &guard.handle()).await;
                        guard.release().await
                    }
                    Err(error) => return call.error(&error),
                }
            }
            Kind::RwLock { lock, .. } => match lock.read(key).await {
                Ok(guard) => {
                    self.hold(&call, key, true, "read", &guard.handle()).await;
                    guard.release().await
                }
                Err(error) => return call.error(&error),
            },
        };
        if let Err(error) = done {
            // The call itself was counted when it was admitted.
            call.recorder.trouble(&format!("release: {error}"));
        }
    }

    /// Holds a lease that was just granted.
    async fn hold(
        &self,
        call: &Call<'_>,
        key: u64,
        shared: bool,
        answer: &str,
        lease: &LeaseHandle,
    ) {
        let from = clock::now();
        call.answered(Outcome::Admitted, answer);
        if !self.hold.is_zero() {
            tokio::time::sleep(self.hold).await;
        }
        let fence = lease.fence().unwrap_or(0);
        call.recorder.held(
            from,
            || lease.is_held(),
            Held {
                key,
                from: 0,
                to: 0,
                shared,
                fence,
            },
        );
    }
}
