//! A call to the server. It is sent once, except where it cannot have run or its operation may run twice. The caller waits
//! for the reply within the timeout. The outcome updates the state of the connection and the breaker.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use redis::{self, RedisError};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::RedisStore;
use super::attempt::Attempt;
use super::batch::{Call, Reply};
use super::errors::{self, Redirect};
use super::library::Loaded;
use super::link::{Link, Ready, Route, RuntimeLinks};
use super::retry::Failed;
use crate::error::{Cause, Error, Outage};
use crate::store::operation::Repeat;
use crate::sync::lock;

/// After this time without a reply, the connection may have been closed because it was idle.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// The first pause before a call to a slot that is being moved is sent again. Each further pause is twice as long.
const MOVING: Duration = Duration::from_millis(2);

/// How many redirections of a call are followed: to the master, to the node that is getting the slot, and as many again for
/// a slot that moves meanwhile.
const REDIRECTIONS: usize = 4;

/// If a timer fires this much too late, the runtime was not running: the reply may have arrived but not been read.
const LATE: Duration = Duration::from_millis(20);

/// The number of times that all other tasks run before a reply counts as missing.
const TURNS: usize = 8;

impl RedisStore {
    /// Runs a script. The call is sent once, with these exceptions:
    ///
    /// * The server does not know the function, and so has not run it. Then the library is loaded, and the call is sent again;
    ///   as a script if the library cannot be loaded.
    /// * The server does not know the script, and so has not run it. Then the call is sent again with the text of
    ///   the script. `SCRIPT LOAD` would not be enough: the scripts could be flushed in between, and on a Cluster
    ///   it would have to reach the right node first.
    /// * The server refuses writes, since it is out of memory or has too few replicas, and so has not run the function. Then the
    ///   call is sent again as a script, of which it refuses only what writes; if it is out of memory, only what grows.
    /// * The master does not have the slot of its keys, and has not run it. Then it is sent to the one that has.
    /// * The slot of its keys is being moved to another node, which has refused the call. Then it is sent again until the
    ///   timeout is over. If the script may have run in part, this holds only for [`Repeat::Safe`].
    /// * The connection turns out to be closed before anything seems to be written, or after it was idle, because servers
    ///   and load balancers close idle connections. This holds only for [`Repeat::Safe`]. Before other calls, an idle
    ///   connection is tried with a `PING`, so that only a connection that breaks after that fails them.
    pub(super) async fn run(
        &self,
        links: &RuntimeLinks,
        route: &Route,
        script: &Loaded,
        call: &Call,
    ) -> Result<Reply, Error> {
        let runtime = &links.runtime;
        if route.link.has_switched() {
            // The failures were those of the former master.
            route.breaker.half_open();
        }
        if let Err(error) = route.breaker.check() {
            // There may be a new master, which has a breaker of its own.
            self.source.look_for_masters(None);
            return Err(error);
        }
        let was_idle = !route.link.answered_within(IDLE);
        let began = Instant::now();
        let probed = match was_idle && call.repeat == Repeat::Never {
            true => self.probe(runtime, &route.link).await,
            false => Ok(()),
        };
        let mut outcome = match probed {
            Ok(()) => {
                self.attempt(runtime, &route.link, script, call, (route.master, false))
                    .await
            }
            Err(failed) => Err(failed),
        };
        let mut twice = false;
        if let Err(failed) = &outcome
            && failed.outage.cause == Cause::Disconnected
            && failed.is_repeated(call.repeat, was_idle)
        {
            twice = true;
            outcome = self
                .attempt(runtime, &route.link, script, call, (route.master, false))
                .await;
        }
        let (mut pause, mut redirected, mut other, mut refused) = (MOVING, 0, None, None);
        while let Err(failed) = &outcome {
            outcome = match (failed.outage.cause, &failed.redirect) {
                (Cause::Redirected, Some(Redirect { address, ask }))
                    if redirected < REDIRECTIONS =>
                {
                    let Some(master) = self.source.redirected_to(address) else {
                        break;
                    };
                    // The node of ASK does not have the slot yet.
                    if !ask {
                        self.source.look_for_masters(None);
                    }
                    redirected += 1;
                    let to = other.insert(links.route(links.number(master, 0)));
                    if let Err(error) = to.breaker.check() {
                        self.succeeded(route);
                        self.telemetry.call(began, false);
                        return Err(if twice { error.of_last_copy() } else { error });
                    }
                    self.attempt(runtime, &to.link, script, call, (to.master, *ask))
                        .await
                }
                (Cause::Redirected, None) => {
                    self.source.look_for_masters(None);
                    break;
                }
                (cause @ (Cause::Moving | Cause::MovedMidway), _)
                    if failed.is_repeated(call.repeat, was_idle)
                        && began.elapsed() + pause < self.limits.timeout =>
                {
                    twice |= cause == Cause::MovedMidway;
                    refused = self.refused.note(call.slot, &failed.outage, refused);
                    let paused = {
                        let _inside = runtime.enter();
                        tokio::time::sleep(pause)
                    };
                    paused.await;
                    (pause, redirected, other) = (2 * pause, 0, None);
                    self.attempt(runtime, &route.link, script, call, (route.master, false))
                        .await
                }
                _ => break,
            };
        }
        let is_current = self.source.is_current(route.master);
        if !is_current {
            // It was left, but this call may have connected to it again.
            route.link.close(None);
        }
        if other.is_some() {
            // The master that redirected the call has answered.
            self.succeeded(route);
        }
        // The node of ASK may have no slots yet.
        let counts = other.is_some() || is_current;
        let last = other.as_deref().unwrap_or(route);
        match outcome {
            Ok(reply) => {
                self.succeeded(last);
                self.telemetry.call(began, reply.unconfirmed.is_none());
                Ok(if twice { reply.sent_twice() } else { reply })
            }
            Err(Failed {
                outage,
                sent,
                answers,
                ..
            }) => {
                if answers || !errors::is_outage(outage.cause) {
                    self.succeeded(last);
                } else if counts {
                    last.link.failed();
                    last.breaker
                        .failed(sent.unwrap_or(began), &outage, sent.is_none());
                }
                self.telemetry.call(began, false);
                let error = Error::from(outage);
                Err(if twice { error.of_last_copy() } else { error })
            }
        }
    }

