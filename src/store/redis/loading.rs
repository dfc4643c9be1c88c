//! Loads the library on a server that does not have it, for the calls that need it.

use std::pin::pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::store::redis::call::{Attempt, Failed};
use crate::store::redis::command::Form;
use crate::store::redis::functions::Loading;
use crate::store::redis::link::{Ready, Route};
use crate::store::redis::{RedisStore, functions};
use crate::sync::lock;

/// How often the library is loaded for one call: it is loaded again if it was flushed meanwhile, or the connection was
/// lost. After that the call is sent as a script.
const LOADS: usize = 3;

impl Attempt<'_> {
    /// Loads the library, and sets the form in which the call is sent. Returns whether there was a reply in time.
    pub(super) async fn load(&mut self) -> Result<bool, Failed> {
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
