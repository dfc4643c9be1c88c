//! One attempt of a call, at one server: as a function, whose library may have to be loaded first, or as a script. With
//! durability settings, it waits for replicas or the disk.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use redis::{self, RedisError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::error::reasons::{Cause, Outage};
use crate::store::redis::batch::{Call, Reply};
use crate::store::redis::connection::Connection;
use crate::store::redis::errors::Redirect;
use crate::store::redis::functions::Loading;
use crate::store::redis::library::{Form, Loaded};
use crate::store::redis::link::{Ready, Route, RuntimeLinks};
use crate::store::redis::{RedisStore, errors, functions, limits, slots};
use crate::sync::lock;

/// How often the library is loaded for one call: it is loaded again if it was flushed meanwhile, or the connection was
/// lost. After that the call is sent as a script.
const LOADS: usize = 3;

/// A call that is being sent.
pub(super) struct Outgoing<'a> {
    pub(super) links: &'a RuntimeLinks,
    /// The route to the master that has the slot of its keys, as far as is known.
    pub(super) route: &'a Route,
    pub(super) script: &'a Loaded,
    pub(super) call: &'a Call,
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
    /// Sends a call once, and again if the server does not have the function or the script, or refuses the function.
    /// `route`: where this attempt is sent. `asking`: the server is importing the slot.
    pub(super) async fn attempt(
        &self,
        outgoing: &Outgoing<'_>,
        route: &Route,
        asking: bool,
    ) -> Result<Reply, Failed> {
        let mut attempt = Attempt::begin(self, outgoing, route, asking).await?;
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
            Some(Ok((reply, unconfirmed))) => match Reply::parse(reply, outgoing.call.size()) {
                Some(mut reply) => {
                    route.link.answered();
                    reply.unconfirmed = unconfirmed.map(|error| errors::outage(error).into());
                    return Ok(reply);
                }
                None => {
                    let text = outgoing.script.unexpected(form);
                    errors::of(Cause::Unexpected, text)
                }
            },
            Some(Err(error)) => {
                redirect = errors::redirect(&error);
                errors::outage(error)
            }
            None => self.timed_out(),
        };
        let failed = self.failed(&route.link, &held, sent, outage);
        if errors::is_outage(failed.outage.cause) {
            self.source.look_for_masters(Some(held.connection.clone()));
        }
        Err(Failed {
            written,
            redirect,
            ..failed
        })
    }
}

/// One attempt of a call, at one server.
struct Attempt<'a> {
    store: &'a RedisStore,
    outgoing: &'a Outgoing<'a>,
    /// Where this attempt is sent.
    route: &'a Route,
    /// Whether the server is importing the slot.
    asking: bool,
    held: Arc<Ready>,
    /// How the call is sent next.
    form: Form,
    /// How often the library was loaded for the call.
    loads: usize,
    /// Whether anything was probably written.
    written: bool,
}

/// The reply of a server, and the reason why the call does not count; `None`: no reply in time.
type Answered = Option<Result<(redis::Value, Option<RedisError>), RedisError>>;

impl<'a> Attempt<'a> {
    /// Connects, if there is no connection.
    async fn begin(
        store: &'a RedisStore,
        outgoing: &'a Outgoing<'a>,
        route: &'a Route,
        asking: bool,
    ) -> Result<Self, Failed> {
        let held = store.hold(&outgoing.links.runtime, &route.link).await?;
        let form = outgoing.script.form(held.functions.are_used());
        Ok(Self {
            store,
            outgoing,
            route,
            asking,
            held,
            form,
            loads: 0,
            written: true,
        })
    }

    /// Sends the call until it is replied to in a form that the server runs.
    async fn reply(&mut self) -> Result<Answered, Failed> {
        loop {
            if self.form == Form::Function && self.held.functions.are_missing() {
                if !self.load().await? {
                    return Ok(None);
                }
                continue;
            }
            let reply = self.send().await;
            match reply
                .as_ref()
                .and_then(|reply| self.other_form(reply.as_ref().err()?))
            {
                Some(form) => self.form = form,
                None => return Ok(reply),
            }
        }
    }

