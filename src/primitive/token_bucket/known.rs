//! Refusals that this process knows of, to be repeated without asking the store.

use std::sync::Arc;

use super::decision::Decision;
use super::state::Ask;
use crate::Key;
use crate::primitive::quota::Quotas;
use crate::store::{Cell, Cells};

/// How long a refusal is repeated at most, µs: what another process gives back is noticed by then.
const LONGEST: i64 = 1_000_000;

/// The known refusals of one bucket; clones share.
#[derive(Clone, Debug)]
pub(crate) struct KnownRefusals(Arc<Cells<Known>>);

#[derive(Clone, Default)]
struct Known(Option<Refusal>);

#[derive(Clone)]
struct Refusal {
    quotas: usize,
    ask: Ask,
    decision: Decision,
    since: i64,
    until: i64,
}

impl Cell for Known {
    fn is_idle(&self, now: i64) -> bool {
        self.0.as_ref().is_none_or(|refusal| refusal.until <= now)
    }
}

impl KnownRefusals {
    pub(super) fn new() -> Self {
        Self(Cells::private())
    }

    /// The refusal that the store would repeat, or the time to remember one by.
    pub(super) fn find(&self, key: &Key, quotas: &Quotas, ask: Ask) -> Result<Decision, i64> {
        let found = self.0.step(key.as_bytes(), |known, now| match &known.0 {
            Some(known)
                if known.quotas == quotas.id()
                    && ask.cost >= known.ask.cost
                    && ask.wait <= known.ask.wait =>
            {
                let decision = known.decision.clone().aged(now - known.since);
                Ok(Decision { cost: ask.cost, ..decision })
            }
            _ => Err(now),
        });
        // Cells that belong to no store have no bound.
        found.unwrap_or(Err(0))
    }

    /// Remembers a refusal that was asked for at `since`.
    pub(super) fn learn(&self, key: &Key, ask: Ask, decision: &Decision, since: i64) {
        let after = decision
            .retry_after()
            .map_or(LONGEST, |after| i64::try_from(after.as_micros()).unwrap_or(LONGEST) - ask.wait);
        if after > 0 {
            let until = since + after.min(LONGEST);
            let (quotas, decision) = (decision.state.quotas.id(), decision.clone());
            // At worst it is not remembered.
            let _ = self.0.step(key.as_bytes(), |known, _| {
                known.0 = Some(Refusal { quotas, ask, decision, since, until });
            });
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        let _ = self.0.step(key.as_bytes(), |known, _| known.0 = None);
    }
}
