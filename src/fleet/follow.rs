//! Follows a setting: by messages of the processes that change it, and by reading the store from time to time.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::fleet::operations::{NOT_RECOGNISED, Read, Set, SetReply, Stored, not_recognised};
use crate::fleet::value::{Hook, Sealed};
use crate::fleet::version::SettingVersion;
use crate::key::Key;
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::notifier::{ALL, Link, Listener};
use crate::store::scheduler::{PeriodicTask, Signal};
use crate::sync::lock;
use crate::telemetry::Event;
use crate::telemetry::emit::tell;

/// How often the store is read while messages arrive.
const EVERY: Duration = Duration::from_secs(30);

/// The interval after which the store is read again after a failure, and while no messages arrive.
const SOON: Duration = Duration::from_secs(1);

/// The state of a setting in this process. All handles of the name share it.
pub(super) struct Follower<T: Sealed> {
    name: Box<str>,
    store: Store,
    read: Client<Read<T>>,
    set: Client<Set<T>>,
    channel: Arc<str>,
    /// The beginning of the messages about this setting. The added version follows.
    message: Arc<str>,
    hook: Option<Hook<T>>,
    /// The last value that could be parsed; `None`: the default of each handle applies. Written under the lock of
    /// `state`.
    value: RwLock<Option<T>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last version in the store, as far as this process knows.
    last: Option<SettingVersion>,
    /// Whether the store has replied.
    is_known: bool,
    /// Whether the stored value is unusable, and this was reported.
    is_told: bool,
    /// The number of changes of `last`.
    changes: u64,
    /// Whether a background read is in flight, and whether another one must follow.
    is_reading: bool,
    again: bool,
    /// When the store is read next; `None` if this setting is not followed by reading.
    due: Option<Instant>,
    /// Replaces [`EVERY`] in tests.
    every: Option<Duration>,
}

/// An event to emit when no lock is held.
type Told = Option<(Event, String)>;

