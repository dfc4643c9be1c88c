//! What the workers do with claims, flights and held tokens.

use std::sync::atomic::{AtomicU32, Ordering};

use tower_distributed::dedupe::{Claim, Claimed};
use tower_distributed::single_flight::RunError;
use tower_distributed::{Dedupe, Error, SingleFlight, TokenBucket};

use super::history::{Event, now};
use super::worker::{ALONE, ITEM, MAX_WAIT, Scribe, heard, told};

/// The time for which an item is claimed, confirmed and forgotten again and again, ns.
const REGISTER: u64 = 250_000_000;

/// Each run of a flight is written down as a task of its own.
static RUNS: AtomicU32 = AtomicU32::new(1000);

/// Claims an item, and confirms, releases or drops the claim. Half of the items come a few times only; the others are also
/// forgotten, or claimed though they are known.
pub(super) async fn claim(scribe: &Scribe, dedupe: &Dedupe, step: u64) {
    if step.is_multiple_of(2) {
        let item = format!("{}", now() / ITEM);
        scribe.write(&item, Event::Acquire(ALONE));
        let claimed = dedupe.try_claim(&item).await;
        return confirm(scribe, &item, claimed, step, 0).await;
    }
    let item = format!("register.{}", now() / REGISTER);
    match (rand::random_range(0..8), dedupe.filter()) {
        (0, None) => {
            scribe.write(&item, Event::Forget);
            let forgotten = dedupe.forget(&item).await;
            scribe.write(&item, heard(forgotten, Event::Forgotten));
        }
        (0, Some(_)) => {
            scribe.write(&item, Event::AcquireAnyway);
            let claim = dedupe.claim_anyway(&item).await.map(Claimed::New);
            confirm(scribe, &item, claim, step, 0).await;
        }
        (way, _) => {
            scribe.write(&item, Event::Acquire(ALONE));
            let claimed = match way {
                1 => dedupe.claim(&item, MAX_WAIT).await,
                _ => dedupe.try_claim(&item).await,
            };
            confirm(scribe, &item, claimed, step, rand::random_range(0..4)).await;
        }
    }
}

async fn confirm(
    scribe: &Scribe,
    item: &str,
    claimed: Result<Claimed, Error>,
    step: u64,
    way: u32,
) {
    let claim = match claimed {
        Ok(Claimed::Duplicate) => return scribe.write(item, Event::Duplicate),
        Ok(Claimed::New(claim)) => Ok(claim),
        Err(error) => Err(error),
    };
    match way {
        0 | 1 => {
            scribe
                .visit(item, claim, step, Event::Confirm, Claim::confirm)
                .await
        }
        2 => {
            scribe
                .visit(item, claim, step, Event::Release, Claim::release)
                .await
        }
        _ => {
            let dropped = async |claim| {
                drop(claim);
                Event::Unheard
            };
            scribe
                .hold_then(item, claim, step, Event::Release, dropped)
                .await;
        }
    }
}

/// Asks for an answer, or forgets it. A run is written down as a lease of another task, from the call on.
pub(super) async fn fly(scribe: &Scribe, flights: &SingleFlight<u64>, key: &str, step: u64) {
    if rand::random_range(0..8) == 0 {
        scribe.write(key, Event::Forget);
        let forgotten = flights.forget(key).await;
        return scribe.write(key, heard(forgotten, |()| Event::Forgotten(true)));
    }
    let run = Scribe {
        task: RUNS.fetch_add(1, Ordering::Relaxed),
        ..scribe.clone()
    };
    let asked = now();
    scribe.write(key, Event::Ask);
    let of_run = key.to_owned();
    let answer = flights.try_run(key, move || async move {
        run.journal.write(
            asked,
            run.task,
            run.primitive,
            &of_run,
            Event::Acquire(ALONE),
        );
        run.write(&of_run, Event::Granted(0));
        run.hold(&of_run, || true, step).await;
        let made = now();
        run.write(&of_run, Event::Made(made));
        run.write(&of_run, Event::Release);
        run.write(&of_run, Event::Released(true));
        Ok(made)
    });
    let answer = match answer.await {
        Ok(made) => Event::Got(made),
        Err(RunError::Failed(never)) => match never {},
        Err(RunError::Flight(error)) => told(&error),
    };
    scribe.write(key, answer);
}

/// Holds a token, and captures or releases it.
pub(super) async fn hold(scribe: &Scribe, bucket: &TokenBucket, key: &str, step: u64) {
    scribe.write(key, Event::Acquire(1));
    let hold = match bucket.authorize(key, 1).await {
        Ok(hold) => hold,
        Err(error) => return scribe.write(key, told(&error)),
    };
    scribe.write(key, Event::Granted(0));
    scribe.hold(key, || hold.is_held(), step).await;
    let ended = if step.is_multiple_of(4) {
        scribe.write(key, Event::Release);
        hold.release().await
    } else {
        scribe.write(key, Event::Confirm);
        hold.capture(1).await.map(|captured| !captured.ended)
    };
    scribe.write(key, heard(ended, Event::Released));
}
