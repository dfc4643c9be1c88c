//! Runs operations on a store, in memory or on Redis: a [`Namespace`] has the states of one name, and a [`Client`] runs
//! one kind of operation on them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use derive_where::derive_where;
use futures_util::FutureExt as _;
use tokio::runtime::Handle;

use crate::error::Error;
use crate::key::Key;
use crate::store::memory::cells::Cells;
use crate::store::operation::{Cell, Operation};
use crate::store::redis::RedisStore;
use crate::store::redis::names::{KeySpace, check_name};
pub(crate) use crate::store::redis::queue::OperationFuture;
use crate::store::redis::queue::{RedisClient, Step};
use crate::store::{Backend, Store};
use crate::sync::lock;

/// A named part of a store. Cheap to clone.
#[derive_where(Clone)]
pub(crate) enum Namespace<C> {
    InMemory(Arc<Cells<C>>),
    Redis(Arc<RedisStore>, Arc<KeySpace>),
}

/// Runs one kind of operation on a namespace.
pub(crate) enum Client<O: Operation> {
    InMemory(Arc<Cells<O::Cell>>),
    Redis(Arc<RedisClient<O>>),
}

impl<C: Cell> Namespace<C> {
    pub(crate) fn new(store: &Store, name: &str) -> Result<Self, Error> {
        check_name("the name of a namespace", name)?;
        Ok(Self::open(store, name))
    }

    /// Opens a namespace whose name was already checked.
    pub(crate) fn open(store: &Store, name: &str) -> Self {
        Self::of(store, name, |prefix, name| {
            KeySpace::new(prefix, name, KeySpace::Named)
        })
    }

    /// Opens the states of long keys by the digests in their names: see [`KeySpace::Digests`]. A store in memory has
    /// none.
    pub(crate) fn by_digest(store: &Store, name: &str) -> Self {
        Self::of(store, name, |prefix, name| {
            KeySpace::new(prefix, name, KeySpace::Digests)
        })
    }

    /// Opens the states with names beside those of a namespace, in the same slots of a Cluster. See
    /// [`KeySpace::Placed`].
    pub(crate) fn beside(store: &Store, name: &str) -> Self {
        Self::of(store, name, |prefix, name| {
            KeySpace::new(prefix, name, KeySpace::Placed)
        })
    }

    /// Opens the namespace of the states whose first part is named by the key itself.
    pub(crate) fn exact(store: &Store) -> Self {
        // No other namespace can have the empty name.
        Self::of(store, "", |prefix, _| KeySpace::exact(prefix))
    }

    fn of(store: &Store, name: &str, keys: impl FnOnce(&str, &str) -> KeySpace) -> Self {
        match store.backend() {
            Backend::InMemory(store) => Self::InMemory(store.cells(name)),
            Backend::Redis(store) => {
                Self::Redis(store.clone(), Arc::new(keys(&store.base.prefix, name)))
            }
        }
    }

    /// Joins several namespaces of one Redis store. [`Key::of`] makes a key of the result, with one part for each
    /// namespace. `None` if they are not all in one Redis store.
    pub(crate) fn joined<D: Cell>(namespaces: &[Namespace<D>]) -> Option<Self> {
        let opened = namespaces.iter().map(|namespace| match namespace {
            Namespace::Redis(store, keys) => Some((store, KeySpace::clone(keys))),
            Namespace::InMemory(_) => None,
        });
        let opened = opened.collect::<Option<Vec<_>>>()?;
        let store = Arc::clone(opened.first()?.0);
        if opened.iter().any(|(other, _)| !Arc::ptr_eq(other, &store)) {
            return None;
        }
        let keys = KeySpace::Joined(opened.into_iter().map(|(_, keys)| keys).collect());
        Some(Self::Redis(store, Arc::new(keys)))
    }

    /// Opens several states of a Redis namespace at once. [`Key::of`] makes a key of the result, with one part for each
    /// state. `None` for a namespace in memory, which has [`Cells::step_all`].
    pub(crate) fn each<D: Cell>(namespace: &Namespace<D>) -> Option<Self> {
        match namespace {
            Namespace::InMemory(_) => None,
            Namespace::Redis(store, keys) => {
                let keys = KeySpace::Each(Box::new(KeySpace::clone(keys)));
                Some(Self::Redis(Arc::clone(store), Arc::new(keys)))
            }
        }
    }

    pub(crate) fn client<O: Operation<Cell = C>>(&self) -> Client<O> {
        match self {
            Self::InMemory(cells) => Client::InMemory(cells.clone()),
            Self::Redis(store, keys) => {
                Client::Redis(RedisClient::new(store.clone(), keys.clone()))
            }
        }
    }

