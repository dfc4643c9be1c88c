//! Fair shares of permits whose weights are as large as they may be.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::time::sleep;
use tower_distributed::WaitGroup;
use tower_distributed::wait_group::Turn;

use super::super::World;
use crate::server::lock;

/// The flows of a step, and the requests of each.
const FLOWS: usize = 2;
const EACH: usize = 18;
/// By then all wait.
const LINED_UP: Duration = Duration::from_secs(2);
/// The limit, of which each request takes all.
pub const LIMIT: u32 = u32::MAX;

impl World {
    /// One holds all until the others wait. Then the flows get the same shares.
    pub(super) async fn share(&self, permits: &WaitGroup) -> Option<()> {
        let key = format!("s{}", self.network.draw(1 << 50));
        // It has as many calls as forty others.
        if self.shape.max_wait < LINED_UP * 2 || !self.network.happens(200) {
            return None;
        }
        let first = self
            .get("add all", self.shape.max_wait, permits.add_n(&*key, LIMIT))
            .await?;
        let served = Mutex::new(Vec::new());
        let holds = async {
            sleep(LINED_UP).await;
            drop(first);
        };
        // Another flow comes when all others wait.
        let late = async {
            sleep(LINED_UP / 2).await;
            self.serve(permits, &key, FLOWS, &served).await
        };
        let all = join_all(
            (0..FLOWS * EACH)
                .map(|number| self.serve(permits, &key, number / EACH, &served).boxed()),
        );
        let (all, _, ()) = tokio::join!(all, late, holds);
        let mut served = served.into_inner().unwrap_or_default();
        served.retain(|flow| *flow < FLOWS);
        self.judges.count("shares");
        // Calls that wait for a replica leave one after the other, so not all of these wait when the first one ends.
        let are_lined_up = !self.shape.waits_for_replica();
        if all.contains(&None) || !self.runs_alone() || self.shape.has_runtimes || !are_lined_up {
            return None;
        }
        for end in 0..served.len() {
            let of = |flow: usize| {
                served[..end]
                    .iter()
                    .filter(|served| **served == flow)
                    .count()
            };
            let (most, least) = (0..FLOWS).map(of).fold((0, EACH), |(most, least), own| {
                (most.max(own), least.min(own))
            });
            if most > least + 1 {
                self.condemn(format!(
                    "{key}: flows of equal shares were served as {served:?}"
                ));
                break;
            }
        }
        Some(())
    }

    /// Takes all permits in turn, notes that, and gives them back. `None`: it did not have them.
    async fn serve(
        &self,
        permits: &WaitGroup,
        key: &str,
        flow: usize,
        served: &Mutex<Vec<usize>>,
    ) -> Option<()> {
        let since = self.judges.losses();
        let group = self.in_turn_of(permits, Turn::of(format!("flow{flow}")))?;
        let permit = self
            .get("add in turn", self.shape.max_wait, group.add_n(key, LIMIT))
            .await?;
        lock(served).push(flow);
        let name = format!("s:{key}");
        let who = self.acquired(&name, (permit.handle(), 1, true), 1, since);
        self.judges.released(&name, who);
        self.ask("done in turn", permit.done()).await;
        Some(())
    }
}
