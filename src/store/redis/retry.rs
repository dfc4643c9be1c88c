//! Retries of failed calls: whether a call is sent again, where, and when. No other code sends an operation again.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::error::reasons::Cause;
use crate::store::operation::Repeat;
use crate::store::redis::batch::Reply;
use crate::store::redis::call::{Failed, Outgoing};
use crate::store::redis::errors::Redirect;
use crate::store::redis::link::Route;
use crate::store::redis::slots::Refusal;
use crate::store::redis::{RedisStore, errors};

/// The first pause before a call to a slot that is being moved is sent again. Each further pause is twice as long.
const MOVING: Duration = Duration::from_millis(2);

/// How many redirections of a call are followed: to the master, to the node that is importing the slot, and as many
/// again for a slot that moves meanwhile.
const REDIRECTIONS: usize = 4;

/// The state of the copies of a call that were sent so far.
struct Copies {
    is_first: bool,
    /// Whether a copy before the last one may run, or has run in part.
    twice: bool,
    /// The master to which the last copy was redirected, if any.
    other: Option<Arc<Route>>,
    /// The number of redirections since the call was last sent to its own master.
    redirected: usize,
    /// The next pause, if the slot is being moved.
    pause: Duration,
    /// The record of the refusal because of that.
    refused: Option<Refusal>,
}

impl Copies {
    fn new() -> Self {
        Self {
            is_first: true,
            twice: false,
            other: None,
            redirected: 0,
            pause: MOVING,
            refused: None,
        }
    }

    /// Returns the error of the last copy as the error of the call.
    fn error(&self, error: Error) -> Error {
        if self.twice {
            error.of_last_copy()
        } else {
            error
        }
    }
}

impl Failed {
    /// Whether the call is sent again: because it cannot have run, or because its operation may run twice.
    fn is_repeated(&self, repeat: Repeat, was_idle: bool) -> bool {
        match self.outage.cause {
            Cause::Disconnected => repeat == Repeat::Safe && (was_idle || !self.written),
            Cause::MovedMidway => repeat == Repeat::Safe,
            Cause::Moving => true,
            _ => false,
        }
    }
}

impl RedisStore {
    /// Sends a call whose first copy has failed again, as often as that helps.
    pub(super) async fn retry(
        &self,
        outgoing: &Outgoing<'_>,
        failed: Failed,
    ) -> Result<Reply, Error> {
        let mut copies = Copies::new();
        let mut outcome = Err(failed);
        while let Err(failed) = &outcome
            && let Some(again) = self.send_again(outgoing, &mut copies, failed).await?
        {
            outcome = again;
        }
        self.ended(outgoing, &copies, outcome)
    }

    /// Updates the connection and the breaker with the outcome of a call that was sent again.
    fn ended(
        &self,
        outgoing: &Outgoing<'_>,
        copies: &Copies,
        outcome: Result<Reply, Failed>,
    ) -> Result<Reply, Error> {
        let Outgoing { route, began, .. } = *outgoing;
        let has_left = self.close_if_left(route);
        if copies.other.is_some() {
            // The master that redirected the call has replied.
            self.succeeded(route);
        }
        // The node of ASK may have no slots yet.
        let counts = copies.other.is_some() || !has_left;
        let last = copies.other.as_deref().unwrap_or(route);
        let failed = match outcome {
            Ok(reply) => {
                self.succeeded(last);
                self.telemetry.call(began, reply.unconfirmed.is_none());
                return Ok(if copies.twice {
                    reply.sent_twice()
                } else {
                    reply
                });
            }
            Err(failed) => failed,
        };
        let Failed { outage, sent, .. } = failed;
        if failed.answers || !errors::is_outage(outage.cause) {
            self.succeeded(last);
        } else if counts {
            last.link.failed();
            last.breaker
                .failed(sent.unwrap_or(began), &outage, sent.is_none());
        }
        self.telemetry.call(began, false);
        Err(copies.error(outage.into()))
    }

    /// Sends a failed call again. Returns the result of this copy; `None`: the failure is final. An error: the breaker
    /// of the master to which the call was redirected is open.
    async fn send_again(
        &self,
        outgoing: &Outgoing<'_>,
        copies: &mut Copies,
        failed: &Failed,
    ) -> Result<Option<Result<Reply, Failed>>, Error> {
        let is_first = std::mem::take(&mut copies.is_first);
        let is_repeated = failed.is_repeated(outgoing.call.repeat, outgoing.was_idle);
        match (failed.outage.cause, &failed.redirect) {
            // Only once: the connection was closed before the call, or is broken.
            (Cause::Disconnected, _) if is_first && is_repeated => {
                copies.twice = true;
                let again = self.attempt(outgoing, outgoing.route, false).await;
                Ok(Some(again))
            }
            (Cause::Redirected, Some(redirect)) if copies.redirected < REDIRECTIONS => {
                self.follow(outgoing, copies, redirect).await
            }
            // The node does not know the master of the slot.
            (Cause::Redirected, None) => {
                self.source.look_for_masters(None);
                Ok(None)
            }
            (Cause::Moving | Cause::MovedMidway, _)
                if is_repeated && outgoing.began.elapsed() + copies.pause < self.limits.timeout =>
            {
                let again = self.send_after_pause(outgoing, copies, failed).await;
                Ok(Some(again))
            }
            _ => Ok(None),
        }
    }

    /// Sends a call to the master to which it was redirected.
    async fn follow(
        &self,
        outgoing: &Outgoing<'_>,
        copies: &mut Copies,
        redirect: &Redirect,
    ) -> Result<Option<Result<Reply, Failed>>, Error> {
        let Outgoing { links, route, .. } = *outgoing;
        let Some(master) = self.source.redirected_to(&redirect.address) else {
            return Ok(None);
        };
        // For ASK, the other node does not have the slot yet.
        if !redirect.ask {
            self.source.look_for_masters(None);
        }
        copies.redirected += 1;
        let to = copies.other.insert(links.route(links.number(master, 0)));
        if let Err(error) = to.breaker.check() {
            self.succeeded(route);
            self.telemetry.call(outgoing.began, false);
            return Err(copies.error(error));
        }
        let again = self.attempt(outgoing, to, redirect.ask).await;
        Ok(Some(again))
    }

    /// Sends a call again to its own master, which refused it because it is moving the slot.
    async fn send_after_pause(
        &self,
        outgoing: &Outgoing<'_>,
        copies: &mut Copies,
        failed: &Failed,
    ) -> Result<Reply, Failed> {
        let Outgoing { links, call, .. } = *outgoing;
        copies.twice |= failed.outage.cause == Cause::MovedMidway;
        let before = copies.refused.take();
        copies.refused = self.refused.note(call.slot, &failed.outage, before);
        let paused = {
            let _inside = links.runtime.enter();
            tokio::time::sleep(copies.pause)
        };
        paused.await;
        copies.pause *= 2;
        copies.redirected = 0;
        copies.other = None;
        self.attempt(outgoing, outgoing.route, false).await
    }
}

#[cfg(test)]
mod tests;
