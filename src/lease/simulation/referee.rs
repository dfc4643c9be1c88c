//! The referee: it sees all processes at once.

use tokio::time::Instant;

use super::Leases;
use super::process::Lease;

#[derive(Debug, Default)]
pub(super) struct Referee {
    /// The leases that are held, with their weights.
    held: Vec<(Lease, i64)>,
    /// The highest fence of an exclusive holder.
    fence: i64,
    pub(super) problem: Option<String>,
}

impl Referee {
    pub(super) fn holds(&mut self, lease: &Lease, weight: i64, leases: Leases, capacity: i64) {
        let is_fenced = match leases {
            Leases::Mutex => true,
            Leases::Permits => false,
            Leases::ReadWrite => weight == capacity,
        };
        if is_fenced {
            if lease.fence <= self.fence {
                self.problem = Some(format!("the fence {} is not above {}", lease.fence, self.fence));
            }
            self.fence = lease.fence;
        }
        self.held.push((lease.clone(), weight));
    }

    /// Checks that all holders that count on their leases fit. Returns one that has lost its lease.
    pub(super) fn check(&mut self, at: Instant, capacity: i64) -> Option<Lease> {
        let lost = self.held.iter().find(|(lease, _)| lease.is_lost(at)).map(|(lease, _)| lease.clone());
        self.held.retain(|(lease, _)| lease.is_held(at));
        let weight: i64 = self.held.iter().map(|(_, weight)| weight).sum();
        if weight > capacity {
            let held: Vec<_> = self.held.iter().map(|(lease, _)| (lease.actor, &lease.token)).collect();
            self.problem.get_or_insert(format!("held at once: {weight} of {capacity}: {held:?}"));
        }
        lost
    }
}
