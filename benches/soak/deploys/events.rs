//! What happens to the servers and the gateways, one after the other.

use std::thread::sleep;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::fleet::Fleet;
use support::replicated::ReplicatedCluster;
use support::slot_move::SlotMove;

/// Slots that are passed on at once.
const SLOTS: usize = 16;
/// One of so many is on its way for some time.
const SLOW: usize = 4;
const ON_ITS_WAY: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Deploy,
    MasterRestarted,
    GatewayKilled,
    Failover,
    Reshard,
    MasterKilled,
}

impl Event {
    pub const ALL: [Self; 6] = [
        Self::Deploy,
        Self::MasterRestarted,
        Self::GatewayKilled,
        Self::Failover,
        Self::Reshard,
        Self::MasterKilled,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Deploy => "gateway replaced, after its last answer",
            Self::MasterRestarted => "master killed and restarted",
            Self::GatewayKilled => "gateway killed, another one started",
            Self::Failover => "`CLUSTER FAILOVER`",
            Self::Reshard => "16 slots with keys passed on",
            Self::MasterKilled => "master killed, its replica takes over",
        }
    }

    /// How long requests may fail after its beginning.
    pub fn bound(self) -> Duration {
        Duration::from_secs(match self {
            Self::Deploy => 0,
            // Those that it had.
            Self::GatewayKilled => 1,
            Self::Failover | Self::Reshard => 8,
            Self::MasterRestarted | Self::MasterKilled => 10,
        })
    }

    /// Returns when all is as it was before. `round`: how often it has happened before.
    pub fn strike(
        self,
        runtime: &Runtime,
        cluster: &ReplicatedCluster,
        fleet: &mut Fleet,
        round: usize,
    ) {
        match self {
            Self::Deploy => fleet.deploy(),
            Self::GatewayKilled => fleet.kill(),
            Self::MasterRestarted => runtime.block_on(async {
                let masters = cluster.masters();
                masters[round % masters.len()].restart().await;
                cluster.mend().await;
            }),
            Self::Failover => runtime.block_on(cluster.fail_over(round)),
            Self::Reshard => reshard(cluster, round),
            Self::MasterKilled => runtime.block_on(async {
                cluster.kill_master(round).await;
                cluster.mend().await;
            }),
        }
    }
}

/// Passes slots with live keys from one master to the next.
fn reshard(cluster: &ReplicatedCluster, round: usize) {
    let masters = cluster.masters();
    let [from, to] = [round, round + 1].map(|number| masters[number % masters.len()]);
    let keys: Vec<String> = from.query(&["KEYS", "td:{*"]).unwrap();
    let mut slots = Vec::new();
    for key in keys {
        if slots.len() == SLOTS {
            break;
        }
        let slot = from.cli(&["CLUSTER", "KEYSLOT", &key]);
        if !slots.contains(&slot) {
            let moving = SlotMove::between(from, to, &key);
            if slots.len() % SLOW == 0 {
                sleep(ON_ITS_WAY);
            }
            moving.end_at(&masters);
            slots.push(slot);
        }
    }
}
