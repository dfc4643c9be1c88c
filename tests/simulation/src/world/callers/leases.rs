//! Locks, permits and claims.

use std::time::Duration;

use tower_distributed::dedupe::Claimed;
use tower_distributed::wait_group::Turn;
use tower_distributed::{Dedupe, Error, LeaseHandle, WaitGroup};

use super::super::World;
use super::super::judges::SKEW;
use super::Primitives;
use crate::network::micros;

/// More than all who hold.
const ALL: u32 = 1_000_000;

/// How late a message may be: one process after another fault that cuts it off.
const LATEST: Duration = Duration::from_secs(10);

impl World {
    /// Notes that something is held, holds it, and notes its end.
    pub(super) async fn hold_as(
        &self,
        name: &str,
        (handle, weight, is_exclusive): (LeaseHandle, u32, bool),
        limit: u32,
        since: u64,
    ) {
        let who = self.acquired(name, (handle.clone(), weight, is_exclusive), limit, since);
        self.network.note(&format!("h{who} holds"), name);
        self.hold(handle.lost()).await;
        self.judges.released(name, who);
        self.network.note(&format!("h{who} ends"), name);
    }

    /// Ends what was held, by a call or by a drop.
    pub(super) async fn end_of(
        &self,
        what: &'static str,
        release: impl Future<Output = Result<bool, Error>>,
    ) -> Option<()> {
        if self.network.happens(500) {
            return None;
        }
        self.ask(what, release).await.map(drop)
    }

    /// The holder of a lock does not believe longer in it than the server does.
    fn is_held_there(&self, key: &str, handle: &LeaseHandle) {
        let name = format!("td:{{m:{key}}}:lock");
        let ends = self.network.expires(&self.servers, name.as_bytes());
        let left = ends.map_or(0, |ends| ends - (micros() + self.judges.clock()) / 1000);
        let believed = handle.time_left().as_millis() as i64;
        if handle.is_held()
            && believed > left.max(0) + SKEW.as_millis() as i64
            // A lock may be of a grant from before, whose message was late.
            && self.judges.nothing_is_lost_for(self.shape.ttl + LATEST)
        {
            self.condemn(format!(
                "m:{key}: held for {believed} ms, at the server for {left} ms"
            ));
        }
    }

    /// Awaits a call that waits for its turn, and judges the order if turns are given in one.
    async fn in_turn<T>(
        &self,
        name: &str,
        in_order: bool,
        call: impl Future<Output = Option<T>>,
    ) -> Option<T> {
        if !(in_order && self.runs_alone() && self.shape.neglected == 0) {
            return call.await;
        }
        let number = self.judges.waits(name);
        let outcome = call.await;
        self.judges.waited(name, number, outcome.is_some());
        outcome
    }

    pub(super) async fn lock(&self, all: &Primitives, key: &str) -> Option<()> {
        let (since, turns) = (self.judges.losses(), self.judges.turns());
        let name = format!("m:{key}");
        let guard = match self.network.happens(100) {
            true => self.ask("try_lock", all.mutex.try_lock(key)).await?,
            false => {
                let call = self.call_that_waits("lock", all.mutex.lock(key));
                self.in_turn(&name, all.is_strict, call).await?
            }
        };
        self.judges
            .fence(&name, guard.fence(), guard.is_held(), (since, turns));
        self.is_held_there(key, &guard.handle());
        self.hold_as(&name, (guard.handle(), 1, true), 1, since)
            .await;
        self.is_held_there(key, &guard.handle());
        self.end_of("unlock", guard.unlock()).await
    }

    pub(super) async fn lock_all(&self, all: &Primitives) -> Option<()> {
        let (since, turns) = (self.judges.losses(), self.judges.turns());
        let mut keys: Vec<_> = (0..self.shape.keys).map(|key| format!("k{key}")).collect();
        // Two callers name the same keys in another order.
        let turned = self.network.draw(self.shape.keys) as usize;
        keys.rotate_left(turned);
        keys.truncate(3);
        let call = all.mutex.lock_all(keys.clone());
        let guards = self.call_that_waits("lock_all", call).await?;
        let acquired = keys.iter().zip(guards.iter()).map(|(key, guard)| {
            let name = format!("m:{key}");
            self.judges
                .fence(&name, guard.fence(), guard.is_held(), (since, turns));
            let who = self.acquired(&name, (guard.handle(), 1, true), 1, since);
            (name, who)
        });
        let acquired: Vec<_> = acquired.collect();
        self.hold(guards.lost()).await;
        for (name, who) in acquired {
            self.judges.released(&name, who);
        }
        self.end_of("unlock all", guards.unlock()).await
    }

