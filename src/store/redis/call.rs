//! The usual path of a call: it checks the breaker, sends the call once, and waits for the reply within the timeout.
//! The outcome updates the state of the connection and the breaker.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::operation::Repeat;
use crate::store::redis::attempt::{Failed, Outgoing};
use crate::store::redis::batch::{Call, Reply};
use crate::store::redis::library::Loaded;
use crate::store::redis::link::{Link, Ready, Route, RuntimeLinks};
use crate::store::redis::retry::Copies;
use crate::store::redis::{RedisStore, errors};
use crate::sync::lock;

/// After this time without a reply, the connection may have been closed because it was idle.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// If a timer fires this much too late, the runtime was not running: the reply may have arrived but not been read.
const LATE: Duration = Duration::from_millis(20);

/// How often all other tasks may run before a reply counts as missing.
const TURNS: usize = 8;

impl RedisStore {
    /// Runs a script. The call is sent once, with these exceptions:
    ///
    /// * The server does not have the function, and so has not run it. Then the library is loaded, and the call is sent
    ///   again; as a script if the library cannot be loaded.
    /// * The server does not have the script, and so has not run it. Then the call is sent again with the text of the
    ///   script. `SCRIPT LOAD` would not be enough: the scripts could be flushed in between, and on a Cluster it would
    ///   have to reach the right node first.
    /// * The server refuses writes, because it is out of memory or has too few replicas, and so has not run the
    ///   function. Then the call is sent again as a script, in which it refuses only the commands that write; if it is
    ///   out of memory, only those that use more memory.
    /// * The master does not have the slot of its keys, and has not run it. Then it is sent to the master that has the
    ///   slot.
    /// * The slot of its keys is being moved to another node, which has refused the call. Then it is sent again until
    ///   the timeout is over. If the script may have run in part, this applies only to [`Repeat::Safe`].
    /// * The connection turns out to be closed before anything seems to be written, or after it was idle, because
    ///   servers and load balancers close idle connections. This applies only to [`Repeat::Safe`]. Before other calls,
    ///   an idle connection is checked with a `PING`, so that they fail only if the connection breaks after that.
    pub(super) async fn run(
        &self,
        links: &RuntimeLinks,
        route: &Route,
        script: &Loaded,
        call: &Call,
    ) -> Result<Reply, Error> {
        self.check_breaker(route)?;
        let was_idle = !route.link.answered_within(IDLE);
        let mut copies = Copies::new(Instant::now(), was_idle);
        let outgoing = Outgoing {
            links,
            route,
            script,
            call,
        };
        let probed = if was_idle && call.repeat == Repeat::Never {
            self.probe(&links.runtime, &route.link).await
        } else {
            Ok(())
        };
        let mut outcome = match probed {
            Ok(()) => self.attempt(&outgoing, route, false).await,
            Err(failed) => Err(failed),
        };
        // Boxed, because most calls are not repeated.
        while let Err(failed) = &outcome
            && let Some(again) = Box::pin(self.retry(&outgoing, &mut copies, failed)).await?
        {
            outcome = again;
        }
        self.ended(route, &copies, outcome)
    }

    /// Checks whether a call may be made now.
    fn check_breaker(&self, route: &Route) -> Result<(), Error> {
        if route.link.has_switched() {
            // The failures were those of the former master.
            route.breaker.half_open();
        }
        route.breaker.check().inspect_err(|_| {
            // There may be a new master, which has a breaker of its own.
            self.source.look_for_masters(None);
        })
    }

    /// Updates the connection and the breaker with the outcome of a call.
    fn ended(
        &self,
        route: &Route,
        copies: &Copies,
        outcome: Result<Reply, Failed>,
    ) -> Result<Reply, Error> {
        let is_current = self.source.is_current(route.master);
        if !is_current {
            // The store has left this master, but this call may have connected to it again.
            route.link.close(None);
        }
        if copies.other.is_some() {
            // The master that redirected the call has replied.
            self.succeeded(route);
        }
        // The node of ASK may have no slots yet.
        let counts = copies.other.is_some() || is_current;
        let last = copies.other.as_deref().unwrap_or(route);
        let failed = match outcome {
            Ok(reply) => {
                self.succeeded(last);
                self.telemetry
                    .call(copies.began, reply.unconfirmed.is_none());
                return Ok(if copies.twice {
                    reply.sent_twice()
                } else {
                    reply
                });
            }
            Err(failed) => failed,
        };
        let Failed { outage, sent, .. } = failed;
        if failed.answers || !errors::is_outage(outage.cause) {
            self.succeeded(last);
        } else if counts {
            last.link.failed();
            last.breaker
                .failed(sent.unwrap_or(copies.began), &outage, sent.is_none());
        }
        self.telemetry.call(copies.began, false);
        Err(copies.error(outage.into()))
    }