impl<T: Sealed> Follower<T> {
    /// Returns the follower that all handles of a name share, and starts to follow the setting.
    pub(super) fn open(store: &Store, name: &str) -> Result<Arc<Self>, Error> {
        let namespace = Namespace::new(store, name)?;
        // Before the names are locked, since the hook registers a name of its own.
        let hook = T::hook(store, name);
        let follower = store.shared(name, || {
            let follower = Arc::new(Self {
                name: name.into(),
                store: store.clone(),
                read: namespace.client(),
                set: namespace.client(),
                channel: [&*store.channels(), ALL].concat().into(),
                message: format!("{}\n{name}\n", T::PARTS.concat()).into(),
                hook,
                value: RwLock::default(),
                state: Mutex::default(),
            });
            store.notifier().listen(&follower);
            store.scheduler().join(&follower);
            follower
        });
        follower.follow();
        Ok(follower)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value that applies, without I/O; `None`: the default.
    pub(super) fn value(&self) -> Option<T> {
        self.value
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the number of the last known version; 0 if there is none.
    pub(super) fn number(&self) -> u64 {
        lock(&self.state)
            .last
            .as_ref()
            .map_or(0, |last| last.number)
    }

    /// Starts to follow the setting, unless it is already followed.
    fn follow(self: &Arc<Self>) {
        self.store.subscribe();
        // In memory no message is missed: all handles are in this process.
        if !self.store.is_in_memory() {
            let next = Instant::now() + SOON;
            if *lock(&self.state).due.get_or_insert(next) != next {
                return;
            }
            self.store.scheduler().schedule(next);
        }
        self.poll(false);
    }

    /// Reads the store in the background; in memory at once. `again`: if a read is in flight, reads again after it.
    fn poll(self: &Arc<Self>, again: bool) {
        let seen = {
            let mut state = lock(&self.state);
            if let Some(due) = &mut state.due {
                *due = Instant::now() + SOON;
            }
            if state.is_reading {
                state.again |= again;
                return;
            }
            state.is_reading = true;
            state.changes
        };
        let this = Arc::downgrade(self);
        self.read
            .send(None, Key::from(""), Read::last(), move |answer| {
                if let Some(this) = this.upgrade() {
                    this.polled(seen, answer);
                }
            });
    }

    fn polled(self: &Arc<Self>, seen: u64, answer: Result<Stored, Error>) {
        let is_away = answer.as_ref().is_err_and(Error::is_away);
        let no_pushes = self.store.notifier().current_link() == Link::Down;
        // Before an event is emitted: its receivers are code of the user, and may panic.
        let (again, due) = {
            let mut state = lock(&self.state);
            state.is_reading = false;
            let pause = if is_away || no_pushes {
                SOON
            } else {
                state.every.unwrap_or(EVERY)
            };
            state.due = state.due.map(|_| Instant::now() + pause);
            (std::mem::take(&mut state.again), state.due)
        };
        if let Some(due) = due {
            self.store.scheduler().schedule(due);
        }
        if again {
            self.poll(false);
        }
        match answer {
            Ok(stored) => self.learn(seen, &stored),
            Err(error) if error.is_wrong_type() => self.ignore(&error.to_string()),
            Err(_) => {}
        }
    }

    /// Reads the store for a caller.
    pub(super) async fn read(
        self: &Arc<Self>,
        read: Read<T>,
    ) -> Result<Vec<SettingVersion>, Error> {
        self.follow();
        let seen = lock(&self.state).changes;
        let stored = self.read.run(Key::from(""), read).await?;
        self.learn(seen, &stored);
        stored.recognised()
    }

    /// Returns the number of the last version. Reads it first if it is not known.
    pub(super) async fn known(self: &Arc<Self>) -> Result<u64, Error> {
        let is_known = lock(&self.state).is_known;
        if !is_known {
            self.read(Read::last()).await?;
        }
        Ok(self.number())
    }

    /// Adds a version after the one with the number `expected`. `value`: `None` restores the value of the version
    /// before.
    pub(super) async fn change(
        self: &Arc<Self>,
        expected: u64,
        value: Option<&str>,
        who: &str,
    ) -> Result<SettingVersion, Error> {
        self.follow();
        let seen = lock(&self.state).changes;
        let set = Set::new(expected, value, who, (&self.channel, &self.message));
        match self.set.run(Key::from(""), set).await? {
            SetReply::Added(version) => {
                self.learn(
                    seen,
                    &Stored {
                        versions: vec![version.clone()],
                        is_recognised: true,
                    },
                );
                Ok(version)
            }
            SetReply::Found(found) => {
                // Read now, since the caller's next call needs the found version. If this read fails, that call would
                // fail too.
                let _ = self.read(Read::last()).await;
                let found = found.map_or_else(
                    || "none was found: what was stored is lost".to_owned(),
                    |found| format!("version {} was found, set by {:?}", found.number, found.who),
                );
                let text = format!(
                    "{} {:?}: version {expected} was expected, and {found}",
                    T::NAME,
                    self.name
                );
                Err(Error::conflict(text))
            }
            SetReply::NotRecognised => Err(not_recognised()),
        }
    }

    /// Stores the versions that were read, unless a newer version arrived meanwhile. `seen`: the number of changes
    /// before the read was sent.
    pub(super) fn learn(&self, seen: u64, stored: &Stored) {
        if !stored.is_recognised {
            return self.ignore(NOT_RECOGNISED);
        }
        let last = stored.versions.first();
        let told = {
            let mut state = lock(&self.state);
            state.is_known = true;
            let is_newer = last.is_some_and(|last| state.is_older_than(last));
            if state.changes != seen && !is_newer {
                return;
            }
            match last {
                Some(last) if state.last.as_ref() == Some(last) => None,
                Some(last) => self.take_over(&mut state, last),
                None => state.lose(),
            }
        };
        self.tell(told);
    }

    /// Stores a version that was added, unless a newer one is known.
    pub(super) fn hear_of(&self, version: &SettingVersion) {
        let mut state = lock(&self.state);
        let told = state
            .is_older_than(version)
            .then(|| self.take_over(&mut state, version));
        drop(state);
        self.tell(told.flatten());
    }

    fn take_over(&self, state: &mut State, version: &SettingVersion) -> Told {
        state.is_known = true;
        state.changes += 1;
        state.last = Some(version.clone());
        let value = match version.text.as_deref().map(T::parse).transpose() {
            Ok(value) => value,
            Err(error) => {
                state.is_told = false;
                return state.unusable(format_args!(
                    "version {} cannot be read: {error}",
                    version.number
                ));
            }
        };
        state.is_told = false;
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = value;
        let text = version.text.as_deref().unwrap_or("the default");
        Some((
            Event::SettingChanged,
            format!("{}: version {}: {text}", T::NAME, version.number),
        ))
    }

    /// Keeps the last known value, because the stored one cannot be used.
    fn ignore(&self, why: &str) {
        let told = lock(&self.state).unusable(why);
        self.tell(told);
    }

    fn tell(&self, told: Told) {
        if let Some((event, text)) = told {
            if let (Event::SettingChanged, Some(hook)) = (&event, &self.hook) {
                let at = lock(&self.state)
                    .last
                    .as_ref()
                    .map_or(0, SettingVersion::micros);
                hook(at, self.value());
            }
            tell(&self.name, event, text);
        }
    }
}

#[cfg(test)]
impl<T: Sealed> Follower<T> {
    pub(super) fn poll_every(self: &Arc<Self>, every: Duration) {
        lock(&self.state).every = Some(every);
        self.poll(true);
    }

    pub(super) fn changes(&self) -> u64 {
        lock(&self.state).changes
    }

    pub(super) fn is_followed(&self) -> bool {
        lock(&self.state).due.is_some()
    }
}

impl State {
    fn is_older_than(&self, version: &SettingVersion) -> bool {
        self.last.as_ref().is_none_or(|last| last.at < version.at)
    }

    /// Records that nothing is stored. The value stays, but a process that starts now uses its default.
    fn lose(&mut self) -> Told {
        self.last.take()?;
        self.changes += 1;
        self.unusable("nothing is stored any more")
    }

    /// Returns, only once, the event that the stored value cannot be used.
    fn unusable(&mut self, why: impl std::fmt::Display) -> Told {
        let was_told = std::mem::replace(&mut self.is_told, true);
        let text = || format!("{why}: the last known value stays in force");
        (!was_told).then(|| (Event::SettingIgnored, text()))
    }
}

impl<T: Sealed> Listener for Follower<T> {
    fn hear(&self, message: &[u8]) {
        let version = message
            .strip_prefix(self.message.as_bytes())
            .and_then(SettingVersion::parse);
        if let Some(version) = version {
            self.hear_of(&version);
        }
    }
}

impl<T: Sealed> PeriodicTask for Follower<T> {
    fn due(&self) -> Option<Instant> {
        lock(&self.state).due
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        match signal {
            Signal::Due => self.poll(false),
            // A read in flight may have run before the change whose message was missed.
            Signal::Relinked => self.poll(true),
            Signal::Hurry => {}
            Signal::ShutDown => lock(&self.state).due = None,
        }
    }
}

/// Lets the scheduler's task end, and resets the hook: its value is out of date from now on.
impl<T: Sealed> Drop for Follower<T> {
    fn drop(&mut self) {
        if let Some(hook) = &self.hook {
            hook(0, None);
        }
        self.store.scheduler().look_again();
    }
}

debug!(Follower<T: Sealed>, name, state);
