//! The holders of a key, for monitoring: [`Snapshot`] and [`Holder`], and the operations that read them and revoke a
//! lease.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::lease::key_state::{Spans, TokenState};
use crate::lease::kind::{Kind, LEASES, Outcome as _};
use crate::lease::operations::{StateOf, WRONG_TYPE};
use crate::lease::options::spans;
use crate::lease::token;
use crate::lease::token::Token;
use crate::store::Store;
use crate::store::client::Namespace;
use crate::store::notifier::{Push, PushKind};
use crate::store::operation::{
    Arguments, Field, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The maximum number of holders in a snapshot.
const MOST_HOLDERS: i64 = 1000;

/// The holders and waiters of a key at one moment.
///
/// ```
/// use tower_distributed::{Store, WaitGroup};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
/// let exports = WaitGroup::new(&Store::in_memory(), "exports", 10)?;
/// let large = exports.add_n("acme", 8).await?;
///
/// let snapshot = exports.inspect("acme").await?;
/// assert_eq!((snapshot.in_use, snapshot.waiting), (8, 0));
/// let holder = &snapshot.holders[0];
/// assert_eq!((holder.token(), holder.weight), (large.token(), 8));
/// assert!(holder.time_left.as_secs() < 30 && !holder.is_exclusive && holder.fence.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The holders, ordered by the end of their leases. At most 1000 permits or readers.
    pub holders: Vec<Holder>,
    /// The sum of the weights of all holders. Locks have the weight 1.
    pub in_use: u64,
    /// The number of places in the queue. Waiters of one process that form [one line](crate::mutex) for a mutex have
    /// one place together. A crashed waiter keeps its place until it reaches the front.
    pub waiting: u64,
}

/// A holder in a [`Snapshot`], which has an example.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    token: Arc<str>,
    /// The token, if it is not UTF-8: other libraries may write any bytes.
    bytes: Option<Arc<[u8]>>,
    /// The fencing token of the holder's grant. If the process has since handed on the mutex to another of its waiters,
    /// the fencing token of the current holder is up to 31 higher. A reader has the token of the last writer before it.
    /// `None` for permits, flights and claims, and for locks of other libraries.
    pub fence: Option<u64>,
    /// The weight of a permit; 1 for all other leases.
    pub weight: u64,
    /// Whether the holder excludes all others: it holds a mutex, or it is the writer of a [reader-writer
    /// lock](crate::RwLock).
    pub is_exclusive: bool,
    /// How long the lease lasts in the store if it is not renewed. Also zero for a lock of another library that never
    /// expires.
    pub time_left: Duration,
}

impl Snapshot {
    /// Returns whether there is no holder and no waiter.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.in_use == 0 && self.waiting == 0
    }
}

impl Holder {
    fn new<K: Kind>(token: Token, ends: i64, fence: i64, now: i64) -> Self {
        Self {
            fence: u64::try_from(fence)
                .ok()
                .filter(|fence| K::FENCED && *fence > 0),
            weight: unsigned(K::weight(&token)),
            is_exclusive: K::is_exclusive(&token),
            time_left: Duration::from_micros(unsigned(ends.saturating_sub(now))),
            token: token.text(),
            bytes: None,
        }
    }

    /// Returns the name of the holder: the value that its [`Lease::token`](crate::LeaseHandle::token) returns. If
    /// another library wrote bytes that are not UTF-8, these are replaced by U+FFFD.
    #[must_use]
    pub fn token(&self) -> &str {
        token::name(&self.token)
    }

    pub(crate) fn whole_token(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or(self.token.as_bytes())
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            fence,
            weight,
            is_exclusive,
            time_left,
            ..
        } = self;
        f.debug_struct("Holder")
            .field("token", &self.token())
            .field("fence", fence)
            .field("weight", weight)
            .field("is_exclusive", is_exclusive)
            .field("time_left", time_left)
            .finish()
    }
}

/// Reads the holders and the number of waiters of a key. Changes nothing.
#[derive(Debug)]
pub(crate) struct Look<K> {
    /// The maximum number of holders to read. Locks are always read.
    most: i64,
    kind: PhantomData<fn(K)>,
}

impl<K> Look<K> {
    pub(crate) fn all() -> Self {
        Self {
            most: MOST_HOLDERS,
            kind: PhantomData,
        }
    }

    /// Reads only the sums.
    pub(super) fn sums() -> Self {
        Self {
            most: 0,
            kind: PhantomData,
        }
    }
}

/// Releases the lease of a token of any process, and sends that process a message.
#[derive(Debug)]
pub(crate) struct Revoke<K> {
    channels: Arc<str>,
    spans: Spans,
    token: Arc<[u8]>,
    kind: PhantomData<fn(K)>,
}

impl<K: Kind> Revoke<K> {
    /// `channels`: see [`Spans::with`].
    pub(crate) fn new(channels: Arc<str>, spans: Spans, token: &[u8]) -> Self {
        Self {
            channels,
            spans,
            token: token.into(),
            kind: PhantomData,
        }
    }
}

