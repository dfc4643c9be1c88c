//! A model of the lease protocol. The checker visits every reachable state in bounded settings.
//!
//! The model runs the real code. Its server runs the [`KeyState`](super::key_state::KeyState) of the in-memory store.
//! Its processes run the [step](super::process::Tokens::step) of the client. The model adds only the order of events.
//!
//! * [`server`]: one key, its clock, and the observations there: which waiters overtake others, and which fences are
//!   granted.
//! * [`client`]: carries out the effects of the step.
//! * [`world`]: the events, in every order. Calls run late, or after their sender has crashed; replies and pushes
//!   arrive late, or never; processes crash; the server's clock jumps; the queue is evicted. Timers may be late: a
//!   heartbeat or a renewal is sent at any time, and a holder notices at any time that its lease has ended. If
//!   tombstones end, a call that has not run for as long as one lasts is lost.
//! * [`canonical`]: when two states are equal. Times are relative to now, and fences count by their order. So the
//!   number of states is finite, although time is unbounded.
//! * [`properties`] and [`calm`]: the invariants, and that no waiter waits forever.
//! * [`settings`]: the settings that are explored in full. [`flaws`] reintroduces known faults, and the checker finds
//!   each of them.
//!
//! The model leaves out the end of fences, a full queue, and a server that loses its holders.
//! Each waiter arrives once. Only its own future polls a waiter, and only the scheduler runs timers.
//!
//! The worlds of `tests/simulation` draw some orders of events, with the scripts of the server. They check the
//! behaviour that callers see. This model covers every order, also those in which timers are late, calls run after any
//! time, and futures are not polled. The worlds do not check: that no process treats a lease as valid for longer than
//! it is held on the server, after any fault that keeps the server's state; that every waiter is served in bounded time
//! from every state; that a released token never comes back; and which waiter goes first, with flows, classes and the
//! newest first.

mod calm;
mod canonical;
mod client;
mod flaws;
mod properties;
mod rules;
mod server;
mod settings;
mod turns;
mod world;

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::lease::holders::Holder;
use crate::lease::kind::Holders;
use crate::lease::model::rules::Rules;
use crate::lease::model::world::{Event, World};
use crate::rw_lock::holders::RwHolders;
use crate::wait_group::permits::PermitHolders;

/// Holders that can be modelled.
pub(super) trait Modelled: Holders + Sync {
    /// Whether each exclusive holder has a fence.
    const FENCED: bool;
    /// Returns the state besides the holders, their expiries and the fence.
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

/// The model, in the form for the checker.
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
    Protocol {
        rules: Arc::new(rules),
        holders: PhantomData,
    }
}

/// Visits all states. Checks that every `always` property holds, and that every `sometimes` property is reached.
fn explore<H: Modelled>(rules: Rules) {
    protocol::<H>(rules)
        .checker()
        .threads(2)
        .spawn_bfs()
        .join()
        .assert_properties();
}

/// Finds a sequence of events that violates a property.
fn find<H: Modelled>(property: &'static str, rules: Rules) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = protocol::<H>(rules)
        .checker()
        .threads(2)
        .finish_when(found)
        .spawn_bfs()
        .join();
    checker.assert_any_discovery(property);
}
