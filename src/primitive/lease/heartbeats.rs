//! Heartbeats: waiters keep their places by them, and learn their state from the answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::admission::{Admission, HEARTBEAT};
use super::belief::Anchor;
use super::granting::By;
use super::key_state::Standing;
use super::kind::Kind;
use super::operations::{At, Heartbeat, Standings};
use super::options::LeaseOptions;
use super::outcome::Outcome;
use super::table::Stage;
use crate::primitive::clock;
use crate::store::{Link, lock};
use crate::{Error, Key};

/// The most waiters of one key in one call.
pub(super) const MOST_TOKENS: usize = 256;

/// How much later a message may arrive than an answer that was sent after it.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// Added to the expected end of a lease: a heartbeat that comes too early must be repeated.
const LATER: Duration = Duration::from_millis(2);

impl<K: Kind> Admission<K> {
    /// Returns when a waiter sends its next heartbeat: in time to keep its place, and when the next lease ends.
    pub(super) fn next_heartbeat(
        &self,
        options: &LeaseOptions,
        anchor: Anchor,
        link: Link,
        soonest: i64,
    ) -> Instant {
        let now = Instant::now();
        // Pushes that were sent between the server's answer and the new subscription are lost.
        if self.link() != link {
            return now;
        }
        let asks = options.foreign || link == Link::Down;
        let heartbeat = now + if asks { options.ask_every.min(HEARTBEAT) } else { HEARTBEAT };
        if soonest == 0 {
            return heartbeat;
        }
        let left = Duration::from_micros(u64::try_from(soonest - anchor.now).unwrap_or(0));
        let ends = clock::without_suspend(anchor.sent + left);
        heartbeat.min(ends.max(now) + LATER)
    }

    pub(super) async fn heartbeat(self: Arc<Self>, key: Key, waiters: Vec<(u64, Arc<str>)>) {
        let sent = self.sent();
        let tokens = waiters.iter().map(|(_, token)| Arc::clone(token)).collect();
        let heartbeat = Heartbeat { scene: Arc::clone(&self.scene), tokens };
        match self.clients.heartbeat.run(key, heartbeat).await {
            Ok(At { now, what: Standings { soonest, each, .. } }) => {
                for ((id, _), standing) in waiters.into_iter().zip(each) {
                    self.stands(id, standing, Anchor { sent: sent.at, now }, sent.link, soonest);
                }
            }
            Err(error) => self.unanswered(&waiters, &error),
        }
    }

    /// Handles the state of one waiter.
    fn stands(self: &Arc<Self>, id: u64, standing: Standing, anchor: Anchor, link: Link, soonest: i64) {
        match standing {
            Standing::Held { expiry, fence } => {
                self.granted(id, By::Grant(Some(anchor)), expiry, fence, None);
            }
            Standing::Queued { .. } => {
                if let Some(entry) = lock(&self.table).get_mut(id)
                    && let Stage::Queued(_) = entry.stage
                {
                    // A message may have made it due earlier.
                    let next = self.next_heartbeat(&entry.holding.options, anchor, link, soonest);
                    entry.due = Some(entry.due.map_or(next, |due| due.min(next)));
                    (entry.stage, entry.outage) = (Stage::Queued(anchor), None);
                }
            }
            Standing::Refused { .. } | Standing::Withdrawn | Standing::Done => {
                let mut table = lock(&self.table);
                let Some(entry) = table.get_mut(id) else { return };
                let Stage::Queued(_) = entry.stage else { return };
                if !K::Outcome::KEPT {
                    drop(table);
                    return self.place_lost(id);
                }
                let due = Instant::now() + ON_ITS_WAY;
                (entry.gone, entry.due) = (true, Some(due));
                drop(table);
                self.store.scheduler().schedule(due);
            }
        }
    }

    /// Handles a failed heartbeat: its waiters ask again soon, or stop waiting.
    fn unanswered(self: &Arc<Self>, waiters: &[(u64, Arc<str>)], error: &Error) {
        let outage = Some(error.clone()).filter(Error::is_away);
        let mut give_up = Vec::new();
        let mut table = lock(&self.table);
        for (id, _) in waiters {
            let Some(entry) = table.get_mut(*id).filter(|entry| entry.due.is_none()) else { continue };
            entry.due = Some(Instant::now() + entry.holding.options.ask_every.min(HEARTBEAT));
            entry.outage.clone_from(&outage);
            if outage.is_some() && entry.line.iter().any(|seat| seat.gives_up) {
                give_up.push(*id);
            }
        }
        drop(table);
        give_up.into_iter().for_each(|id| self.failed(id, error));
    }
}
