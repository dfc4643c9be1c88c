//! One call on its way to one server: as a function, whose library may have to be loaded first, or as a script.

use std::pin::pin;
use std::sync::Arc;

use redis::{self, RedisError};
use tokio::runtime::Handle;

use super::call::Failed;
use super::functions::{self, Loading};
use super::link::{Link, Ready};
use super::plan::Call;
use super::script::Form;
use super::{Loaded, RedisStore, failure};

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
            Form::Function if failure::refuses_writes(error) => return Some(Form::Digest),
            Form::Digest if failure::is_no_script(error) => return Some(Form::Full),
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
