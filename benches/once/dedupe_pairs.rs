//! How many messages a second are claimed and confirmed, beside SET NX and SET on one connection that all callers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, AsyncConnectionConfig};
use tower_distributed::Store;
use tower_distributed::dedupe::{Claimed, Dedupe};

use crate::callers::{self, Caller};
use crate::common::Bench;

const NAME: &str = "dedupe-pairs-vs-setnx";
const OURS: &str = "Dedupe::exact: claim and confirm";
const SETNX: &str = "SET NX and SET, one connection";
const WEEK: Duration = Duration::from_secs(7 * 86_400);

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    let store = Store::redis(&bench.server.url).unwrap();
    let dedupe = Dedupe::exact(&store, "bench")
        .capacity(1_000_000)
        .remember_for(WEEK)
        .build()
        .unwrap();
    let connection = bench.runtime.block_on(connect(&bench.server.url));
    let wanted = |title: &str| {
        bench
            .settings
            .only()
            .is_none_or(|part| title.contains(part))
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..bench.settings.rounds {
        for turn in [round % 2, (round + 1) % 2] {
            bench.server.empty();
            let next = Arc::new(AtomicU64::new(0));
            let length = bench.settings.length;
            if turn == 0 && wanted(OURS) {
                let caller = |_| Handler {
                    by: dedupe.clone(),
                    next: next.clone(),
                };
                ours.push(callers::run(&bench.runtime, length, caller));
            } else if turn == 1 && wanted(SETNX) {
                let caller = |_| Handler {
                    by: connection.clone(),
                    next: next.clone(),
                };
                theirs.push(callers::run(&bench.runtime, length, caller));
            }
        }
    }
    let title = format!(
        "New messages, claimed and confirmed, {} callers, ids of 36 bytes",
        callers::CALLERS
    );
    callers::print(&title, &[(OURS, &ours), (SETNX, &theirs)]);
    if bench.settings.only().is_none() {
        callers::versus(
            NAME,
            "messages/s, claimed and confirmed, 256 callers",
            &ours,
            SETNX,
            &theirs,
        );
    }
}

async fn connect(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    // Without the time-out per command that is redis-rs's default: as fast as it gets.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// Handles a message that nobody has handled before.
struct Handler<T> {
    by: T,
    next: Arc<AtomicU64>,
}

impl<T> Handler<T> {
    fn id(&self) -> String {
        format!("{:036x}", self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Caller for Handler<Dedupe> {
    async fn call(&mut self) {
        let Claimed::New(claim) = self.by.try_claim(self.id()).await.unwrap() else {
            panic!("it is new")
        };
        assert!(claim.confirm().await.unwrap());
    }
}

impl Caller for Handler<MultiplexedConnection> {
    async fn call(&mut self) {
        let key = format!("bench:{}", self.id());
        let mut claim = redis::cmd("SET");
        claim
            .arg(&key)
            .arg("claimed")
            .arg("NX")
            .arg("PX")
            .arg(30_000);
        let claimed: Option<String> = claim.query_async(&mut self.by).await.unwrap();
        assert!(claimed.is_some(), "it is new");
        let mut confirm = redis::cmd("SET");
        confirm
            .arg(&key)
            .arg("handled")
            .arg("PX")
            .arg(WEEK.as_millis() as u64);
        confirm.exec_async(&mut self.by).await.unwrap();
    }
}
