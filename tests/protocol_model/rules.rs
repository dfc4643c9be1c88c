//! The settings of a model: who asks for how much, how long things last, what may go wrong, and which rule is
//! broken on purpose.

/// How many askers a world has room for.
pub(crate) const ROOM: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) askers: usize,
    /// What each asker asks for. Askers of one weight differ in nothing.
    pub(crate) weights: [u8; ROOM],
    pub(crate) capacity: u8,
    pub(crate) times: Times,
    pub(crate) faults: Faults,
    pub(crate) flaw: Flaw,
}

/// In ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// A full lease.
    pub(crate) lease: u8,
    /// The short lease of a grant that its waiter has yet to renew.
    pub(crate) claim: u8,
    /// For how long a waiter counts as alive after a beat.
    pub(crate) life: u8,
}

/// What may go wrong, besides that any message may be late or never arrive: that is always so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// Askers die without a word.
    pub(crate) crashes: bool,
    /// Messages are lost for good, so that the network can become calm again.
    pub(crate) losses: bool,
    /// A beat or renewal whose answer is missing is followed by the next, and may still be executed.
    pub(crate) repeats: bool,
    /// An acquire whose answer is missing is sent again, and the first may still be executed.
    pub(crate) resends: bool,
}

/// The one rule that is not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    None,
    /// What a reply says is left of a lease counts from the moment the reply arrives.
    ReplyValidFromArrival,
    /// A claim counts in full from the moment the push arrives.
    PushValidFromArrival,
    /// A push is reckoned from when the earlier reply arrived, not from when its request was sent.
    AnchorAtArrival,
    /// A holder does not wait any more either, so it answers the push for the very lease that it has by the
    /// answer to a beat with a release.
    HolderAnswersPush,
    /// Whoever in the queue fits is served, whether or not it is the first.
    SmallGoesFirst,
    /// The clock alone is the fence.
    FenceIsTheClock,
    /// A release leaves no tombstone.
    NoTombstone,
    /// A release leaves a tombstone only where it found neither a holder nor a waiter.
    TombstoneOnlyForUnknown,
    /// A beat keeps a waiter alive, and grants nothing.
    BeatGrantsNothing,
}

impl Faults {
    pub(crate) const NONE: Self = Self { crashes: false, losses: false, repeats: false, resends: false };
    pub(crate) const ALL: Self = Self { crashes: true, losses: true, repeats: true, resends: true };
}

impl Rules {
    /// Capacity 1.
    pub(crate) fn mutex(askers: usize, times: Times) -> Self {
        Self { askers, weights: [1; ROOM], capacity: 1, times, faults: Faults::NONE, flaw: Flaw::None }
    }

    /// Capacity 2; two askers want one place each, the third both.
    pub(crate) fn weighted(times: Times) -> Self {
        Self { weights: [1, 1, 2], capacity: 2, ..Self::mutex(3, times) }
    }

    pub(crate) fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    pub(crate) fn flaw(self, flaw: Flaw) -> Self {
        Self { flaw, ..self }
    }
}
