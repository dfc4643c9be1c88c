//! The votes of the nodes of a quorum.

use crate::error::Error;

/// The votes so far.
pub(super) struct Votes {
    nodes: usize,
    yes: usize,
    no: usize,
    outage: Option<Error>,
}

impl Votes {
    pub(super) fn of(nodes: usize) -> Self {
        Self {
            nodes,
            yes: 0,
            no: 0,
            outage: None,
        }
    }

    pub(super) fn add(&mut self, vote: Result<bool, Error>) {
        match vote {
            Ok(true) => self.yes += 1,
            Ok(false) => self.no += 1,
            Err(error) => self.outage = Some(error),
        }
    }

    /// Returns the result, if the missing votes cannot change it.
    pub(super) fn certain(&self) -> Option<bool> {
        let majority = self.nodes / 2 + 1;
        let (is_won, is_lost) = (self.yes >= majority, self.nodes - self.no < majority);
        (is_won || is_lost).then_some(is_won)
    }

    /// Returns whether a majority voted yes. Fails if the nodes that failed could have changed the result.
    pub(super) fn result(self) -> Result<bool, Error> {
        match (self.certain(), self.outage) {
            (None, Some(error)) => Err(error),
            (certain, _) => Ok(certain == Some(true)),
        }
    }
}
