//! Redis Sentinel with a master and a replica.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use deadpool_redis::redis::{RedisResult, Value};

use crate::eventually;
use crate::redis_server::RedisServer;

const SERVICE: &str = "tower";
const DEADLINE: Duration = Duration::from_secs(60);
/// After this time the sentinel gives up a failover.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// A master, its replica, and one sentinel that can decide on a failover alone. Needs Redis 7.0 (see
/// [`since_7_0`](crate::program::since_7_0)).
pub struct Sentinel {
    sentinel: Member,
    servers: [Member; 2],
}

/// A server, and the port by which the others know it.
type Member = (RedisServer, u16);

impl Sentinel {
    /// Starts all three and waits until a failover would succeed.
    pub async fn start() -> Self {
        Self::started_by(async |config: String, arguments: &[&str]| {
            let server = RedisServer::launch(|| config.clone(), arguments).await;
            let port = server.port();
            (server, port)
        })
        .await
    }

    /// Like [`start`](Self::start), with servers that `launch` starts, given lines of configuration and arguments.
    pub async fn started_by(launch: impl AsyncFn(String, &[&str]) -> Member) -> Self {
        let master = launch(String::new(), &[]).await;
        let replica = launch(format!("replicaof 127.0.0.1 {}", master.1), &[]).await;
        let sentinel = launch(monitor(master.1), &["--sentinel"]).await;
        // The defaults are ten and two seconds. Do not change the ping-period: for a failover, the sentinel's
        // information about a replica must be younger than five ping-periods, and the sentinel then asks only once a
        // second.
        for period in ["info-period", "publish-period"] {
            sentinel.0.cli(&["SENTINEL", "DEBUG", period, "100"]);
        }
        let started = Self {
            sentinel,
            servers: [master, replica],
        };
        started.settled().await;
        started
    }

    pub fn sentinel_urls(&self) -> Vec<String> {
        vec![self.sentinel.0.url()]
    }

    /// Returns the port by which clients know the sentinel.
    pub fn sentinel_port(&self) -> u16 {
        self.sentinel.1
    }

    /// Returns the name of the master in the sentinel's configuration.
    pub fn service_name(&self) -> &'static str {
        SERVICE
    }

    /// Returns the sentinel itself.
    pub fn sentinel(&self) -> &RedisServer {
        &self.sentinel.0
    }

    /// Returns the server that the sentinel now names as the master, even if it is down.
    pub fn master(&self) -> &RedisServer {
        let (_, named): (String, u16) = self
            .sentinel
            .0
            .query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
            .unwrap();
        let master = self.servers.iter().find(|(_, port)| *port == named);
        &master.expect("the sentinel names one of ours").0
    }

    /// Returns the other server.
    pub fn replica(&self) -> &RedisServer {
        let master = self.master().port();
        &self
            .servers
            .iter()
            .find(|(server, _)| server.port() != master)
            .unwrap()
            .0
    }

    /// Sends SENTINEL FAILOVER. Returns when the sentinel names the other server.
    ///
    /// The old master keeps running. A moment later the sentinel makes it a replica (see [`Sentinel::settled`]).
    pub async fn failover(&self) {
        let before = self.master().port();
        let what = format!("the sentinel to name another master than port {before}");
        let mut accepted: Option<Instant> = None;
        eventually(&what, DEADLINE, async || {
            if self.is_promoted(before) {
                return true;
            }
            // By then, it has given up a failover that found no replica in time.
            if accepted.is_none_or(|accepted| accepted.elapsed() > 2 * FAILOVER_TIMEOUT) {
                let failover = ["SENTINEL", "FAILOVER", SERVICE];
                let is_accepted = self.sentinel.0.query::<Value>(&failover).is_ok();
                accepted = is_accepted.then(Instant::now);
            }
            false
        })
        .await;
    }

    /// Kills the master. Returns when the sentinel has noticed and names the other server.
    pub async fn kill_master(&self) {
        let master = self.master();
        master.kill9();
        self.promoted(master.port()).await;
    }

    /// Waits until the sentinel sees a replica in sync, which can take over.
    pub async fn settled(&self) {
        eventually(
            "the sentinel to see a replica in sync",
            DEADLINE,
            async || self.link_is_up() && self.sees_healthy_replica(),
        )
        .await;
    }

    async fn promoted(&self, before: u16) {
        let what = format!("the sentinel to name another master than port {before}");
        eventually(&what, DEADLINE, async || self.is_promoted(before)).await;
    }

    fn is_promoted(&self, before: u16) -> bool {
        let master = self.master();
        master.port() != before && info(master).contains("role:master\r\n")
    }

    fn link_is_up(&self) -> bool {
        info(self.replica()).contains("master_link_status:up\r\n")
    }

    fn sees_healthy_replica(&self) -> bool {
        let replicas: RedisResult<Vec<HashMap<String, String>>> =
            self.sentinel.0.query(&["SENTINEL", "REPLICAS", SERVICE]);
        let healthy = |replica: &HashMap<String, String>| {
            replica["flags"] == "slave" && replica["master-link-status"] == "ok"
        };
        replicas.is_ok_and(|replicas| replicas.len() == 1 && replicas.iter().all(healthy))
    }
}

/// The sentinel's configuration.
fn monitor(master: u16) -> String {
    format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {master} 1\n\
         sentinel down-after-milliseconds {SERVICE} 500\n\
         sentinel failover-timeout {SERVICE} {}\n",
        FAILOVER_TIMEOUT.as_millis()
    )
}

fn info(server: &RedisServer) -> String {
    server.query(&["INFO", "replication"]).unwrap_or_default()
}