    /// Returns the states themselves, if they are in the memory of this process.
    pub(crate) fn cells(&self) -> Option<&Arc<Cells<C>>> {
        match self {
            Self::InMemory(cells) => Some(cells),
            Self::Redis(..) => None,
        }
    }

    /// Returns the hash slot of a key on a Cluster; otherwise `None`.
    pub(crate) fn slot(&self, key: &Key) -> Option<u16> {
        match self {
            Self::Redis(store, keys) => store.source.slot(|| keys.key(key.as_bytes())),
            Self::InMemory(_) => None,
        }
    }

    /// Returns the error with which the server currently refuses calls for the slot of a key, while they are being
    /// retried.
    pub(crate) fn refused(&self, key: &Key) -> Option<Error> {
        let slot = self.slot(key)?;
        let Self::Redis(store, _) = self else {
            return None;
        };
        store.refused.why(slot)
    }
}

impl<O: Operation> Client<O> {
    /// Applies the operation if the state is in memory; otherwise returns `None`.
    pub(crate) fn step(
        &self,
        key: &Key,
        operation: impl FnOnce() -> O,
    ) -> Option<Result<O::Reply, Error>> {
        match self {
            Self::InMemory(cells) => {
                let operation = operation();
                let payload = operation.payload();
                Some(cells.step_with(key.as_bytes(), payload, |cell, now| {
                    operation.apply(cell, now)
                }))
            }
            Self::Redis(_) => None,
        }
    }

    /// Runs an operation on the state of a key. In memory it has run on return. On Redis it is sent when the future is
    /// first polled. If the future is dropped, the operation may still run, and is then undone.
    pub(crate) fn run(&self, key: Key, operation: O) -> OperationFuture<O> {
        OperationFuture(match self {
            Self::InMemory(cells) => {
                let payload = operation.payload();
                let stepped = cells.step_with(key.as_bytes(), payload, |cell, now| {
                    operation.apply(cell, now)
                });
                Step::Done(Some(stepped))
            }
            Self::Redis(client) => Step::Submitted(Some((Arc::clone(client), key, operation))),
        })
    }

    /// Whether an operation that is sent once may run twice: the client of a pool for a Cluster repeats calls by
    /// itself.
    pub(crate) fn may_repeat(&self) -> bool {
        match self {
            Self::InMemory(_) => false,
            Self::Redis(client) => client.store.source.is_pool_of_cluster(),
        }
    }

    /// Runs an operation on the background thread, without a waiting caller. In memory it has run on return.
    pub(crate) fn detach(&self, key: Key, operation: O) {
        match self {
            Self::InMemory(_) => drop(self.run(key, operation)),
            Self::Redis(client) => client.detach(key, operation),
        }
    }

    /// Sends an operation from a runtime, or from the background thread, and calls `then` with the reply. In memory
    /// both have happened on return.
    pub(crate) fn send(
        &self,
        from: Option<Handle>,
        key: Key,
        operation: O,
        then: impl FnOnce(Result<O::Reply, Error>) + Send + 'static,
    ) {
        match self {
            Self::InMemory(cells) => {
                let payload = operation.payload();
                then(cells.step_with(key.as_bytes(), payload, |cell, now| {
                    operation.apply(cell, now)
                }));
            }
            Self::Redis(client) => {
                CallbackFuture::then(
                    OperationFuture(Arc::clone(client).enqueue(from, key, operation, None, false)),
                    then,
                );
            }
        }
    }
}

/// A call that no task awaits. The task that reads its reply polls it.
struct CallbackFuture<O: Operation, T>(Mutex<Option<(OperationFuture<O>, T)>>);

impl<O: Operation, T: FnOnce(Result<O::Reply, Error>) + Send + 'static> CallbackFuture<O, T> {
    /// Calls `then` with the reply.
    fn then(call: OperationFuture<O>, then: T) {
        Arc::new(Self(Mutex::new(Some((call, then))))).wake();
    }
}

impl<O: Operation, T: FnOnce(Result<O::Reply, Error>) + Send + 'static> Wake
    for CallbackFuture<O, T>
{
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut sent = lock(&self.0);
        let Some((call, _)) = sent.as_mut() else {
            return;
        };
        let Poll::Ready(answer) = call.poll_unpin(&mut Context::from_waker(&waker)) else {
            return;
        };
        let done = sent.take();
        drop(sent);
        if let Some((_, then)) = done {
            // `then` may call code of the user, such as a recorder of metrics. A panic there must not reach the task
            // that reads the reply, since that task reads other replies as well.
            drop(catch_unwind(AssertUnwindSafe(|| then(answer))));
        }
    }
}

debug!(Namespace<C>);

debug!(Client<O: Operation>);
