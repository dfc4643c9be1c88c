//! The protocol of leases, every reachable state of which is looked at, in bounded settings.
//!
//! The model is the code: its server runs the [`KeyState`](super::key_state::KeyState) of the in-memory store, and its
//! processes believe what [`Anchor`](super::belief::Anchor) and [`Belief`](super::belief::Belief) say, and hand on by
//! [`Line`](super::line::Line). Only what binds these together is written anew: when a process sends what, which is
//! spread over futures and timers there.
//!
//! * [`server`]: one key, its clock, and what is seen there: who overtakes whom, and which fences are given out.
//! * [`client`] and [`holding`]: what a process does for those who wait in it, and with what it holds.
//! * [`world`]: what can happen, in every order. Calls are executed late, or when their sender has gone; replies and pushes
//!   come late, or never; processes stop; the server's clock jumps; the queue is evicted. Timers may be late: a heartbeat or
//!   a renewal is sent at any time, and a holder finds at any time that its lease is over.
//! * [`canonical`]: when two states are the same. Times are looked at from now, and fences by their order, so that the
//!   states are finite without an end of time.
//! * [`properties`] and [`calm`]: what must be so, and that nobody waits for ever.
//! * [`settings`] are explored in full. [`flaws`] puts faults back, and each is found.
//!
//! Left out are the end of tombstones and of fences, a full queue, and what happens when the server loses who holds. Each
//! seat comes once. A seat is polled by nobody else than by its future, and timers are the scheduler's.
//!
//! `MODEL_SIZE` tells how far to go: 1 is the default, with 350 thousand states; from 2 on leases of the larger settings are
//! longer, and more calls are under way at once. How many states were visited is printed:
//!
//! ```sh
//! MODEL_SIZE=2 cargo test --release --lib lease::model -- --nocapture
//! ```

mod calm;
mod canonical;
mod client;
mod flaws;
mod holding;
mod properties;
mod rules;
mod server;
mod settings;
mod world;

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use self::rules::Rules;
use self::world::{Event, World};
use super::kind::Holders;
use crate::primitive::mutex::holder::Holder;
use crate::primitive::rw_lock::holders::RwHolders;
use crate::primitive::wait_group::holders::PermitHolders;

/// Holders that are modelled.
pub(super) trait Modelled: Holders + Sync {
    /// Whether each who holds alone has a fence.
    const FENCED: bool;
    /// What there is besides who holds until when, and the fence.
    fn row(&self) -> i64 {
        0
    }
}

impl Modelled for Holder {
    const FENCED: bool = true;
}

impl Modelled for Holder<false> {
    const FENCED: bool = false;
}

impl Modelled for PermitHolders {
    const FENCED: bool = false;
}

impl Modelled for RwHolders {
    const FENCED: bool = true;
    fn row(&self) -> i64 {
        self.row
    }
}

/// The model, as the checker sees it.
#[derive(Debug)]
struct Protocol<H> {
    rules: Arc<Rules>,
    holders: PhantomData<fn(H)>,
}

impl<H: Modelled> Model for Protocol<H> {
    type State = World<H>;
    type Action = Event;

    fn init_states(&self) -> Vec<World<H>> {
        vec![World::new(&self.rules)]
    }

    fn actions(&self, world: &World<H>, events: &mut Vec<Event>) {
        world.events(events);
    }

    fn next_state(&self, world: &World<H>, event: Event) -> Option<World<H>> {
        Some(world.clone().after(event))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = Self::always();
        all.retain(|property| !self.rules.unless.contains(&property.name));
        if self.rules.flaws.is_empty() {
            all.extend(self.sometimes());
        }
        all
    }
}

fn protocol<H: Modelled>(rules: Rules) -> Protocol<H> {
    Protocol { rules: Arc::new(rules), holders: PhantomData }
}

/// Visits all states, and finds nothing that must not be, and everything that must be possible.
fn explore<H: Modelled>(name: &str, rules: Rules) {
    let began = Instant::now();
    let checker = protocol::<H>(rules).checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, {:.1?}", checker.unique_state_count(), began.elapsed());
    checker.assert_properties();
}

/// Finds a way in which a property is violated.
fn find<H: Modelled>(property: &'static str, rules: Rules) {
    let began = Instant::now();
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let flaws = rules.flaws;
    let checker = protocol::<H>(rules).checker().threads(2).finish_when(found).spawn_bfs().join();
    let way = checker.assert_any_discovery(property).into_actions();
    let count = checker.unique_state_count();
    println!("{flaws:?}: {count} states, {:.1?}: not so: {property}: {way:?}", began.elapsed());
}
