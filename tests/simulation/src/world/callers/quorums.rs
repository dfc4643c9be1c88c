//! Locks that a majority of independent servers grants.

use std::sync::Arc;
use std::time::Duration;

use tower_distributed::{Error, Mutex, Store};

use super::super::World;
use super::super::shape::Shape;
use crate::network::Dialer;

/// The servers, besides those of the other primitives.
pub const NODES: [&str; 3] = ["q:1", "q:2", "q:3"];
/// Nobody wakes those that wait.
const RETRIES: Duration = Duration::from_millis(500);

pub struct Quorum {
    pub nodes: Vec<Store>,
    pub mutex: Mutex,
}

impl Quorum {
    pub fn new(
        shape: &Shape,
        runtime: &tokio::runtime::Handle,
        dialer: &Arc<Dialer>,
    ) -> Result<Self, Error> {
        let dial = |address: &&str| {
            let builder = Store::builder()
                .background(runtime.clone())
                .dial(Arc::clone(dialer) as _);
            builder.redis(&format!("redis://{address}"))
        };
        let nodes = NODES.iter().map(dial).collect::<Result<Vec<_>, _>>()?;
        let mutex = Mutex::builder()
            .ttl(shape.ttl)
            .max_wait(shape.max_wait)
            .timeout_factor(0.2);
        let mutex = mutex
            .retry_delay(|_| RETRIES)
            .fail_fast(shape.setting(30, 2) == 0);
        Ok(Self {
            mutex: mutex.build_quorum(nodes.clone(), "qm")?,
            nodes,
        })
    }
}

impl World {
    pub(super) async fn lock_by_quorum(&self, quorum: &Quorum, key: &str) -> Option<()> {
        let (since, turns) = (self.judges.losses(), self.judges.turns());
        let name = format!("qm:{key}");
        let call = quorum.mutex.lock(key);
        let guard = self.get("quorum", self.shape.max_wait, call).await?;
        self.judges
            .fence(&name, guard.fence(), guard.is_held(), (since, turns));
        self.hold_as(&name, (guard.handle(), 1, true), 1, since)
            .await;
        self.end_of("unlock a quorum", guard.unlock()).await
    }
}
