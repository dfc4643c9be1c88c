//! What is called: a URL, or a primitive in a store.

mod http;
mod leases;
mod once;

use tower_distributed::{Error, Store, TokenBucket};

use crate::args::{Place, Target};
use crate::clock;
use crate::recorder::{Call, Outcome};

/// A target, ready to be called by many tasks.
#[derive(Debug)]
pub(crate) enum Callee {
    Http(http::Http),
    TokenBucket { bucket: TokenBucket, keys: u64 },
    Leases(leases::Leases),
    SingleFlight(once::Flights),
    Dedupe(once::Items),
}

impl Callee {
    /// Connects to the store. `run` is the name of a namespace that no other run has.
    pub(crate) async fn open(target: &Target, run: &str, tasks: u32) -> Result<Self, String> {
        let open = async {
            let store = match target.place() {
                Some(place) => store(place).await?,
                // It is not used.
                None => Store::in_memory(),
            };
            let name = target
                .place()
                .and_then(|place| place.name.as_deref())
                .unwrap_or(run);
            Self::build(target, &store, (name, run), tasks)
        };
        open.await.map_err(|error| error.to_string())
    }

    fn build(
        target: &Target,
        store: &Store,
        (name, run): (&str, &str),
        tasks: u32,
    ) -> Result<Self, Error> {
        Ok(match target {
            Target::Http(http) => Self::Http(http::Http::new(http, tasks)?),
            Target::TokenBucket(arguments) => {
                // The command line has a quota for this target.
                let quota = target.quota().unwrap_or_else(|| arguments.quota.clone());
                let bucket = TokenBucket::new(store, name, quota)?;
                Self::TokenBucket {
                    bucket,
                    keys: arguments.keys.keys,
                }
            }
            Target::WaitGroup(arguments) => {
                Self::Leases(leases::Leases::permits(arguments, store, name)?)
            }
            Target::Mutex(arguments) => {
                Self::Leases(leases::Leases::mutex(arguments, store, name)?)
            }
            Target::RwLock(arguments) => {
                Self::Leases(leases::Leases::rw_lock(arguments, store, name)?)
            }
            Target::SingleFlight(arguments) => {
                Self::SingleFlight(once::Flights::new(arguments, store, name)?)
            }
            Target::Dedupe(arguments) => {
                Self::Dedupe(once::Items::new(arguments, store, name, run)?)
            }
        })
    }

    pub(crate) async fn call(&self, call: Call<'_>) {
        match self {
            Self::Http(http) => http.call(call).await,
            Self::TokenBucket { bucket, keys } => {
                let key = random_key(*keys);
                match bucket.allow(key).await {
                    Ok(decision) if decision.is_admitted() => {
                        call.decided(key, clock::now(), Outcome::Admitted, "admitted");
                    }
                    Ok(_) => call.answered(Outcome::Refused, "refused"),
                    Err(error) => call.error(&error),
                }
            }
            Self::Leases(leases) => leases.call(call).await,
            Self::SingleFlight(flights) => flights.call(call).await,
            Self::Dedupe(dedupe) => dedupe.call(call).await,
        }
    }
}

/// The store of the arguments, which have been checked. It has answered.
async fn store(place: &Place) -> Result<Store, Error> {
    let store = match &place.redis {
        None => Store::in_memory(),
        #[cfg(feature = "cluster")]
        Some(url) if place.cluster => Store::builder().cluster([url.as_str()])?,
        Some(url) => Store::redis(url)?,
    };
    store.ping().await?;
    Ok(store)
}

fn random_key(keys: u64) -> u64 {
    rand::random_range(0..keys)
}
