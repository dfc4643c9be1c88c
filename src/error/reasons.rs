//! The reasons for failed calls, for code that treats them differently.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a request with an idempotency key was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), allow(dead_code))]
pub(crate) enum Upload {
    /// The body is longer than this number of bytes.
    TooLarge(usize),
    /// The body was not complete after this time.
    TooSlow(Duration),
    /// The bodies of other requests use all of the room, which is this number of bytes.
    NoRoom(usize),
    /// Another request has used the idempotency key. The text names the part in which this one differs.
    KeyReused(&'static str),
}

/// Why a lease was not granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy {
    pub(crate) subject: Subject,
    pub(crate) why: Why,
    /// The time until the next lease expires, unless its holder renews it.
    pub(crate) retry_after: Option<Duration>,
}

/// What the caller wanted to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Permit,
    Lock,
    /// The lead of a single flight, or the claim of an item.
    Flight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another caller holds the lease.
    Taken,
    /// The queue already has `max_waiters` waiters.
    QueueFull,
    /// The waiters in the queue would not be served within `max_wait`.
    QueueTooLong,
    /// The lease did not become free within `max_wait` or within the allowed number of tries.
    WaitedTooLong,
    /// The limit is 0.
    Closed,
}

/// Why the store gave no usable reply.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) cause: Cause,
    pub(crate) text: Cow<'static, str>,
    pub(crate) source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Outage`] that the crate treats differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No reply within the store's timeout: the operation may or may not have run.
    TimedOut,
    /// The connection could not be made, or it broke.
    Disconnected,
    /// The runtime that the call was sent from has ended: the operation may or may not have run.
    Ended,
    /// The server replied that it cannot serve (LOADING, READONLY, CLUSTERDOWN, …).
    NotServing,
    /// The server denies this script or this key, but serves other calls.
    Denied,
    /// Not enough replicas have received the call, or it is not on disk. It may have run.
    NotDurable,
    /// Another node of the Cluster has the slot of the key. Nothing has run.
    Redirected,
    /// The slot of the key is being moved to another node of the Cluster. Nothing has run.
    Moving,
    /// The slot is being moved, and the script has run in part: it removed a key, and the node then refused to read it
    /// again.
    MovedMidway,
    /// There was no connection: nothing was sent.
    NotSent,
    /// The breaker is open: nothing was sent.
    BreakerOpen,
    /// A key holds a value that this crate did not write.
    WrongType,
    /// The server sent a reply that this crate does not understand.
    Unexpected,
}

impl fmt::Display for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(f, "the request body is larger than {bytes} bytes"),
            Self::TooSlow(span) => write!(f, "the request body was not complete after {span:?}"),
            Self::NoRoom(bytes) => {
                write!(
                    f,
                    "overloaded: the request bodies that are held would exceed {bytes} bytes"
                )
            }
            Self::KeyReused(part) => {
                write!(
                    f,
                    "the idempotency key was used for another request, with another {part}"
                )
            }
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.why, self.subject) {
            (Why::Taken, Subject::Permit) => "no permit is free",
            (Why::Closed, _) => "no permit: the limit is 0",
            (Why::Taken, Subject::Lock) => "the lock is held",
            (Why::Taken, Subject::Flight) => "another caller is handling it",
            (Why::QueueFull, Subject::Permit) => "the queue for permits is full",
            (Why::QueueFull, Subject::Lock) => "the queue for the lock is full",
            (Why::QueueFull, Subject::Flight) => "the queue for another caller's result is full",
            (Why::QueueTooLong, _) => "the queue is too long to be served in time",
            (Why::WaitedTooLong, Subject::Permit) => "no permit became free in time",
            (Why::WaitedTooLong, Subject::Lock) => "the lock did not become free in time",
            (Why::WaitedTooLong, Subject::Flight) => "another caller did not finish in time",
        })
    }
}