    /// Notes that the server has answered. If this ends an outage, all other runtimes probe the server with their
    /// next call.
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
            // A node that names no masters to this user is up.
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

    /// Sends a call once, and again if the server does not know the function or the script, or refuses the function.
    async fn attempt(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
        script: &Loaded,
        call: &Call,
        to: (usize, bool),
    ) -> Result<Reply, Failed> {
        let mut attempt = Attempt::begin(self, runtime, link, script, call, to).await?;
        let sent = Instant::now();
        let reply = attempt.reply().await?;
        let Attempt {
            held,
            form,
            written,
            ..
        } = attempt;
        let mut redirect = None;
        let outage = match reply {
            Some(Ok((reply, unconfirmed))) => match Reply::parse(reply, call.size()) {
                Some(mut reply) => {
                    link.answered();
                    reply.unconfirmed = unconfirmed.map(|error| errors::outage(error).into());
                    return Ok(reply);
                }
                None => {
                    let text = script.unexpected(form);
                    errors::of(Cause::Unexpected, text)
                }
            },
            Some(Err(error)) => {
                redirect = errors::redirect(&error);
                errors::outage(error)
            }
            None => self.timed_out(),
        };
        let failed = self.failed(link, &held, sent, outage);
        if errors::is_outage(failed.outage.cause) {
            self.source.look_for_masters(Some(held.connection.clone()));
        }
        Err(Failed {
            written,
            redirect,
            ..failed
        })
    }

    /// Notes that a call has failed, and closes its connection if that is lost.
    pub(super) fn failed(
        &self,
        link: &Link,
        held: &Arc<Ready>,
        sent: Instant,
        outage: Outage,
    ) -> Failed {
        // A server that has answered an earlier call since then is slow, not down.
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
    /// Replies arrive in the order of the calls. So as long as other replies arrive, it waits up to four timeouts.
    /// Once, time in which the runtime was blocked does not count, because the reply may have arrived but not been
    /// read.
    pub(super) async fn in_time<T>(
        &self,
        runtime: &Handle,
        link: &Link,
        mut reply: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        let (sent, timeout) = (Instant::now(), self.limits.timeout);
        let (mut deadline, mut was_late) = (sent + timeout, false);
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
            let (now, late) = (Instant::now(), deadline.elapsed());
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
        // The reply may have arrived, while the task that reads it waits for its turn behind many others.
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

/// A call under way. At its end it closes what it may have connected after the store was shut down.
pub(super) struct UnderWay<'a>(pub(super) &'a RedisStore, pub(super) &'a RuntimeLinks);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Self(store, links) = self;
        if store.is_shut_down.load(Ordering::Relaxed) {
            links.close();
            store.source.stop();
        }
    }
}

/// Awaits a reply. Sets `written` to whether anything was probably written: a connection that has ended fails at once, without
/// writing. But the thread may have stood still within the first poll, while the call ran and then the connection ended.
pub(super) async fn noting<T>(
    mut reply: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
    written: &mut bool,
) -> Result<T, RedisError> {
    let first = poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await;
    *written = !matches!(&first, Poll::Ready(Err(error)) if error.is_io_error());
    match first {
        Poll::Ready(reply) => reply,
        Poll::Pending => reply.await,
    }
}
