//! The subscription: one connection per store that hears what is granted to waiters of this process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use deadpool_redis::redis::Client;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::store::detached::see_to_the_end;
use crate::store::notifier::{Notifier, Push};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How often it is checked that the connection still carries anything.
const CHECK: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Subscription {
    clients: Arc<[Client]>,
    started: AtomicBool,
    /// Closed when this value is dropped, which ends the task.
    open: watch::Sender<()>,
}

impl Subscription {
    pub(super) fn new(clients: Vec<Client>) -> Self {
        Self { clients: clients.into(), started: AtomicBool::new(false), open: watch::Sender::new(()) }
    }

    pub(super) fn has_one_place(&self) -> bool {
        self.clients.len() == 1
    }

    /// Which server and database it is.
    pub(super) fn place(&self) -> Option<(String, i64)> {
        let info = self.clients.first()?.get_connection_info();
        Some((info.addr().to_string(), info.redis_settings().db()))
    }

    /// Starts the task, unless it is running.
    pub(super) fn start(&self, channel: String, notifier: &Arc<Notifier>) {
        if self.clients.is_empty() || self.started.swap(true, Ordering::AcqRel) {
            return;
        }
        let (clients, notifier, open) =
            (Arc::clone(&self.clients), Arc::downgrade(notifier), self.open.subscribe());
        see_to_the_end(None, move || {
            let mut open = open.clone();
            let listening = listen(Arc::clone(&clients), channel.clone(), notifier.clone());
            async move {
                tokio::select! {
                    () = listening => {}
                    _ = open.changed() => {}
                }
            }
        });
    }
}

/// Stays subscribed until it is dropped; after a failure it tries the next client, at growing intervals.
async fn listen(clients: Arc<[Client]>, channel: String, notifier: Weak<Notifier>) {
    let mut pause = Duration::from_millis(10);
    for client in clients.iter().cycle() {
        if hear(client, &channel, &notifier).await {
            pause = Duration::from_millis(10);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Hands on what is heard until the connection fails; whether it was ever subscribed.
async fn hear(client: &Client, channel: &str, notifier: &Weak<Notifier>) -> bool {
    let connect = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channel).await?;
        Ok::<_, deadpool_redis::redis::RedisError>(connection.split())
    };
    let Ok(Ok((mut sink, mut stream))) = timeout(CONNECT, connect).await else { return false };
    let _up = LinkedUp::new(notifier.clone());
    loop {
        match timeout(CHECK, stream.next()).await {
            Ok(Some(message)) => {
                let Some(notifier) = notifier.upgrade() else { return true };
                if let Some(push) = Push::parse(message.get_payload_bytes()) {
                    notifier.deliver(push);
                }
            }
            Ok(None) => return true,
            // Nothing has come for long: a server that is gone without a word would not be noticed otherwise.
            Err(_) => match timeout(CONNECT, sink.ping::<deadpool_redis::redis::Value>()).await {
                Ok(Ok(_)) => {}
                _ => return true,
            },
        }
    }
}

/// The link is up while this value lives.
struct LinkedUp(Weak<Notifier>);

impl LinkedUp {
    fn new(notifier: Weak<Notifier>) -> Self {
        if let Some(notifier) = notifier.upgrade() {
            notifier.relink();
        }
        Self(notifier)
    }
}

impl Drop for LinkedUp {
    fn drop(&mut self) {
        if let Some(notifier) = self.0.upgrade() {
            notifier.unlink();
        }
    }
}
