//! Waiters for one key, and the order in which they are served.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower_distributed::{Error, Lease};

use crate::stores::{Place, SOON};

/// Waiters for the key `k` of a name. Each says its name when it is served, and releases what it got.
pub(crate) struct Line<'a> {
    place: &'a Place,
    state: String,
    /// How many others wait before them.
    behind: usize,
    waiters: Vec<JoinHandle<()>>,
    sender: mpsc::UnboundedSender<&'static str>,
    served: mpsc::UnboundedReceiver<&'static str>,
}

impl<'a> Line<'a> {
    pub(crate) fn new(place: &'a Place, name: &str) -> Self {
        Self::behind(place, name, 0)
    }

    pub(crate) fn behind(place: &'a Place, name: &str, behind: usize) -> Self {
        let (sender, served) = mpsc::unbounded_channel();
        Self { place, state: format!("{name}:k"), behind, waiters: Vec::new(), sender, served }
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
        let number = self.behind + self.waiters.len() + 1;
        self.waiters.push(self.place.line_up(&self.state, number, visit).await);
    }

    /// The names, once all were served.
    pub(crate) async fn order(mut self) -> Vec<&'static str> {
        for waiter in self.waiters {
            timeout(SOON, waiter).await.expect("it is not served").unwrap();
        }
        std::iter::from_fn(|| self.served.try_recv().ok()).collect()
    }
}