    async fn send(&mut self) -> Answered {
        let Self {
            store,
            outgoing,
            route,
            asking,
            ..
        } = *self;
        let Outgoing {
            links,
            script,
            call,
            ..
        } = outgoing;
        let command = script.in_form(&call.command, self.form);
        let mut connection = self.held.connection.clone();
        // Pinned here: futures are large, and would be copied when they are moved into each other.
        let sending = pin!(store.send(
            &mut connection,
            (&command, call.slot),
            asking,
            &mut self.written
        ));
        let sending = pin!(store.source.unless_switched(self.held.switches, sending));
        store.in_time(&links.runtime, &route.link, sending).await
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

    /// Loads the library, and sets the form in which the call is sent. Returns whether there was a reply in time.
    async fn load(&mut self) -> Result<bool, Failed> {
        self.loads += 1;
        if self.loads > LOADS {
            // The library was flushed again and again, or another library has its name.
            self.held.functions.pause();
            self.store
                .telemetry
                .without_functions("the library is missing after it was loaded");
            self.form = Form::Digest;
            return Ok(true);
        }
        let runtime = &self.outgoing.links.runtime;
        let loading = self
            .store
            .load_library(runtime, self.route, &self.held)
            .await;
        self.form = match loading {
            Some(Loading::Done) => Form::Function,
            Some(Loading::NotNow | Loading::Never) => Form::Digest,
            Some(Loading::Lost) => {
                self.held = self.store.hold(runtime, &self.route.link).await?;
                self.outgoing.script.form(self.held.functions.are_used())
            }
            None => return Ok(false),
        };
        Ok(true)
    }
}

impl RedisStore {
    /// Sends a call; with `asking`, to a node that is importing the slot of its keys. With durability settings, waits
    /// until the call is durable. Returns the reply, and the reason why the call does not count.
    async fn send(
        &self,
        connection: &mut Connection,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
        written: &mut bool,
    ) -> Result<(redis::Value, Option<RedisError>), RedisError> {
        let durability = self.limits.durability;
        if !asking && durability.is_none() {
            return was_written(pin!(connection.send(command)), written)
                .await
                .map(|reply| (reply, None));
        }
        let ask = redis::cmd("ASKING");
        let mut together: Vec<&redis::Cmd> = Vec::from_iter(asking.then_some(&ask));
        together.push(command);
        // `WAIT` only covers the writes of its own connection. A call that finds the lease held writes nothing,
        // although another connection wrote it. So each call is followed by a write.
        let after =
            durability.map(|durability| (limits::mark(command, asking), durability.command()));
        if let Some((mark, wait)) = &after {
            together.extend(asking.then_some(&ask));
            together.extend([mark, wait]);
        }
        let mut replies = was_written(
            pin!(connection.send_together(&together, asking.into())),
            written,
        )
        .await?
        .into_iter();
        let reply = next(&mut replies)?;
        let Some((durability, (_, wait))) = durability.zip(after) else {
            return Ok((reply, None));
        };
        if asking {
            next(&mut replies)?;
        }
        // The call has run, so a later error must not look as if it had not.
        let marked = next(&mut replies);
        let mut acked = next(&mut replies);
        let is_enough = |acked: &redis::Value| durability.check(acked.clone()).is_ok();
        // If the durability check has already failed, waiting for another mark is useless.
        if let Err(error) = marked
            && acked.as_ref().is_ok_and(is_enough)
        {
            let others = self.other_marks(&error, (command, slot), asking);
            acked = mark_again(connection, &others, &wait, error).await;
        }
        let missing = match acked {
            Ok(acked) => durability.check(acked).err(),
            Err(error) => Some(durability.failed(&error)),
        };
        Ok((reply, missing.map(errors::not_durable)))
    }

    /// Returns the writes to try instead of a mark that failed with `error`, and whether each needs `ASKING`.
    fn other_marks(
        &self,
        error: &RedisError,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
    ) -> Vec<(bool, redis::Cmd)> {
        if errors::is_out_of_memory(error) {
            return vec![(asking, limits::mark_when_full(command, asking))];
        }
        // A node that is migrating the slot has the keys of the call, but accepts no new key.
        let is_moving = errors::redirect(error).is_some();
        let beside = is_moving
            .then(|| self.marks_beside(slot))
            .into_iter()
            .flatten();
        beside.map(|mark| (false, mark)).collect()
    }

