//! One attempt of a call, at one server: as a function, whose library may have to be loaded first, or as a script. If that is
//! set, it waits until the call is durable.

use std::pin::pin;
use std::sync::Arc;

use redis::{self, RedisError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::RedisStore;
use super::batch::Call;
use super::call::noting;
use super::connection::Connection;
use super::functions::{self, Loading};
use super::library::{Form, Loaded};
use super::link::{Link, Ready};
use super::retry::Failed;
use super::{errors, slots};
use crate::store::durability;
use crate::sync::lock;

/// How often the library is loaded for one call: again if it is flushed meanwhile, or the connection is lost. After that the
/// call goes as a script.
const LOADS: usize = 3;

/// A call on its way to one server.
pub(super) struct Attempt<'a> {
    store: &'a RedisStore,
    runtime: &'a Handle,
    link: &'a Arc<Link>,
    script: &'a Loaded,
    call: &'a Call,
    /// The number of the master.
    master: usize,
    /// Whether the server is only getting the slot.
    asking: bool,
    pub(super) held: Arc<Ready>,
    /// How the call is sent next.
    pub(super) form: Form,
    /// How often the library was loaded for it.
    loads: usize,
    /// Whether anything was probably written.
    pub(super) written: bool,
}

/// What a server has answered, and why the call does not count; `None`: nothing in time.
pub(super) type Answered = Option<Result<(redis::Value, Option<RedisError>), RedisError>>;

impl<'a> Attempt<'a> {
    /// Connects, if there is no connection. `to`: the number of the master, and whether it is only getting the slot.
    pub(super) async fn begin(
        store: &'a RedisStore,
        runtime: &'a Handle,
        link: &'a Arc<Link>,
        script: &'a Loaded,
        call: &'a Call,
        to: (usize, bool),
    ) -> Result<Self, Failed> {
        let held = store.hold(runtime, link).await?;
        let form = script.form(held.functions.are_used());
        let (master, asking) = to;
        Ok(Self {
            store,
            runtime,
            link,
            script,
            call,
            master,
            asking,
            held,
            form,
            loads: 0,
            written: true,
        })
    }

    pub(super) async fn reply(&mut self) -> Result<Answered, Failed> {
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
            runtime,
            link,
            call,
            asking,
            ..
        } = *self;
        let command = self.script.in_form(&call.command, self.form);
        let (mut connection, since) = (self.held.connection.clone(), self.held.switches);
        // Futures are large, and would be copied on their way into each other.
        let sending = pin!(store.send(
            &mut connection,
            (&command, call.slot),
            asking,
            &mut self.written
        ));
        let sending = pin!(store.source.unless_switched(since, sending));
        store.in_time(runtime, link, sending).await
    }

    /// In which other form the call is sent after this error, if so. It has not run.
    fn other_form(&self, error: &RedisError) -> Option<Form> {
        match self.form {
            Form::Function if functions::is_unknown(error) => self.held.functions.miss(),
            Form::Function if functions::are_refused(error) => {
                self.held.functions.forbid();
                self.store.telemetry.without_functions(&error.to_string());
                return Some(Form::Digest);
            }
            // A function is refused as a whole, also where it would write nothing, or at OOM only free.
            Form::Function if errors::refuses_writes(error) => return Some(Form::Digest),
            Form::Digest if errors::is_no_script(error) => return Some(Form::Full),
            _ => return None,
        }
        Some(Form::Function)
    }

    /// Loads the library, and sets the form to send the call in. Returns whether there was an answer in time.
    async fn load(&mut self) -> Result<bool, Failed> {
        self.loads += 1;
        if self.loads > LOADS {
            // It was flushed again and again, or another library has its name.
            self.held.functions.pause();
            self.store
                .telemetry
                .without_functions("the library is missing after it was loaded");
            self.form = Form::Digest;
            return Ok(true);
        }
        let loading = self
            .store
            .load_library(self.runtime, self.link, &self.held, self.master)
            .await;
        self.form = match loading {
            Some(Loading::Done) => Form::Function,
            Some(Loading::NotNow | Loading::Never) => Form::Digest,
            Some(Loading::Lost) => {
                self.held = self.store.hold(self.runtime, self.link).await?;
                self.script.form(self.held.functions.are_used())
            }
            None => return Ok(false),
        };
        Ok(true)
    }
}

