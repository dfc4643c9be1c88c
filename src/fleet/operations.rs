//! The operations on a setting: read its versions, and add one.

use std::marker::PhantomData;
use std::sync::Arc;

use derive_where::derive_where;

use crate::clock;
use crate::error::Error;
use crate::error::reasons::Cause;
use crate::fleet::value::Sealed;
use crate::fleet::version::{LAST, SettingVersion, id, value, written};
use crate::key::Key;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::operation::{
    Arguments, Cell, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The number of versions that are kept.
pub(crate) const KEPT: usize = 10;

const WRONG_TYPE: Garbled = Garbled(
    "WRONGTYPE the key of a setting has a value of another type: delete the key, or choose another name",
);

pub(super) const NOT_RECOGNISED: &str =
    "the last version of the setting has a form that this version of the crate does not read";

/// The stored versions of a setting, the oldest first, in the form of Redis.
#[derive_where(Clone, Default)]
pub(crate) struct Versions<T> {
    pub(super) stored: Vec<Arc<[u8]>>,
    of: PhantomData<fn(T)>,
}

impl<T: Sealed> Cell for Versions<T> {
    fn is_idle(&self, _: i64) -> bool {
        self.stored.is_empty()
    }

    /// At most [`KEPT`] versions.
    fn heap_bytes(&self) -> usize {
        self.stored.iter().map(|version| version.len()).sum()
    }
}

pub(super) fn not_recognised() -> Error {
    Error::unavailable(Cause::WrongType, NOT_RECOGNISED)
}

/// Reads the last versions.
#[derive_where(Debug)]
pub(crate) struct Read<T> {
    most: usize,
    of: PhantomData<fn(T)>,
}

/// The result of [`Read`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    /// The versions that are recognised, the newest first.
    pub(crate) versions: Vec<SettingVersion>,
    /// Whether the last version is recognised, or there is none.
    pub(crate) is_recognised: bool,
}

impl Stored {
    /// Parses the stored versions, the oldest first.
    fn of<'a>(stored: impl DoubleEndedIterator<Item = &'a [u8]>) -> Self {
        let mut versions = stored.rev().map(SettingVersion::parse).peekable();
        let is_recognised = versions.peek().is_none_or(Option::is_some);
        Self {
            is_recognised,
            versions: versions.flatten().collect(),
        }
    }

    /// Returns the versions, unless the last one is not recognised.
    pub(super) fn recognised(self) -> Result<Vec<SettingVersion>, Error> {
        if self.is_recognised {
            Ok(self.versions)
        } else {
            Err(not_recognised())
        }
    }
}

impl<T> Read<T> {
    pub(crate) fn all() -> Self {
        Self {
            most: KEPT,
            of: PhantomData,
        }
    }

    pub(super) fn last() -> Self {
        Self {
            most: 1,
            of: PhantomData,
        }
    }
}

impl<T: Sealed> Operation for Read<T> {
    type Cell = Versions<T>;
    type Reply = Stored;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "read_setting"; &["fleet"]);
    const PARTS: &'static [&'static str] = T::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.most as i64);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Stored, Garbled> {
        if fields.integer()? < 0 {
            return Err(WRONG_TYPE);
        }
        let (mut list, mut stored) = (fields.list()?, Vec::new());
        while let Ok(version) = list.next() {
            let Field::Text(version) = version else {
                return Err(Garbled("a version is not a text"));
            };
            stored.push(version);
        }
        Ok(Stored::of(stored.into_iter()))
    }

    fn apply(self, versions: &mut Versions<T>, _: i64) -> Stored {
        let stored = &versions.stored;
        Stored::of(
            stored[stored.len().saturating_sub(self.most)..]
                .iter()
                .map(|version| &**version),
        )
    }
}

/// Returns the last versions of a setting, the newest first.
pub(crate) async fn look<T: Sealed>(
    store: &Store,
    name: &str,
) -> Result<Vec<SettingVersion>, Error> {
    let read = Namespace::open(store, name)
        .client()
        .run(Key::from(""), Read::<T>::all());
    read.await?.recognised()
}

