//! The periodic task of a namespace of leases: releases, renewals, heartbeats.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;

use super::admission::Admission;
use super::heartbeats::MOST_TOKENS;
use super::kind::Kind;
use super::state::LeaseState;
use super::table::Stage;
use crate::Key;
use crate::store::{News, PeriodicTask, Recipient, lock};

impl<K: Kind> Admission<K> {
    async fn watch_over(self: Arc<Self>, state: Arc<LeaseState>) {
        let renewed = self.renew(&state).await;
        self.renewals.renewed(&state, renewed.is_ok());
    }
}

impl<K: Kind> PeriodicTask for Admission<K> {
    fn due(&self) -> Option<Instant> {
        let waiters = lock(&self.table).values().filter_map(|entry| entry.due).min();
        [waiters, self.renewals.due(), self.releases.due()].into_iter().flatten().min()
    }

    fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        let now = Instant::now();
        self.run_releases(now);
        let due = self.renewals.take_due(now).into_iter();
        let renewals = join_all(due.map(|state| Arc::clone(&self).watch_over(state)));
        let mut by_key = HashMap::<Key, Vec<(u64, Arc<str>)>>::new();
        let (mut abandoned, mut gone, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for (id, entry) in lock(&self.table).iter_mut() {
            if entry.due.take_if(|due| *due <= now).is_none() {
                continue;
            }
            match entry.stage {
                Stage::Queued(_) if entry.gone => gone.push(id),
                Stage::Queued(_) => {
                    by_key.entry(entry.key.clone()).or_default().push((id, Arc::clone(&entry.token)));
                }
                Stage::Asking => abandoned.push(id),
                Stage::Holding => over.push(id),
            }
        }
        abandoned.into_iter().for_each(|id| self.look_at_driver(id));
        gone.into_iter().for_each(|id| self.place_lost(id));
        over.into_iter().for_each(|id| self.tenure_over(id));
        let mut heartbeats = Vec::new();
        for (key, waiters) in by_key {
            for waiters in waiters.chunks(MOST_TOKENS) {
                heartbeats.push(Arc::clone(&self).heartbeat(key.clone(), waiters.to_vec()));
            }
        }
        Box::pin(async move {
            tokio::join!(renewals, join_all(heartbeats));
        })
    }

    fn hurry(&self) {
        self.releases.hurry();
    }

    fn interrupted(&self) {
        self.renewals.interrupted();
        let now = Instant::now();
        for (_, entry) in lock(&self.table).iter_mut() {
            if let Stage::Queued(_) = entry.stage {
                entry.due = entry.due.or(Some(now));
            }
        }
    }

    fn relinked(&self) {
        let now = Instant::now();
        for (_, entry) in lock(&self.table).iter_mut() {
            if let Stage::Queued(_) = entry.stage {
                entry.due = entry.due.map(|_| now);
            }
        }
    }
}

impl<K: Kind> Recipient for Admission<K> {
    fn hear(self: Arc<Self>, id: u64, news: News) {
        self.heard(id, news);
    }
}
