//! The usual path of a call: it checks the breaker, sends the call once, as a function or as a script, and waits for the
//! reply within the timeout. The outcome updates the state of the connection and the breaker.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{self, RedisError};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::operation::Repeat;
use crate::store::redis::batch::{Call, Reply};
use crate::store::redis::command::{Form, Loaded};
use crate::store::redis::connection::was_written;
use crate::store::redis::errors::Redirect;
use crate::store::redis::link::{Link, Ready, Route, RuntimeLinks};
use crate::store::redis::{RedisStore, errors, functions};
use crate::sync::lock;

/// After this time without a reply, the connection may have been closed because it was idle.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// If a timer fires this much too late, the runtime was not running: the reply may have arrived but not been read.
const LATE: Duration = Duration::from_millis(20);

/// How often all other tasks may run before a reply counts as missing.
const TURNS: usize = 8;

/// A call that is being sent.
pub(super) struct Outgoing<'a> {
    pub(super) links: &'a RuntimeLinks,
    /// The route to the master that has the slot of its keys, as far as is known.
    pub(super) route: &'a Route,
    pub(super) script: &'a Loaded,
    pub(super) call: &'a Call,
    pub(super) began: Instant,
    /// Whether its connection had been idle before.
    pub(super) was_idle: bool,
}

/// The failure of an attempt to run a script.
pub(super) struct Failed {
    pub(super) outage: Outage,
    /// When the call was sent; `None`: there was no connection.
    pub(super) sent: Option<Instant>,
    /// Whether anything was probably written.
    pub(super) written: bool,
    /// Whether the server replied to other calls meanwhile. Then it is slow, but not down.
    pub(super) answers: bool,
    pub(super) redirect: Option<Redirect>,
}

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
        if route.link.has_switched() {
            // The failures were those of the former master.
            route.breaker.half_open();
        }
        if let Err(error) = route.breaker.check() {
            // There may be a new master, which has a breaker of its own.
            self.source.look_for_masters(None);
            return Err(error);
        }
        let outgoing = Outgoing {
            links,
            route,
            script,
            call,
            began: Instant::now(),
            was_idle: !route.link.answered_within(IDLE),
        };
        let probed = if outgoing.was_idle && call.repeat == Repeat::Never {
            self.probe(&links.runtime, &route.link).await
        } else {
            Ok(())
        };
        let outcome = match probed {
            Ok(()) => self.attempt(&outgoing, route, false).await,
            Err(failed) => Err(failed),
        };
        match outcome {
            Ok(reply) => {
                self.close_if_left(route);
                self.succeeded(route);
                let counts = reply.unconfirmed.is_none();
                self.telemetry.call(outgoing.began, counts);
                Ok(reply)
            }
            // Boxed, because most calls are not repeated.
            Err(failed) => Box::pin(self.retry(&outgoing, failed)).await,
        }
    }

    /// Sends a call once, and again if the server does not have the function or the script, or refuses the function.
    /// `route`: where this attempt is sent. `asking`: the server is importing the slot.
    pub(super) async fn attempt(
        &self,
        outgoing: &Outgoing<'_>,
        route: &Route,
        asking: bool,
    ) -> Result<Reply, Failed> {
        let held = match route.link.connected() {
            Some(held) => held,
            None => self.hold(&outgoing.links.runtime, &route.link).await?,
        };
        let mut attempt = Attempt {
            store: self,
            outgoing,
            route,
            asking,
            form: outgoing.script.form(held.functions.are_used()),
            held,
            loads: 0,
            written: true,
        };
        let sent = Instant::now();
        loop {
            if matches!(attempt.form, Form::Function) && attempt.held.functions.are_missing() {
                if !attempt.load().await? {
                    return attempt.ended(sent, None);
                }
                continue;
            }
            let answer = attempt.send().await;
            if let Some(Err(error)) = &answer
                && let Some(form) = attempt.other_form(error)
            {
                attempt.form = form;
                continue;
            }
            return attempt.ended(sent, answer);
        }
    }

    /// Closes the connection to a master that the store has left, because a call may have connected to it again. Returns
    /// whether the store has left it.
    pub(super) fn close_if_left(&self, route: &Route) -> bool {
        let has_left = match &self.masters {
            Some(masters) => !masters.is_current(route.master),
            None => false,
        };
        if has_left {
            route.link.close(None);
        }
        has_left
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

/// One attempt of a call, at one server.
pub(super) struct Attempt<'a> {
    pub(super) store: &'a RedisStore,
    pub(super) outgoing: &'a Outgoing<'a>,
    /// Where this attempt is sent.
    pub(super) route: &'a Route,
    /// Whether the server is importing the slot.
    asking: bool,
    pub(super) held: Arc<Ready>,
    /// How the call is sent next.
    pub(super) form: Form,
    /// How often the library was loaded for the call.
    pub(super) loads: usize,
    /// Whether anything was probably written.
    written: bool,
}

