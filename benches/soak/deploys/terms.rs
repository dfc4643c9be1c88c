//! The settings of the gateways beside restarts and failovers.

use std::env;
use std::time::Duration;

use tower_distributed::{Quota, Store};

use crate::gateway::Terms;

/// Makes of the gateways that are replaced strangers to the one that lasts, so that the referee must find breaches.
pub const FORGE: &str = "FORGE";

/// A limit of one user, per second and at once.
pub const LIMITED: (u32, u32) = (1, 3);
pub const BUDGET: (u32, u32) = (3, 20);

pub const REMEMBER: Duration = Duration::from_secs(30);

/// Longer than a failover takes, so that leases are renewed after it.
pub const TTL: Duration = Duration::from_secs(8);

/// With calls that count once the replica of their master has them, so that a failover loses nothing.
pub fn store(urls: &str) -> Store {
    let builder = Store::builder()
        .timeout(Duration::from_secs(3))
        .replicas(1, Duration::from_secs(1));
    builder.cluster(urls.split(',')).unwrap()
}

pub fn of_this_process() -> Terms {
    Terms {
        names: if env::var_os(FORGE).is_some() {
            "forged"
        } else {
            "deploys"
        },
        ttl: TTL,
        // Longer than several works of one key.
        max_wait: Duration::from_secs(60),
        remember: REMEMBER,
        limited: quota(LIMITED),
        budget: quota(BUDGET),
    }
}

fn quota((rate, burst): (u32, u32)) -> Quota {
    Quota::per_second(rate).burst(burst)
}