impl RedisStore {
    /// Loads the library on the server of a connection, in a task of its own: callers share it, and none waits for the future
    /// of another. `None`: there was no answer in time.
    pub(super) async fn load_library(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
        held: &Arc<Ready>,
        master: usize,
    ) -> Option<Loading> {
        let mut loading = {
            let mut loading = lock(&held.functions.loading);
            loading
                .get_or_insert_with(|| self.begin_to_load(runtime, link, held, master))
                .clone()
        };
        let ended = async {
            loading
                .wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|ended| *ended)
        };
        // Without an end, the task was dropped with its runtime.
        self.in_time(runtime, link, pin!(ended))
            .await
            .map(|ended| ended.unwrap_or(Loading::Lost))
    }

    fn begin_to_load(
        &self,
        runtime: &Handle,
        link: &Arc<Link>,
        held: &Arc<Ready>,
        master: usize,
    ) -> watch::Receiver<Option<Loading>> {
        let (done, loading) = watch::channel(None);
        let (held, link, mut connection) =
            (Arc::clone(held), Arc::clone(link), held.connection.clone());
        let (address, limit) = (self.source.address_in_pool(master), self.limits.timeout);
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.library.text);
        let telemetry = self.telemetry.clone();
        runtime.spawn(async move {
            let loaded = timeout(limit, connection.send_at(address, &load)).await;
            // A call that misses the library later loads it again.
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

impl RedisStore {
    /// Sends a call; with `asking`, to a node that is getting the slot of its keys. If that is set, waits until it is
    /// durable. Returns the reply, and why the call does not count.
    pub(super) async fn send(
        &self,
        connection: &mut Connection,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
        written: &mut bool,
    ) -> Result<(redis::Value, Option<RedisError>), RedisError> {
        let durability = self.limits.durability;
        if !asking && durability.is_none() {
            return noting(pin!(connection.send(command)), written)
                .await
                .map(|reply| (reply, None));
        }
        let ask = redis::cmd("ASKING");
        let mut together: Vec<&redis::Cmd> = Vec::from_iter(asking.then_some(&ask));
        together.push(command);
        // WAIT is for what its connection has written. A call that finds the lease held writes nothing, although another
        // connection wrote it. So each call is followed by a write.
        let after =
            durability.map(|durability| (durability::mark(command, asking), durability.command()));
        if let Some((mark, wait)) = &after {
            together.extend(asking.then_some(&ask));
            together.extend([mark, wait]);
        }
        let mut replies = noting(
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
        // The call has run, so an error from here on must not look as if it had not.
        let (marked, mut acked) = (next(&mut replies), next(&mut replies));
        let is_enough = |acked: &redis::Value| durability.check(acked.clone()).is_ok();
        // Who has waited in vain for less need not wait for more.
        if let Err(error) = marked
            && acked.as_ref().is_ok_and(is_enough)
        {
            let others = self.other_marks(&error, (command, slot), asking);
            acked = Err(error);
            for (asking, mark) in others {
                let again: Vec<_> = asking
                    .then_some(&ask)
                    .into_iter()
                    .chain([&mark, &wait])
                    .collect();
                let replies = connection.send_together(&again, asking.into()).await;
                acked = replies.and_then(|replies| acked_by(&mut replies.into_iter()));
                if acked.is_ok() {
                    break;
                }
            }
        }
        let missing = match acked {
            Ok(acked) => durability.check(acked).err(),
            Err(error) => Some(durability.failed(&error)),
        };
        Ok((reply, missing.map(errors::not_durable)))
    }

    /// What is to be written instead of a mark that failed so, and whether that has to ask first.
    fn other_marks(
        &self,
        error: &RedisError,
        (command, slot): (&redis::Cmd, Option<u16>),
        asking: bool,
    ) -> Vec<(bool, redis::Cmd)> {
        if errors::is_out_of_memory(error) {
            return vec![(asking, durability::mark_when_full(command, asking))];
        }
        // A node that passes on the slot has the keys of the call, but takes no new one.
        let is_moving = errors::redirect(error).is_some();
        let beside = is_moving
            .then(|| self.marks_beside(slot))
            .into_iter()
            .flatten();
        beside.map(|mark| (false, mark)).collect()
    }

    /// Writes to other slots of the master of a slot: few, since these may be on their way too.
    fn marks_beside(&self, slot: Option<u16>) -> Vec<redis::Cmd> {
        let prefix = format!("{}:", self.base.prefix);
        let master = self.source.master(slot);
        slots::prefixes(&prefix)
            .filter(|(_, other)| Some(*other) != slot && self.source.master(Some(*other)) == master)
            .map(|(prefix, _)| durability::mark_at(prefix.as_bytes(), "wait"))
            .take(3)
            .collect()
    }
}

/// Takes the replies to a mark, and to the wait for it.
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