/// The reply of a server, and the reason why the call does not count; `None`: no reply in time.
type Answered = Option<Result<(redis::Value, Option<RedisError>), RedisError>>;

impl Attempt<'_> {
    async fn send(&mut self) -> Answered {
        let Outgoing {
            links,
            script,
            call,
            ..
        } = *self.outgoing;
        let store = self.store;
        let asking = self.asking;
        let written = &mut self.written;
        let in_other_form;
        let command = if matches!(self.form, Form::Function) {
            &call.command
        } else {
            in_other_form = script.in_form(&call.command, self.form);
            &in_other_form
        };
        let mut connection = self.held.connection.clone();
        // Pinned here: futures are large, and would be copied when they are moved into each other.
        let sending = pin!(async {
            if asking || store.limits.durability.is_some() {
                let call = (command, call.slot);
                return store
                    .send_in_pipeline(&mut connection, call, asking, written)
                    .await;
            }
            let reply = was_written(pin!(connection.send(command)), written).await?;
            Ok((reply, None))
        });
        let sending = pin!(self.route.link.unless_switched(self.held.switches, sending));
        store
            .in_time(&links.runtime, &self.route.link, sending)
            .await
    }

    /// Returns the outcome of the attempt, and updates the state of the connection.
    fn ended(self, sent: Instant, answer: Answered) -> Result<Reply, Failed> {
        let store = self.store;
        let link = &self.route.link;
        let mut redirect = None;
        let outage = match answer {
            Some(Ok((reply, unconfirmed))) => {
                if let Some(mut reply) = Reply::parse(reply, self.outgoing.call.size()) {
                    link.answered();
                    if let Some(error) = unconfirmed {
                        reply.unconfirmed = Some(errors::outage(error).into());
                    }
                    return Ok(reply);
                }
                let text = self.outgoing.script.unexpected(self.form);
                errors::of(Cause::Unexpected, text)
            }
            Some(Err(error)) => {
                redirect = errors::redirect(&error);
                errors::outage(error)
            }
            None => store.timed_out(),
        };
        let failed = store.failed(link, &self.held, sent, outage);
        if errors::is_outage(failed.outage.cause) {
            let connection = self.held.connection.clone();
            store.source.look_for_masters(Some(connection));
        }
        Err(Failed {
            written: self.written,
            redirect,
            ..failed
        })
    }

    /// Returns the other form in which the call is sent after this error, if any. The call has not run.
    fn other_form(&self, error: &RedisError) -> Option<Form> {
        match self.form {
            Form::Function if functions::is_unknown(error) => self.held.functions.miss(),
            Form::Function if functions::are_refused(error) => {
                self.held.functions.forbid();
                self.store.telemetry.without_functions(&error.to_string());
                return Some(Form::Digest);
            }
            // A function is refused as a whole, even if it would write nothing, or would only free memory at OOM.
            Form::Function if errors::refuses_writes(error) => return Some(Form::Digest),
            Form::Digest if errors::is_no_script(error) => return Some(Form::Full),
            _ => return None,
        }
        Some(Form::Function)
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