impl<K: Kind> Operation for Look<K> {
    type Cell = StateOf<K>;
    type Reply = Snapshot;
    type Undo = Self;
    const SCRIPT: Script = function!(Reads: "holders", K::NAME; LEASES, K::PIECES, &["care"]);
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Safe;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(self.most);
    }

    fn decode(self, _: usize, now: i64, mut fields: Fields<'_>) -> Result<Snapshot, Garbled> {
        let in_use = fields.integer()?;
        if in_use < 0 {
            return Err(WRONG_TYPE);
        }
        let waiting = fields.integer()?;
        let mut list = fields.list()?;
        let mut holders = Vec::new();
        while let Ok(token) = list.next() {
            let Field::Text(token) = token else {
                return Err(Garbled("a token is not a text"));
            };
            let ends = list.integer()?;
            let fence = list.integer()?;
            let bytes = std::str::from_utf8(token).is_err().then(|| token.into());
            let holder = Holder::new::<K>(
                String::from_utf8_lossy(token).into_owned().into(),
                ends,
                fence,
                now,
            );
            holders.push(Holder { bytes, ..holder });
        }
        Ok(Snapshot {
            holders,
            in_use: unsigned(in_use),
            waiting: unsigned(waiting),
        })
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> Snapshot {
        let (in_use, waiting, holders) = state.look(now);
        let holder = |(token, ends, fence)| Holder::new::<K>(token, ends, fence, now);
        let holders = holders
            .into_iter()
            .take(usize::try_from(self.most).unwrap_or(0))
            .map(holder)
            .collect();
        Snapshot {
            holders,
            in_use: unsigned(in_use),
            waiting: unsigned(waiting),
        }
    }
}

impl<K: Kind> Operation for Revoke<K> {
    type Cell = StateOf<K>;
    type Reply = TokenState;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "revoke", K::NAME; LEASES, K::PIECES, &["care"]);
    const PARTS: &'static [&'static str] = K::PARTS;
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = 64;
    const SAME_ONCE: bool = false;
    const BULK: bool = K::Outcome::BULK;
    const RESERVED: bool = true;

    fn shared(&self, call: &mut Arguments<'_>) {
        call.channels(Arc::clone(&self.channels));
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.bytes(Arc::clone(&self.token));
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<TokenState, Garbled> {
        match fields.integer()? {
            -1 => Err(WRONG_TYPE),
            1 => Ok(TokenState::Held),
            2 => Ok(TokenState::Waiting),
            _ => Ok(TokenState::Neither),
        }
    }

    fn apply(self, state: &mut StateOf<K>, now: i64) -> TokenState {
        // In memory all tokens are valid UTF-8.
        let Ok(token) = std::str::from_utf8(&self.token) else {
            return TokenState::Neither;
        };
        let token = Token::from(token);
        let was = state.release(&token, false, now, self.spans);
        if let (TokenState::Held, Some((_, id))) = (was, token.waiter()) {
            state.pushes.push(Push {
                ids: vec![id],
                news: PushKind::Gone,
            });
        }
        was
    }
}

/// Reads the holders of a key.
pub(crate) async fn look<K: Kind>(
    namespace: &Namespace<StateOf<K>>,
    key: Key,
) -> Result<Snapshot, Error> {
    namespace.client::<Look<K>>().run(key, Look::all()).await
}

/// Releases the lease of a token, or its place in the queue. The token may belong to another process. Returns whether
/// the lease was held.
pub(crate) async fn revoke<K: Kind>(
    store: &Store,
    namespace: &Namespace<StateOf<K>>,
    key: Key,
    token: &[u8],
) -> Result<bool, Error> {
    let spans = spans(store);
    let revoke = Revoke::new(spans.with(&store.channels()), spans, token);
    Ok(namespace.client::<Revoke<K>>().run(key, revoke).await? == TokenState::Held)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::holders::Exclusive;
    use crate::wait_group::permits::Permits;

    #[test]
    fn a_holder_is_shown_as_its_kind_says() {
        let lock = Holder::new::<Exclusive>("token:alice".into(), 9, 5, 4);
        assert_eq!(
            (
                lock.fence,
                lock.weight,
                lock.is_exclusive,
                lock.time_left.as_micros()
            ),
            (Some(5), 1, true, 5)
        );
        assert_eq!(
            (lock.token(), lock.whole_token()),
            ("alice", &b"token:alice"[..])
        );
        let foreign = Holder::new::<Exclusive>("token".into(), 4, 0, 5);
        assert_eq!((foreign.fence, foreign.time_left), (None, Duration::ZERO));
        let permit = Holder::new::<Permits>("0123456789abcdef-1/3/5".into(), 9, 5, 4);
        assert_eq!(
            (permit.fence, permit.weight, permit.is_exclusive),
            (None, 3, false)
        );
    }
}
