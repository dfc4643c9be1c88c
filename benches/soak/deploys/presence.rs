//! What a gateway tells the referee: when a handler begins to work, and when it ends.

use std::collections::HashMap;
use std::env;
use std::net::Ipv4Addr;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tower_distributed::LeaseHandle;
use tower_distributed::dedupe::Unsure;
use tower_distributed::token_bucket::Usage;

use super::visit::{VISIT, Visit};

/// Names the port of the referee.
pub const REFEREE: &str = "TOWER_DISTRIBUTED_BENCH_REFEREE";

/// The connection of this process to the referee.
#[derive(Clone)]
pub struct Presences(Arc<Line>);

struct Line {
    out: mpsc::UnboundedSender<String>,
    /// Who waits for the referee to have read a line.
    waiting: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    numbers: AtomicU64,
}

impl Presences {
    /// `None` without a referee.
    pub async fn of_this_process() -> Option<Self> {
        let port: u16 = env::var(REFEREE).ok()?.parse().unwrap();
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        stream.set_nodelay(true).unwrap();
        let (read, mut write) = stream.into_split();
        let (out, mut lines) = mpsc::unbounded_channel::<String>();
        let line = Arc::new(Line {
            out,
            waiting: Mutex::default(),
            numbers: AtomicU64::default(),
        });
        let waiting = Arc::clone(&line);
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                let _ = write.write_all(line.as_bytes()).await;
            }
        });
        tokio::spawn(async move {
            let mut read = BufReader::new(read).lines();
            while let Ok(Some(number)) = read.next_line().await {
                let waiter = waiting
                    .waiting
                    .lock()
                    .unwrap()
                    .remove(&number.parse().unwrap());
                waiter.map(|waiter| waiter.send(()));
            }
            // Nobody judges any more.
            process::exit(1);
        });
        Some(Self(line))
    }

    /// Does the work that a request asks for, while the referee counts.
    pub async fn work(&self, request: &Parts) {
        let told = request.headers[VISIT].to_str().unwrap();
        let visit = Visit::parse(told);
        let fence = request
            .extensions
            .get::<LeaseHandle>()
            .and_then(|lease| lease.fence());
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        // It also ends if the layer drops this future.
        let mut presence = Presence {
            line: &self.0,
            number,
            has_left: false,
        };
        self.0
            .tell(
                number,
                format!("enter {number} {} {told}\n", fence.unwrap_or(0)),
            )
            .await;
        sleep(Duration::from_millis(visit.work)).await;
        if let Some(usage) = request.extensions.get::<Usage>() {
            usage.set(visit.units);
        }
        presence.has_left = true;
        self.0.tell(number, format!("leave {number}\n")).await;
    }

    /// An item may be handled twice.
    pub fn unsure(&self, path: &str, unsure: &Unsure) {
        let _ = self.0.out.send(format!(
            "unsure {path}/{}\n",
            String::from_utf8_lossy(unsure.key.as_bytes())
        ));
    }
}

impl Line {
    /// Returns when the referee has read it.
    async fn tell(&self, number: u64, line: String) {
        let (read, is_read) = oneshot::channel();
        self.waiting.lock().unwrap().insert(number, read);
        let _ = self.out.send(line);
        let _ = is_read.await;
    }
}

struct Presence<'a> {
    line: &'a Line,
    number: u64,
    has_left: bool,
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            self.line.waiting.lock().unwrap().remove(&self.number);
            let _ = self.line.out.send(format!("stop {}\n", self.number));
        }
    }
}
