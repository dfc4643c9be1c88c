//! The subscription: one connection per store that receives the grants to waiters of this process, and the messages
//! to all processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use deadpool_redis::redis::{RedisError, Value};
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::breaker::pause;
use super::source::Subscriber;
use crate::store::background::Background;
use crate::store::in_memory::lock;
use crate::store::notifier::{Notifier, Push};
use crate::telemetry::Server;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// One failure is forgotten for each such time. So a server that closes each subscription gets about four new ones
/// a second.
const FORGIVEN: Duration = Duration::from_millis(250);

/// How long to wait for a message before a ping checks the connection.
const CHECK: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Subscription {
    clients: Arc<[Subscriber]>,
    /// Whether the latest task is running.
    listening: Mutex<Arc<AtomicBool>>,
    telemetry: Server,
    /// Closed when this value is dropped, which ends the task.
    open: watch::Sender<()>,
}

impl Subscription {
    pub(super) fn new(clients: Vec<Subscriber>, telemetry: Server) -> Self {
        let (clients, open) = (clients.into(), watch::Sender::new(()));
        Self { clients, listening: Mutex::default(), telemetry, open }
    }

    /// The address and the database of the server.
    pub(super) fn place(&self) -> Option<(String, i64)> {
        let info = self.clients.first()?.get_connection_info();
        Some((info.addr().to_string(), info.redis_settings().db()))
    }

    /// Ends the task. It can be started again.
    pub(super) fn stop(&self) {
        let mut listening = lock(&self.listening);
        *listening = Arc::default();
        self.open.send_replace(());
    }

    /// Starts the task, unless it is running.
    pub(super) fn start(&self, channels: [String; 2], notifier: &Arc<Notifier>, background: &Background) {
        let listening = lock(&self.listening);
        if self.clients.is_empty() || listening.swap(true, Ordering::AcqRel) {
            return;
        }
        let running = Listening(Arc::clone(&listening));
        let (clients, notifier, mut open) =
            (Arc::clone(&self.clients), Arc::downgrade(notifier), self.open.subscribe());
        drop(listening);
        let telemetry = self.telemetry.clone();
        background.spawn(async move {
            let _running = running;
            tokio::select! {
                () = listen(&clients, &channels, &notifier, &telemetry) => {}
                _ = open.changed() => {}
            }
        });
    }
}

/// Marks the task as running while this value lives.
struct Listening(Arc<AtomicBool>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Stays subscribed until the future is dropped. After a failure it tries the next client, at growing intervals.
async fn listen(
    clients: &[Subscriber],
    channels: &[String; 2],
    notifier: &Weak<Notifier>,
    telemetry: &Server,
) {
    let mut failures = 0_u32;
    let mut last = Instant::now();
    for client in clients.iter().cycle() {
        let was_up = hear(client, channels, notifier, telemetry).await;
        // If the store was dropped, this is not a loss.
        if was_up && notifier.strong_count() > 0 {
            telemetry.subscription(false);
        }
        let forgiven = last.elapsed().as_millis() / FORGIVEN.as_millis();
        failures = failures.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        last = Instant::now();
        tokio::time::sleep(pause(failures + 1)).await;
    }
}

/// Passes the messages on until the connection fails. Returns whether it was subscribed.
async fn hear(
    client: &Subscriber,
    channels: &[String; 2],
    notifier: &Weak<Notifier>,
    telemetry: &Server,
) -> bool {
    let connect = async {
        let mut connection = client.get_async_pubsub().await?;
        connection.subscribe(channels).await?;
        Ok::<_, RedisError>(connection.split())
    };
    let Ok(Ok((mut sink, mut stream))) = timeout(CONNECT, connect).await else { return false };
    telemetry.subscription(true);
    let _up = LinkedUp::new(notifier.clone());
    loop {
        match timeout(CHECK, stream.next()).await {
            Ok(Some(message)) => {
                let Some(notifier) = notifier.upgrade() else { return true };
                if message.get_channel_name() == channels[1] {
                    notifier.broadcast(message.get_payload_bytes());
                } else if let Some(push) = Push::parse(message.get_payload_bytes()) {
                    notifier.deliver(push);
                }
            }
            Ok(None) => return true,
            // Nothing has arrived for a long time. Without a ping, a server that vanished would not be noticed.
            Err(_) => match timeout(CONNECT, sink.ping::<Value>()).await {
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
