//! Futures that are dropped after so many polls.

use std::future::Future;

use tokio_test::task;
use tower_distributed::Error;

use crate::kinds::{Family, IN_TIME, SOON, Taken, left};
use support::eventually;
use support::redis_server::RedisServer;

/// Where a family lives; no servers: in this process.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) servers: &'a [RedisServer],
    /// Whether who waits can be seen on the server.
    pub(crate) queues: bool,
}

/// When a future goes: at once after a poll, or when it is woken and not polled any more.
const MOMENTS: [Moment; 2] = [Moment::Polled, Moment::Woken];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    Polled,
    Woken,
}

/// A call under way, and what it may have to wait for: that is released once the call waits.
pub(crate) type Begun<F> = (Option<Taken>, F);

/// The calls of a family.
pub(crate) struct Calls<'a>(pub(crate) Place<'a>, pub(crate) &'a Family);

impl Calls<'_> {
    /// For n = 0, 1, 2, …: begins a call and drops it after n polls, until it completes within them. Each time nothing
    /// is left of it, and others get the key at once.
    pub(crate) async fn each<F: Future>(&self, what: &str, begin: impl AsyncFn(&str) -> Begun<F>) {
        let Self(place, family) = *self;
        let mut begun = 0;
        for moment in MOMENTS {
            for polls in 0.. {
                let key = format!("{what} {moment:?} {polls}");
                let (holder, call) = begin(&key).await;
                let done = drop_after(place, &key, polls, moment, holder, call).await;
                begun += 1;
                free(place, family, &key).await;
                if done {
                    break;
                }
            }
        }
        println!("{what}: dropped at {begun} points");
    }
}

/// Whether it was done within so many polls.
pub(crate) async fn drop_after<F: Future>(
    place: Place<'_>,
    key: &str,
    polls: usize,
    moment: Moment,
    mut holder: Option<Taken>,
    call: F,
) -> bool {
    let mut call = task::spawn(call);
    for poll in 0..polls {
        if call.poll().is_ready() {
            return true;
        }
        if poll + 1 < polls || moment == Moment::Woken {
            eventually("it to be woken", SOON, async || {
                if !call.is_woken() && place.waits(key) {
                    release(holder.take()).await.unwrap();
                }
                call.is_woken()
            })
            .await;
        }
    }
    drop(call);
    release(holder).await.unwrap();
    false
}

async fn release(holder: Option<Taken>) -> Result<(), Error> {
    match holder {
        Some(holder) => holder.release().await.map(|was_held| assert!(was_held)),
        None => Ok(()),
    }
}

/// Waits until nobody holds a key or waits for it: less long than a place lives in which nobody waits.
pub(crate) async fn free(place: Place<'_>, family: &Family, key: &str) {
    eventually(&format!("{key:?} to be free"), IN_TIME, async || {
        if let Family::Permits(permits) = family
            && permits.count(key).await.unwrap() > 0
        {
            return false;
        }
        place.servers.iter().all(|server| left(server, key).is_empty())
            && match family.try_take(key).await {
                Ok(taken) => taken.release().await.unwrap(),
                Err(error) => {
                    assert!(error.is_refused(), "{error}");
                    false
                }
            }
    })
    .await;
    for server in place.servers {
        assert_eq!(left(server, key), [""; 0]);
    }
}

impl Place<'_> {
    pub(crate) fn waits(&self, key: &str) -> bool {
        !self.queues
            || self.servers.iter().any(|server| left(server, key).iter().any(|part| part.ends_with(":beats")))
    }
}
