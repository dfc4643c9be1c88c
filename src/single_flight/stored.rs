//! Operations on stored answers outside of flights: reading their state, and removing them.

use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::lease::key_state::KeyState;
use crate::lease::kind::Kind;
use crate::single_flight::answer::{Flight, StoredAnswer, fresh_for};
use crate::single_flight::cache::message;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::notifier::ALL;
use crate::store::operation::{
    Arguments, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

type State = KeyState<<Flight as Kind>::Holders>;

/// The length of the prefix of a stored answer that is read: enough for its times and the name of its codec.
const BEGINNING: i64 = 512;

/// Reads the state of the answer to a key.
#[derive(Debug)]
struct Look;

/// Returns the state of the answer to a key.
pub(crate) async fn look(
    namespace: &Namespace<State>,
    key: Key,
) -> Result<Option<StoredAnswer>, Error> {
    namespace.client().run(key, Look).await
}

/// Removes the answer to a key, and notifies all processes, which drop it from their local caches.
pub(crate) async fn forget(
    store: &Store,
    namespace: &Namespace<State>,
    (name, key): (&str, Key),
) -> Result<(), Error> {
    let message = message(name, &key);
    let channel = [&*store.channels(), ALL].concat().into();
    let forgotten = namespace
        .client()
        .run(
            key,
            Forget {
                channel,
                message: Arc::clone(&message),
            },
        )
        .await;
    // The local cache of this process is cleared even if the store failed. The in-memory store has no other processes
    // to notify.
    store.notifier().broadcast(&message);
    forgotten
}

/// Reads `entered fresh stale codec bytes`.
fn read(beginning: &[u8], length: i64, ttl: i64, now: i64) -> Option<StoredAnswer> {
    let mut parts = beginning.splitn(5, |byte| *byte == b' ');
    let mut next = || std::str::from_utf8(parts.next()?).ok();
    let times = [next()?, next()?, next()?];
    let codec = next()?;
    let head = times.iter().map(|time| time.len() + 1).sum::<usize>() + codec.len() + 1;
    parts.next()?;
    let bytes = usize::try_from(length).ok()?.checked_sub(head)?;
    let [Ok(entered), Ok(fresh), Ok(_)] = times.map(str::parse::<i64>) else {
        return None;
    };
    Some(StoredAnswer::new(
        fresh_for(entered, fresh, now),
        ttl,
        Some(codec.into()),
        bytes,
    ))
}

impl Operation for Look {
    type Cell = State;
    type Reply = Option<StoredAnswer>;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "look_at_answer"; &["mutex", "answer"]);
    const PARTS: &'static [&'static str] = Flight::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(BEGINNING);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let length = fields.integer()?;
        let ttl = fields.integer()?.saturating_mul(1000);
        let Field::Text(beginning) = fields.next()? else {
            return Err(Garbled("an answer is not a text"));
        };
        match length {
            -1 => Err(Garbled(
                "WRONGTYPE the key of an answer has a value of another type: delete the key",
            )),
            0 => Ok(None),
            // The name of the codec is very long, or another program wrote the answer.
            _ => Ok(Some(read(beginning, length, ttl, now).unwrap_or_else(
                || StoredAnswer::new(0, ttl, None, usize::try_from(length).unwrap_or(0)),
            ))),
        }
    }

    fn apply(self, state: &mut State, now: i64) -> Self::Reply {
        state.holders.outcome.look(now)
    }
}

/// The operation that removes an answer.
#[derive(Debug)]
pub(super) struct Forget {
    /// The channel of all processes, and the message to publish there.
    pub(super) channel: Arc<str>,
    pub(super) message: Arc<[u8]>,
}

impl Operation for Forget {
    type Cell = State;
    type Reply = ();
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "forget_answer"; &["mutex", "answer"]);
    // Uses the connection of the publications, so that it does not overtake one that was sent before.
    const BULK: bool = true;
    const PARTS: &'static [&'static str] = Flight::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.channel));
        call.bytes(Arc::clone(&self.message));
    }

    fn decode(self, _: usize, _: i64, _: Fields<'_>) -> Result<(), Garbled> {
        Ok(())
    }

    fn apply(self, state: &mut Self::Cell, _: i64) {
        state.holders.outcome = Default::default();
    }
}