    pub(super) async fn permit(&self, all: &Primitives, key: &str) -> Option<()> {
        let since = self.judges.losses();
        let mut turn = Turn::new();
        if all.has_classes {
            turn = turn.class(self.network.draw(3) as u8);
        }
        let has_flow = all.is_fair && self.network.happens(700);
        if has_flow {
            turn = turn
                .flow(format!("flow{}", self.network.draw(3)))
                .share(1 + self.network.draw(3) as u32);
        }
        let group = match all.is_fair && !has_flow {
            true => self.in_turn_of(&all.plain, turn)?,
            false => self.in_turn_of(&all.permits, turn)?,
        };
        let name = format!("g:{key}");
        let limit = group.limit();
        let weight = 1 + self.network.draw(u64::from(limit)) as u32;
        let permit = match self.network.happens(100) {
            true => self.ask("try_add", group.try_add_n(key, weight)).await?,
            false => {
                let call = self.call_that_waits("add", group.add_n(key, weight));
                let added = self.in_turn(&name, all.is_fifo, call).await;
                if added.is_none() {
                    self.waits_no_more(all, &name);
                }
                added?
            }
        };
        self.hold_as(&name, (permit.handle(), weight, false), limit, since)
            .await;
        self.end_of("done", permit.done()).await
    }

    /// These permits for who waits with this turn.
    pub(super) fn in_turn_of(&self, group: &WaitGroup, turn: Turn) -> Option<WaitGroup> {
        let group = group.with_turn(turn);
        group
            .inspect_err(|error| self.condemn(format!("with_turn: {error}")))
            .ok()
    }

    pub(super) async fn read_or_write(&self, all: &Primitives, key: &str) -> Option<()> {
        let (lock, since, turns) = (&all.lock, self.judges.losses(), self.judges.turns());
        let name = format!("rw:{key}");
        if self.network.happens(600) {
            let guard = self.call_that_waits("read", lock.read(key)).await?;
            self.hold_as(&name, (guard.handle(), 1, false), ALL, since)
                .await;
            return self.end_of("release a reader", guard.release()).await;
        }
        let guard = self.call_that_waits("write", lock.write(key)).await?;
        self.judges
            .fence(&name, guard.fence(), guard.is_held(), (since, turns));
        self.hold_as(&name, (guard.handle(), 1, true), ALL, since)
            .await;
        self.end_of("release a writer", guard.release()).await
    }

    pub(super) async fn claim(&self, all: &Primitives, dedupe: &Dedupe, key: &str) -> Option<()> {
        let item = format!("{key}-{}", self.network.draw(20));
        let name = format!("{}:{item}", dedupe.name());
        let (was_handled, since) = (self.judges.is_handled(&name), self.judges.losses());
        let claimed = match self.network.happens(500) {
            true => self.ask("try_claim", dedupe.try_claim(&item)).await?,
            false => {
                let call = dedupe.claim(&item, self.shape.max_wait);
                let claimed = self.call_that_waits("claim", call).await;
                // The items of a filter share a name.
                self.waits_no_more(all, &format!("{}:", dedupe.name()));
                claimed?
            }
        };
        let Claimed::New(claim) = claimed else {
            return None;
        };
        // Who waited meanwhile, and holds it now, was granted it later.
        let is_held = claim.handle().is_held() && claim.handle().time_left() > SKEW;
        let is_handled = was_handled || is_held && self.judges.is_handled(&name);
        if is_handled && self.judges.losses() == since {
            self.condemn(format!("{name} was handled, and is claimed again"));
        }
        self.hold_as(&name, (claim.handle(), 1, true), 1, since)
            .await;
        if self.network.happens(300) {
            return self.end_of("give up a claim", claim.release()).await;
        }
        if self.ask("confirm", claim.confirm()).await? {
            self.judges.handled(&name, since);
        }
        Some(())
    }
}