    /// Records that the server has replied. If this ends an outage, all other runtimes probe the server with their next
    /// call.
    pub(super) fn succeeded(&self, route: &Route) {
        if route.breaker.succeeded() {
            let runtimes = lock(&self.runtimes).clone();
            for links in runtimes {
                links.half_open();
                links.leave_former();
            }
        }
    }

    /// Returns the connection. If there is none, it connects first.
    pub(super) async fn hold(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
    ) -> Result<Arc<Ready>, Failed> {
        link.hold(runtime).await.map_err(|outage| {
            self.source.look_for_masters(None);
            // A node that denies this user the list of masters is up.
            let cause = if outage.cause == Cause::Denied {
                Cause::Denied
            } else {
                Cause::NotSent
            };
            let outage = Outage { cause, ..outage };
            Failed {
                outage,
                sent: None,
                written: false,
                answers: false,
                redirect: None,
            }
        })
    }

    /// Records that a call has failed, and closes its connection if that is lost.
    pub(super) fn failed(
        &self,
        link: &Link,
        held: &Arc<Ready>,
        sent: Instant,
        outage: Outage,
    ) -> Failed {
        // A server that has replied to an earlier call since then is slow, not down.
        let answers = outage.cause == Cause::TimedOut && link.answered_since(sent).is_some();
        if !errors::is_outage(outage.cause) {
            link.answered();
        }
        if self.source.is_lost(outage.cause) && !answers {
            link.close(Some(held));
        }
        Failed {
            outage,
            sent: Some(sent),
            written: false,
            answers,
            redirect: None,
        }
    }

    pub(super) fn timed_out(&self) -> Outage {
        errors::of(
            Cause::TimedOut,
            format!("no reply within {:?}", self.limits.timeout),
        )
    }

    /// Awaits the reply to a call that is sent now. `None` after the timeout.
    ///
    /// Replies arrive in the order of the calls. So as long as other replies arrive, it waits up to four timeouts. Time
    /// in which the runtime was blocked is not counted, once, because the reply may have arrived but not been read.
    pub(super) async fn in_time<T>(
        &self,
        runtime: &Handle,
        link: &Link,
        mut reply: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let sent = Instant::now();
        let timeout = self.limits.timeout;
        let mut deadline = sent + timeout;
        let mut was_late = false;
        loop {
            // The caller may be polled outside of its runtime by now.
            let elapsed = {
                let _inside = runtime.enter();
                sleep_until(deadline)
            };
            tokio::select! {
                biased;
                reply = &mut reply => return Some(reply),
                () = elapsed => {}
            }
            let now = Instant::now();
            let late = deadline.elapsed();
            let progress = link
                .answered_since(sent)
                .map(|last| (last + timeout).min(sent + 4 * timeout));
            deadline = match progress {
                Some(later) if later > now => later,
                _ if late >= LATE && !was_late => {
                    was_late = true;
                    now + late.min(timeout)
                }
                _ => break,
            };
        }
        // The reply may have arrived, but the task that reads it may be queued behind many others.
        for _ in 0..TURNS {
            tokio::select! {
                biased;
                reply = &mut reply => return Some(reply),
                () = tokio::task::yield_now() => {}
            }
        }
        None
    }
}

/// A call in flight. On drop, it closes connections that it may have made after the store was shut down.
pub(super) struct CallGuard<'a>(pub(super) &'a RedisStore, pub(super) &'a RuntimeLinks);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let Self(store, links) = self;
        if store.is_shut_down.load(Ordering::Relaxed) {
            links.close();
            store.source.stop();
        }
    }
}
