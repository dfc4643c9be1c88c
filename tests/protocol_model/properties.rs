//! What must always be so; and what must be possible, lest the former be true of a world where nothing happens.

use stateright::Property;

use crate::asker::{Answer, Asker, Call, Phase, Request};
use crate::rules::Rules;
use crate::server::{Place, Token};
use crate::world::{Protocol, World};

pub(crate) const EXCLUSION: &str = "those who believe that they hold fit the capacity";
pub(crate) const COVERED: &str = "a belief ends no later than the lease on the server";
pub(crate) const CAPACITY: &str = "those who hold on the server fit the capacity";
pub(crate) const FENCES: &str = "each grant has a higher fence than the one before";
pub(crate) const ORDER: &str = "nobody is served while one with a lower ticket waits";
pub(crate) const RELEASED: &str = "what was released neither holds nor waits again";
pub(crate) const SERVED: &str = "once the network is calm, whoever waits is served";

type Of = Property<Protocol>;

pub(crate) fn always() -> Vec<Of> {
    vec![
        Of::always(EXCLUSION, |model, world| world.believed() <= model.rules.capacity),
        Of::always(COVERED, |_, world| world.all(Standing::is_covered)),
        Of::always(CAPACITY, |model, world| world.key.held() <= model.rules.capacity),
        Of::always(FENCES, |_, world| !world.key.fence_fell()),
        Of::always(ORDER, |_, world| !world.key.overtaken()),
        Of::always(RELEASED, |_, world| world.all(|one| !one.token.released || one.is_unknown())),
        Of::always(SERVED, |model, world| !world.is_calm() || world.settles(&model.rules)),
    ]
}

pub(crate) fn sometimes(rules: &Rules) -> Vec<Of> {
    let mut all = vec![
        Of::sometimes("a push makes a holder", |_, world| world.any(Standing::holds_by_push)),
        Of::sometimes("a renewal makes a full lease of a claim", |model, world| {
            world.any(|one| one.holds_by_push() && one.hears_of() > model.rules.times.claim)
        }),
        Of::sometimes("a claim lapses before the push arrives", |_, world| {
            world.any(|one| one.waits() && one.is_unknown() && one.asker.push.is_some())
        }),
        Of::sometimes("a beat makes up for a push that is lost or came too late", |_, world| {
            world.any(|one| one.waits() && one.hears_of() > 0 && one.asker.push.is_none())
        }),
        Of::sometimes("a push finds one who has left", |_, world| {
            world.any(|one| one.asker.phase == Phase::Left && one.asker.push.is_some())
        }),
        Of::sometimes("a release overtakes its acquire", |_, world| {
            world.any(|one| one.token.released && one.asker.late.has(Request::Acquire))
        }),
        Of::sometimes("a waiter is dropped for dead", |_, world| {
            world.any(|one| one.waits() && one.is_unknown() && one.asker.push.is_none())
        }),
    ];
    if rules.faults.crashes {
        all.push(Of::sometimes("a waiter follows one who crashed", |_, world| {
            let crashed = world.any(|one| one.asker.phase == Phase::Crashed && one.is_unknown());
            crashed && world.any(Standing::holds_by_push) && world.all(|one| one.asker.phase != Phase::Left)
        }));
    }
    if rules.askers > 2 {
        all.push(Of::sometimes("two wait at once", |_, world| world.key.waiting() == 2));
    }
    if rules.capacity > 1 {
        all.push(Of::sometimes("two hold at once", |_, world| {
            world.standings().filter(Standing::holds).count() == 2
        }));
    }
    all
}

/// One token, as the asker and as the server sees it.
struct Standing {
    asker: Asker,
    token: Token,
}

impl World {
    fn standings(&self) -> impl Iterator<Item = Standing> + '_ {
        self.askers.into_iter().zip(self.key.tokens).map(|(asker, token)| Standing { asker, token })
    }

    fn any(&self, is: impl Fn(&Standing) -> bool) -> bool {
        self.standings().any(|one| is(&one))
    }

    fn all(&self, is: impl Fn(&Standing) -> bool) -> bool {
        self.standings().all(|one| is(&one))
    }

    /// The weight of all who believe that they hold.
    fn believed(&self) -> u8 {
        self.standings().filter(Standing::holds).map(|one| one.token.weight).sum()
    }
}

impl Standing {
    fn is_unknown(&self) -> bool {
        self.token.place == Place::Nowhere
    }

    fn waits(&self) -> bool {
        matches!(self.asker.phase, Phase::Waiting { .. })
    }

    fn holds(&self) -> bool {
        matches!(self.asker.phase, Phase::Holding { .. })
    }

    fn holds_by_push(&self) -> bool {
        matches!(self.asker.phase, Phase::Holding { by_push: true, .. })
    }

    /// How long the lease lasts that an answer on its way here tells of.
    fn hears_of(&self) -> u8 {
        if let Call::Answered(Answer::Held(left)) = self.asker.call { left } else { 0 }
    }

    fn is_covered(&self) -> bool {
        let Phase::Holding { left: belief, .. } = self.asker.phase else { return true };
        matches!(self.token.place, Place::Held { left } if belief <= left)
    }
}
