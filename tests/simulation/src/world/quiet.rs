//! Nobody polls: few requests are sent while nobody calls, and while callers wait.

use std::any::Any;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio::try_join;
use tower_distributed::Error;

use super::callers::Primitives;
use super::shape::{Kind, Servers};
use super::{Process, World};

/// For how long requests are counted while nobody calls.
const IDLE: Duration = Duration::from_secs(10);
/// A process that never waited before subscribes first, in a Cluster to many channels.
const SUBSCRIBED: Duration = Duration::from_secs(1);
/// For how long requests are counted while a caller waits.
const WAIT: Duration = Duration::from_millis(1500);
/// What each process asks the Sentinels in a second.
const OF_SENTINELS: f64 = 2.2;
/// What it asks the nodes of a Cluster, one by one, and to look for the masters where a message was late.
const OF_CLUSTER: f64 = 1.5;
/// What a process may send in a second while nobody calls and nothing is held.
const MOST_A_SECOND: f64 = 1.0;
/// The calls that it may make besides in `WAIT` while one of its callers waits: heartbeats, and what a late message costs.
const MOST_OF_A_WAIT: f64 = 9.0;
/// What may fall into a span beyond its share.
const EDGES: f64 = 4.0;
/// What it takes to connect again where messages are late, or a fault has cut a connection that is not used until now.
const CONNECTIONS: f64 = 12.0;
/// The renewals of what another caller holds in a ttl: three, some of them twice.
const RENEWALS: f64 = 6.0;

const KEY: &str = "quiet";
type Held = Option<Box<dyn Any + Send>>;

impl World {
    /// Who waits asks seldom.
    pub(super) fn nobody_hammers(&self) {
        let (busiest, most) = (self.network.busiest(), self.shape.busiest());
        if busiest > most {
            let what = format!("a process sent {busiest} requests in a second, at most {most}");
            self.condemn(what);
        }
    }

    /// What a process sends in this time whether it is called or not: it follows settings, by calls, and looks for its servers.
    fn besides(&self, span: Duration) -> f64 {
        let of_servers = match self.shape.servers {
            Servers::One => 0.0,
            Servers::Sentinel => OF_SENTINELS,
            Servers::Cluster => OF_CLUSTER,
        };
        let of_calls = MOST_A_SECOND * self.shape.requests_of_a_call() as f64;
        (of_calls + of_servers) * span.as_secs_f64() + EDGES
    }

    pub(super) async fn who_is_idle_is_quiet(&self, processes: &[Arc<Process>]) {
        let sent = |process: &Arc<Process>| self.network.requests(process.number);
        let before: Vec<_> = processes.iter().map(sent).collect();
        sleep(IDLE).await;
        for (process, before) in processes.iter().zip(before) {
            let sent = sent(process) - before;
            let is_cut = self.shape.weather.often_late > 0 || !self.shape.faults.is_empty();
            let connections = if is_cut { CONNECTIONS } else { 0.0 };
            if sent as f64 > self.besides(IDLE) + connections {
                let number = process.number;
                self.condemn(format!(
                    "process {number} sent {sent} requests in {IDLE:?} of idleness"
                ));
            }
        }
    }

    /// One holds, and one waits, mostly in another process: it asks seldom meanwhile, and is woken once it is its turn.
    pub(super) async fn who_waits_is_quiet(&self, processes: &[Arc<Process>]) {
        let (Some(holder), Some(waiter)) = (processes.first(), processes.last()) else {
            return;
        };
        // On runtimes of their own, the calls would have to be made there.
        let is_late = self.shape.weather.often_late > 0; // who is not subscribed polls, and a subscription may take seconds
        if self.shape.max_wait < SUBSCRIBED + WAIT || self.shape.has_runtimes || is_late {
            return;
        }
        for kind in &self.shape.kinds {
            let (free, is_free) = watch::channel(false);
            let waits = self.waits(*kind, &holder.primitives, &waiter.primitives, is_free);
            let mut waits = pin!(waits);
            let counted = async {
                sleep(SUBSCRIBED).await;
                let before = self.network.requests(waiter.number);
                sleep(WAIT).await;
                self.network.requests(waiter.number) - before
            };
            let sent = tokio::select! {
                _ = &mut waits => continue,
                sent = counted => sent,
            };
            self.judges.count("waits");
            let renewals = RENEWALS * WAIT.as_secs_f64() / self.shape.ttl.as_secs_f64();
            let calls = (MOST_OF_A_WAIT + renewals) * self.shape.requests_of_a_call() as f64;
            if sent as f64 > self.besides(WAIT) + calls {
                let number = waiter.number;
                let what = format!(
                    "process {number} sent {sent} requests in {WAIT:?} of waiting, {kind:?}"
                );
                self.condemn(what);
            }
            // A connection that a fault has made deaf may be noticed later.
            if !self.network.is_well(&[holder.number, waiter.number]) {
                continue;
            }
            free.send_replace(true);
            match timeout(self.shape.hears_within(), waits).await {
                Ok(Ok(())) => self.judges.count("woken at the end"),
                Ok(Err(_)) => self.judges.count("errors"),
                Err(_) => {
                    self.condemn(format!("process {} was not woken, {kind:?}", waiter.number))
                }
            }
            // Where the request of the waiter was the first, the other one has waited.
            for process in [holder, waiter] {
                self.waits_no_more(&process.primitives, "");
            }
        }
    }

    /// Holds something until it `is_free`, and waits for the same.
    async fn waits(
        &self,
        kind: Kind,
        holder: &Primitives,
        waiter: &Primitives,
        mut is_free: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        if kind == Kind::Flight {
            let run = move || {
                let mut is_free = is_free.clone();
                async move {
                    drop(is_free.wait_for(|is_free| *is_free).await);
                    String::new()
                }
            };
            let [first, second] = [holder, waiter].map(|all| all.flight.run(KEY, run.clone()));
            return try_join!(first, second).map(drop);
        }
        let held = self.take(kind, holder, true).await?;
        let until_free = async {
            // The end of the sender frees it as well. What has no turns is not waited for.
            if held.is_some() {
                drop(is_free.wait_for(|is_free| *is_free).await);
            }
            Ok::<_, Error>(drop(held))
        };
        try_join!(until_free, self.take(kind, waiter, false)).map(drop)
    }

    /// Takes all of something, or what waits for that.
    async fn take(&self, kind: Kind, all: &Primitives, takes_all: bool) -> Result<Held, Error> {
        let claims = match kind {
            Kind::FilterClaim => &all.filter_claims,
            _ => &all.claims,
        };
        Ok(Some(match kind {
            Kind::Mutex | Kind::Mutexes => Box::new(all.mutex.lock(KEY).await?),
            Kind::Permit if takes_all => {
                Box::new(all.permits.add_n(KEY, all.permits.limit()).await?)
            }
            Kind::Permit => Box::new(all.permits.add(KEY).await?),
            Kind::RwLock if takes_all => Box::new(all.lock.write(KEY).await?),
            Kind::RwLock => Box::new(all.lock.read(KEY).await?),
            Kind::Claim | Kind::FilterClaim if takes_all => Box::new(claims.try_claim(KEY).await?),
            Kind::Claim | Kind::FilterClaim => {
                Box::new(claims.claim(KEY, self.shape.max_wait).await?)
            }
            _ => return Ok(None),
        }))
    }
}
