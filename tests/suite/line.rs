//! Waiters for one key, and the order in which they are served.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_distributed::{Error, Lease};

use crate::kinds::Family;
use crate::stores::{Place, SOON};

/// Waiters for the key `k` of a name. Each says its name when it is served, and releases what it got.
pub(crate) struct Line<'a> {
    place: &'a Place,
    state: String,
    /// Whether each waiter has a place in the queue of the store.
    has_places: bool,
    waiters: Vec<JoinHandle<()>>,
    sender: mpsc::UnboundedSender<&'static str>,
    served: mpsc::UnboundedReceiver<&'static str>,
}

impl<'a> Line<'a> {
    pub(crate) fn new(place: &'a Place, name: &str) -> Self {
        let (sender, served) = mpsc::unbounded_channel();
        Self {
            place,
            state: format!("{name}:k"),
            has_places: true,
            waiters: Vec::new(),
            sender,
            served,
        }
    }

    pub(crate) fn of(place: &'a Place, family: &Family) -> Self {
        Self {
            has_places: family.places(1) > 0,
            ..Self::new(place, family.name())
        }
    }

    pub(crate) async fn comes<L: Into<Lease>>(
        &mut self,
        name: &'static str,
        take: impl Future<Output = Result<L, Error>> + Send + 'static,
    ) {
        let sender = self.sender.clone();
        let visit = async move {
            let lease: Lease = take.await.unwrap().into();
            sender.send(name).unwrap();
            assert!(lease.release().await.unwrap());
        };
        let number = if self.has_places {
            self.waiters.len() + 1
        } else {
            0
        };
        self.waiters
            .push(self.place.line_up(&self.state, number, visit).await);
    }

    /// The names, once all were served.
    pub(crate) async fn order(mut self) -> Vec<&'static str> {
        for waiter in self.waiters {
            timeout(SOON, waiter)
                .await
                .expect("it is not served")
                .unwrap();
        }
        std::iter::from_fn(|| self.served.try_recv().ok()).collect()
    }
}
