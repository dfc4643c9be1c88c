//! Whoever can write to the server forges what is stored, what scripts are called with and what they reply: at random, beside
//! real callers. Nothing panics or hangs, no script takes long, the memory of the server stays bounded, no limit is exceeded,
//! and after the keys are deleted all works again.
//!
//! `FORGE=60` forges for so many seconds (default: 4), `SEED` begins with that round.

mod calls;
mod forger;
mod judge;
mod states;

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use deadpool_redis::redis::{Value, cmd};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::client::Client;
use support::proxy::FaultProxy;
use support::redis_server::RedisServer;
use tower_distributed::Store;

use crate::forgeries::calls::{Calls, Kept};

/// No script takes longer.
const LONGEST_SCRIPT: Duration = Duration::from_millis(50);
/// Of the server, bytes.
const MOST_MEMORY: u64 = 100 << 20;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// What was forged in this round.
static FORGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records the panics of the library, whatever thread they end.
fn record_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic
            .location()
            .is_some_and(|location| location.file().starts_with("src/"))
        {
            PANICS.lock().unwrap().push(panic.to_string());
        }
        let forged = FORGED.lock().unwrap();
        eprintln!(
            "forged last:\n{}",
            forged[forged.len().saturating_sub(40)..].join("\n")
        );
        report(panic);
    }));
}

/// Notes what was forged.
fn note(what: &[u8]) {
    let text = what.escape_ascii().to_string().replace("\\r\\n", " ");
    FORGED
        .lock()
        .unwrap()
        .push(text.chars().take(500).collect());
}

/// A way to the server on which some arguments and replies are forged.
struct ForgedWay {
    proxy: FaultProxy,
    is_open: Arc<AtomicBool>,
}

impl ForgedWay {
    async fn start(server: &RedisServer, seed: u64) -> Self {
        let is_open = Arc::new(AtomicBool::new(true));
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let forge = {
            let is_open = is_open.clone();
            move |is_reply: bool, frame: Vec<u8>| {
                if !is_open.load(Ordering::SeqCst) {
                    return None;
                }
                let mut rng = rng.lock().unwrap();
                let original = frame.clone();
                let forged = match rng.random_range(0..4) {
                    0 if is_reply => forger::forged_reply(&mut rng, frame),
                    0 | 1 if !is_reply => forger::forged_request(&mut rng, frame),
                    _ => return Some(frame),
                };
                if forged != original {
                    note(&forged);
                }
                Some(forged)
            }
        };
        Self {
            proxy: FaultProxy::before(&[server.port()]).await.forging(forge),
            is_open,
        }
    }
}

/// The server, and one who looks at it and writes to it.
struct Server {
    server: RedisServer,
    client: Client,
    spent: Duration,
}

impl Server {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        server.cli(&[
            "CONFIG",
            "SET",
            "slowlog-log-slower-than",
            &LONGEST_SCRIPT.as_micros().to_string(),
        ]);
        let client = server.client().unwrap();
        Self {
            server,
            client,
            spent: Duration::ZERO,
        }
    }

    fn info(&mut self, field: &str) -> f64 {
        let info: String = self.client.query(cmd("INFO").arg("everything")).unwrap();
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap().parse().unwrap()
    }

    fn keys(&mut self) -> Vec<Vec<u8>> {
        self.client.query(cmd("KEYS").arg("td:*")).unwrap()
    }

    fn delete(&mut self) {
        for key in self.keys() {
            self.client.query::<u64>(cmd("DEL").arg(key)).unwrap();
        }
    }

    /// How long the server has computed.
    fn computed(&mut self) -> Duration {
        Duration::from_secs_f64(self.info("used_cpu_user") + self.info("used_cpu_sys"))
    }

    /// From now on no script may take long.
    fn watch(&mut self) {
        self.spent = self.computed();
        self.client
            .query::<String>(cmd("SLOWLOG").arg("RESET"))
            .unwrap();
    }

    /// No script took long, by the clock and by the time that the server computed, and the memory is bounded.
    fn is_well(&mut self) -> Result<(), String> {
        let spent = self.computed() - self.spent;
        let slow: Vec<Vec<Value>> = self.client.query(cmd("SLOWLOG").arg("GET")).unwrap();
        if !slow.is_empty() && spent > LONGEST_SCRIPT {
            return Err(format!(
                "{spent:?} of the server's time, and slow: {slow:.2000?}"
            ));
        }
        let memory = self.info("used_memory") as u64;
        if memory < MOST_MEMORY {
            Ok(())
        } else {
            Err(format!("{memory} bytes"))
        }
    }
}

/// A round: real calls, forged ones, forged states, and what callers find then.
async fn round(server: &mut Server, honest: &Store, seed: u64) -> Result<(), String> {
    FORGED.lock().unwrap().clear();
    let mut rng = StdRng::seed_from_u64(seed);
    let way = ForgedWay::start(&server.server, seed).await;
    let victim = Calls::new(honest, seed)
        .await
        .map_err(|error| error.to_string())?;
    let mut kept = Kept::default();
    for _ in 0..rng.random_range(0..25) {
        victim.step(&mut rng, &mut kept).await;
    }
    let forged = Store::builder()
        .timeout(Duration::from_secs(1))
        .redis(&way.proxy.url())
        .unwrap();
    let is_deceived = rng.random();
    if is_deceived {
        // Then calls have the text of their scripts. Those of functions name their operation.
        server
            .client
            .query::<String>(cmd("SCRIPT").arg("FLUSH"))
            .unwrap();
        let deceived = Calls::new(&forged, seed)
            .await
            .map_err(|error| error.to_string())?;
        for _ in 0..rng.random_range(1..20) {
            deceived.step(&mut rng, &mut kept).await;
        }
    }
    way.is_open.store(false, Ordering::SeqCst);
    let keys = server.keys();
    for _ in 0..rng.random_range(0..4) {
        states::attack(&mut rng, &mut server.client, &keys);
    }
    server.watch();
    judge::keeps_to_its_limits(&victim).await?;
    // Whoever can call a script for the bits of a filter that has 512 MB can also set them.
    if !is_deceived {
        server.is_well()?;
    }

    kept.waiting.shutdown().await;
    server.delete();
    judge::works(&victim)
        .await
        .map_err(|error| format!("without a state: {error}"))?;
    drop(kept);
    server.delete();
    match PANICS.lock().unwrap().first() {
        Some(panic) => Err(panic.clone()),
        None => Ok(()),
    }
}

fn setting(name: &str) -> Option<u64> {
    env::var(name)
        .ok()
        .map(|text| text.parse().expect("it is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_forgery_is_believed() {
    record_panics();
    let mut server = Server::start().await;
    let honest = Store::builder()
        .timeout(Duration::from_secs(5))
        .redis(&server.server.url())
        .unwrap();
    let (mut seed, began) = (
        setting("SEED").unwrap_or_else(|| rand::random_range(0..1 << 32)),
        Instant::now(),
    );
    let lasts = Duration::from_secs(setting("FORGE").unwrap_or(4));
    while began.elapsed() < lasts {
        round(&mut server, &honest, seed)
            .await
            .unwrap_or_else(|error| panic!("SEED={seed}: {error}"));
        seed += 1;
    }
}