/// Adds a version if the last one is the expected one.
#[derive_where(Debug)]
pub(super) struct Set<T> {
    expected: i64,
    id: Arc<str>,
    who: Arc<str>,
    /// `+text`; empty: the value of the version before the last.
    value: Arc<str>,
    /// The channel of all processes, and the beginning of the message to publish there.
    channel: Arc<str>,
    message: Arc<str>,
    of: PhantomData<fn(T)>,
}

/// The outcome of a [`Set`].
#[derive(Debug, PartialEq)]
pub(super) enum SetReply {
    Added(SettingVersion),
    /// The last version was not the expected one.
    Found(Option<SettingVersion>),
    NotRecognised,
}

impl<T> Set<T> {
    /// `value`: `None` restores the value of the version before the last.
    pub(super) fn new(
        expected: u64,
        value: Option<&str>,
        who: &str,
        (channel, message): (&Arc<str>, &Arc<str>),
    ) -> Self {
        Self {
            expected: i64::try_from(expected).unwrap_or(i64::MAX),
            id: format!("{:016x}", clock::bits()).into(),
            who: who.into(),
            value: value.map_or_else(Default::default, |text| format!("+{text}").into()),
            channel: Arc::clone(channel),
            message: Arc::clone(message),
            of: PhantomData,
        }
    }
}

#[cfg(test)]
impl<T> Set<T> {
    pub(super) fn with_id(self, id: &str) -> Self {
        Self {
            id: id.into(),
            ..self
        }
    }
}

impl<T: Sealed> Operation for Set<T> {
    type Cell = Versions<T>;
    type Reply = SetReply;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "set_setting"; &["fleet"]);
    const PARTS: &'static [&'static str] = T::PARTS;
    // A second copy finds the version that the first has added, by its id.
    const REPEAT: Repeat = Repeat::Safe;

    fn payload(&self) -> usize {
        self.value.len() + self.who.len()
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.expected);
        call.text(Arc::clone(&self.id));
        call.text(Arc::clone(&self.who));
        call.text(Arc::clone(&self.value));
        call.integer(KEPT as i64);
        call.text(Arc::clone(&self.channel));
        call.text(Arc::clone(&self.message));
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<SetReply, Garbled> {
        let code = fields.integer()?;
        let Field::Text(version) = fields.next()? else {
            return Err(Garbled("a version is not a text"));
        };
        let version = SettingVersion::parse(version);
        match code {
            1 => Ok(SetReply::Added(
                version.ok_or(Garbled("the added version is not recognised"))?,
            )),
            0 => Ok(SetReply::Found(version)),
            -2 => Ok(SetReply::NotRecognised),
            _ => Err(WRONG_TYPE),
        }
    }

    fn apply(self, versions: &mut Versions<T>, now: i64) -> SetReply {
        let stored = &mut versions.stored;
        let added = |version: &[u8]| {
            SettingVersion::parse(version).map_or(SetReply::NotRecognised, SetReply::Added)
        };
        let kept = stored.len().saturating_sub(KEPT);
        if let Some(version) = stored[kept..]
            .iter()
            .find(|version| id(version) == Some(&self.id))
        {
            return added(version);
        }
        let last = stored.last().map(|last| SettingVersion::parse(last));
        let (number, at) = match &last {
            None => (0, 0),
            Some(Some(last)) if last.number < LAST && last.micros() < LAST => {
                (last.number, last.micros())
            }
            Some(_) => return SetReply::NotRecognised,
        };
        if i64::try_from(number) != Ok(self.expected) {
            return SetReply::Found(last.flatten());
        }
        let before = || {
            stored.iter().rev().nth(1).map_or(Some("-"), |before| {
                SettingVersion::parse(before).and(value(before))
            })
        };
        let value = if self.value.is_empty() {
            before()
        } else {
            Some(&*self.value)
        };
        let Some(value) = value else {
            return SetReply::NotRecognised;
        };
        let at = u64::try_from(now).unwrap_or(0).max(at + 1);
        let version = written(number + 1, at, &self.id, &self.who, value);
        let reply = added(&version);
        stored.push(version);
        stored.drain(..stored.len().saturating_sub(KEPT));
        reply
    }
}
