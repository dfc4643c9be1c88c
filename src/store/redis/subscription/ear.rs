//! What the connections of a subscription share, and how each passes its messages on.

use std::future::Future;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use deadpool_redis::redis::{Client, Value};
use futures_util::StreamExt as _;
use tokio::time::timeout;

#[cfg(feature = "cluster")]
use super::duplicates::Duplicates;
use crate::error::Outage;
use crate::store::in_memory::lock;
use crate::store::notifier::{Notifier, Push};
use crate::telemetry::Server;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// How long to wait for a message before a ping checks the connection.
const CHECK: Duration = Duration::from_secs(15);

pub(super) struct Ear {
    /// The channel of this process, and that of all processes.
    channels: [String; 2],
    notifier: Weak<Notifier>,
    telemetry: Server,
    /// The number of connections that are subscribed.
    open: Mutex<usize>,
    #[cfg(feature = "cluster")]
    duplicates: Mutex<Duplicates>,
}

impl Ear {
    pub(super) fn new(channels: [String; 2], notifier: Weak<Notifier>, telemetry: Server) -> Self {
        Self {
            channels,
            notifier,
            telemetry,
            open: Mutex::default(),
            #[cfg(feature = "cluster")]
            duplicates: Mutex::default(),
        }
    }

    /// Passes the messages on until the connection fails. `number`: the number of the connection, if there are several,
    /// which all receive each message.
    pub(super) async fn hear(
        self: &Arc<Self>,
        number: Option<usize>,
        client: impl Future<Output = Result<Client, Outage>>,
    ) {
        let connect = async {
            let mut connection = client.await.ok()?.get_async_pubsub().await.ok()?;
            connection.subscribe(&self.channels).await.ok()?;
            Some(connection.split())
        };
        let Ok(Some((mut sink, mut stream))) = timeout(CONNECT, connect).await else { return };
        let open = Open::new(self);
        loop {
            match timeout(CHECK, stream.next()).await {
                Ok(Some(message)) => {
                    let Some(notifier) = self.notifier.upgrade() else { return };
                    let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
                    if number.is_some_and(|number| !self.is_new(number, payload)) {
                        continue;
                    }
                    if channel == self.channels[1] {
                        notifier.broadcast(payload);
                    } else if let Some(push) = Push::parse(payload) {
                        notifier.deliver(push);
                    }
                }
                Ok(None) => break,
                // Nothing has arrived for a long time. Without a ping, a server that vanished would not be noticed.
                Err(_) => match timeout(CONNECT, sink.ping::<Value>()).await {
                    Ok(Ok(_)) => {}
                    _ => break,
                },
            }
        }
        drop(open);
        // If the store was dropped, this is not a loss.
        if *lock(&self.open) == 0 && self.notifier.strong_count() > 0 {
            self.telemetry.subscription(false);
        }
    }

    #[cfg(feature = "cluster")]
    fn is_new(&self, connection: usize, payload: &[u8]) -> bool {
        lock(&self.duplicates).is_new(connection, payload)
    }

    #[cfg(not(feature = "cluster"))]
    fn is_new(&self, _: usize, _: &[u8]) -> bool {
        true
    }
}

/// A connection is subscribed while this value lives. Pushes arrive while there is one: at a Cluster each node has all
/// messages, though those of other nodes come later.
struct Open(Arc<Ear>);

impl Open {
    fn new(ear: &Arc<Ear>) -> Self {
        let mut open = lock(&ear.open);
        *open += 1;
        if *open == 1
            && let Some(notifier) = ear.notifier.upgrade()
        {
            ear.telemetry.subscription(true);
            notifier.relink();
        }
        drop(open);
        Self(Arc::clone(ear))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = lock(&self.0.open);
        *open -= 1;
        if *open == 0
            && let Some(notifier) = self.0.notifier.upgrade()
        {
            notifier.unlink();
        }
    }
}
