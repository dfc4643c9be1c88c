//! A family: a name in a store under which a primitive keeps the states of its keys.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Backend;
use super::in_process::Cells;
use super::key::{Key, KeySpace, RedisKey, check_name};
use super::operation::{Cell, Operation};
use super::redis::RedisStore;
use super::redis::queue::Queue;
use crate::{Error, Store};

/// A name in a store. A cheap clone.
pub(crate) struct Family<C>(Arc<Place<C>>);

enum Place<C> {
    InProcess(Arc<Cells<C>>),
    Redis(Arc<RedisStore>, KeySpace),
}

/// The way to one kind of operation of a family.
pub(crate) enum Port<O: Operation> {
    InProcess(Arc<Cells<O::Cell>>),
    Redis(Arc<Queue<O>>),
}

impl<C: Cell> Family<C> {
    pub(crate) fn new(store: &Store, name: &str) -> Result<Self, Error> {
        check_name("the name of a family", name)?;
        Ok(Self::open(store, name))
    }

    /// The family of a name that has been checked.
    pub(crate) fn open(store: &Store, name: &str) -> Self {
        Self(Arc::new(match store.backend() {
            Backend::InProcess(store) => Place::InProcess(store.cells(name)),
            Backend::Redis(store) => Place::Redis(store.clone(), KeySpace::new(&store.prefix, name)),
        }))
    }

    pub(crate) fn port<O: Operation<Cell = C>>(&self) -> Port<O> {
        match &*self.0 {
            Place::InProcess(cells) => Port::InProcess(cells.clone()),
            Place::Redis(store, _) => Port::Redis(Queue::new(store.clone(), self.clone()).into()),
        }
    }

    /// The beginning of the names that a key's states have in Redis.
    pub(super) fn redis_key(&self, key: &Key) -> RedisKey {
        match &*self.0 {
            Place::Redis(_, keys) => keys.key(key.as_bytes()),
            Place::InProcess(_) => RedisKey::new(),
        }
    }

    /// Takes back an answer in a task of its own.
    pub(crate) fn undo<O: Operation<Cell = C>>(&self, key: Key, undo: O) {
        detach(self.port().run(key, undo));
    }
}

/// Sees a call to its end without its caller, where there is a runtime.
pub(crate) fn detach<R: Send + 'static>(running: Running<R>) {
    if let Running::Pending(call) = running
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        // An outage loses what was to be taken back, which errs on the strict side.
        runtime.spawn(async { drop(call.await) });
    }
}

impl<O: Operation> Port<O> {
    /// Takes the step where the state is in this process.
    pub(crate) fn step(&self, key: &Key, operation: impl FnOnce() -> O) -> Option<O::Reply> {
        match self {
            Self::InProcess(cells) => {
                Some(cells.step(key.as_bytes(), |cell, now| operation().apply(cell, now)))
            }
            Self::Redis(_) => None,
        }
    }

    /// Takes one step on the state of a key: at once in process, else when the future is polled.
    pub(crate) fn run(&self, key: Key, operation: O) -> Running<O::Reply> {
        match self {
            Self::InProcess(cells) => {
                Running::Ready(Some(cells.step(key.as_bytes(), |cell, now| operation.apply(cell, now))))
            }
            Self::Redis(queue) => Running::Pending(Box::pin(queue.clone().run(key, operation))),
        }
    }
}

/// A step under way.
pub(crate) enum Running<R> {
    /// Done; `None` once taken.
    Ready(Option<R>),
    Pending(Pin<Box<dyn Future<Output = Result<R, Error>> + Send>>),
}

impl<R> Unpin for Running<R> {}

impl<R> Future for Running<R> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ready(reply) => match reply.take() {
                Some(reply) => Poll::Ready(Ok(reply)),
                None => Poll::Pending,
            },
            Self::Pending(call) => call.as_mut().poll(context),
        }
    }
}

impl<C> Clone for Family<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> fmt::Debug for Family<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Place::InProcess(_) => f.write_str("Family(in process)"),
            Place::Redis(_, keys) => f.debug_tuple("Family").field(keys).finish(),
        }
    }
}

impl<R> fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready(_) => "Ready",
            Self::Pending(_) => "Pending",
        })
    }
}

impl<O: Operation> fmt::Debug for Port<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InProcess(_) => "Port(in process)",
            Self::Redis(..) => "Port(Redis)",
        })
    }
}
