//! Flights: one works, the others get its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::super::World;
use super::Primitives;

/// A run. It ends when this is dropped.
pub(super) struct Run {
    world: Arc<World>,
    key: String,
}

impl Run {
    pub(super) fn new(world: &Arc<World>, key: String) -> Self {
        Self {
            world: Arc::clone(world),
            key,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.world.judges.ends(&self.key);
    }
}

impl World {
    /// Whether each run ends before its lead does, and each call is answered in time.
    pub(super) fn runs_alone(&self) -> bool {
        let shape = &self.shape;
        shape.faults.is_empty() && shape.weather.often_late == 0 && shape.dropped == 0
    }

    pub(super) async fn fly(self: &Arc<Self>, all: &Primitives, key: &str) -> Option<()> {
        let (world, own) = (Arc::clone(self), key.to_owned());
        let (process, name) = (all.process, format!("f:{key}"));
        let (number, works) = (
            self.network.draw(1_000_000),
            self.network.draw(self.shape.held + 1),
        );
        let leads = name.clone();
        let work = move || async move {
            world
                .network
                .wakes
                .iter()
                .for_each(|wakes| wakes.has_ended(process, &leads));
            let running = world.judges.begins(&own);
            if running > 1 && world.runs_alone() {
                world.condemn(format!("{running} runs of the flight {own} at once"));
            }
            let answer = format!("{own}:{number}");
            let run = Run::new(&world, own);
            sleep(Duration::from_millis(works)).await;
            drop(run);
            answer
        };
        // A leader works after it has waited for its turn.
        let most = self.shape.max_wait + Duration::from_millis(self.shape.held) * 2;
        let answer = self.get("run", most, all.flight.run(key, work)).await;
        self.waits_no_more(all, &name);
        let answer = answer?;
        if !answer.starts_with(&format!("{key}:")) {
            self.condemn(format!("{key} got the answer {answer}"));
        }
        Some(())
    }
}