    /// Returns writes to other slots on the master of a slot: only a few, since these slots may be migrating too.
    fn marks_beside(&self, slot: Option<u16>) -> Vec<redis::Cmd> {
        let prefix = format!("{}:", self.base.prefix);
        let master = self.source.master(slot);
        slots::prefixes(&prefix)
            .filter(|(_, other)| Some(*other) != slot && self.source.master(Some(*other)) == master)
            .map(|(prefix, _)| limits::mark_at(prefix.as_bytes(), "wait"))
            .take(3)
            .collect()
    }
}

/// Writes another mark after one that failed with `error`, and waits until it is durable. It tries `others` one after
/// the other.
async fn mark_again(
    connection: &mut Connection,
    others: &[(bool, redis::Cmd)],
    wait: &redis::Cmd,
    error: RedisError,
) -> Result<redis::Value, RedisError> {
    let ask = redis::cmd("ASKING");
    let mut acked = Err(error);
    for (asking, mark) in others {
        let again: Vec<_> = asking
            .then_some(&ask)
            .into_iter()
            .chain([mark, wait])
            .collect();
        let replies = connection.send_together(&again, (*asking).into()).await;
        acked = replies.and_then(|replies| acked_by(&mut replies.into_iter()));
        if acked.is_ok() {
            break;
        }
    }
    acked
}

/// Takes the reply to a mark, and returns the reply to the wait for it.
fn acked_by(replies: &mut impl Iterator<Item = redis::Value>) -> Result<redis::Value, RedisError> {
    next(replies)?;
    next(replies)
}

/// Takes the next reply of several calls.
fn next(replies: &mut impl Iterator<Item = redis::Value>) -> Result<redis::Value, RedisError> {
    match replies.next() {
        Some(redis::Value::ServerError(error)) => Err(RedisError::from(error)),
        reply => Ok(reply.unwrap_or(redis::Value::Nil)),
    }
}

/// Awaits a reply. Sets `written` to whether anything was probably written: a connection that has ended fails at once,
/// without writing. It is only probable, because the thread may have been suspended during the first poll, while the
/// call ran and then the connection ended.
pub(super) async fn was_written<T>(
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

impl RedisStore {
    /// Loads the library on the server of a connection, in a separate task: callers share it, and none of them waits
    /// for the future of another. `None`: there was no reply in time.
    async fn load_library(
        &self,
        runtime: &Handle,
        route: &Route,
        held: &Arc<Ready>,
    ) -> Option<Loading> {
        let mut loading = {
            let mut loading = lock(&held.functions.loading);
            loading
                .get_or_insert_with(|| self.begin_to_load(runtime, route, held))
                .clone()
        };
        let ended = async {
            loading
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|ended| *ended)
        };
        // If the channel closes, the task was dropped with its runtime.
        self.in_time(runtime, &route.link, pin!(ended))
            .await
            .map(|ended| ended.unwrap_or(Loading::Lost))
    }

    fn begin_to_load(
        &self,
        runtime: &Handle,
        route: &Route,
        held: &Arc<Ready>,
    ) -> watch::Receiver<Option<Loading>> {
        let (done, loading) = watch::channel(None);
        let held = Arc::clone(held);
        let link = Arc::clone(&route.link);
        let mut connection = held.connection.clone();
        let address = self.source.address_in_pool(route.master);
        let limit = self.limits.timeout;
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.library.text);
        let telemetry = self.telemetry.clone();
        runtime.spawn(async move {
            let loaded = timeout(limit, connection.send_at(address, &load)).await;
            // A later call that does not find the library loads it again.
            *lock(&held.functions.loading) = None;
            let why = loaded
                .as_ref()
                .ok()
                .and_then(|loaded| loaded.as_ref().err().map(ToString::to_string));
            let ended = match loaded {
                Ok(Ok(_)) => Loading::Done,
                Ok(Err(error)) => functions::ended(error),
                Err(_) => Loading::NotNow,
            };
            match ended {
                Loading::Done => held.functions.found(),
                Loading::NotNow => held.functions.pause(),
                Loading::Never => held.functions.forbid(),
                Loading::Lost => link.close(Some(&held)),
            }
            if link.has_refused_to_load(ended) {
                telemetry.without_functions(&why.unwrap_or_default());
            }
            done.send_replace(Some(ended));
        });
        loading
    }
}

#[cfg(test)]
#[cfg(feature = "cluster")]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn an_error_of_the_mark_or_of_the_wait_is_one_of_the_call() {
        let error = || match redis::parse_redis_value(b"-ERR x\r\n") {
            Ok(error @ Value::ServerError(_)) => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            acked_by(&mut [Value::Okay, Value::Int(2)].into_iter()).unwrap(),
            Value::Int(2)
        );
        assert!(acked_by(&mut [error(), Value::Int(2)].into_iter()).is_err());
        assert!(acked_by(&mut [Value::Okay, error()].into_iter()).is_err());
    }
}
