//! What the workers do with claims, flights and budgets.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tower_distributed::dedupe::{Claim, Claimed};
use tower_distributed::single_flight::RunError;
use tower_distributed::token_bucket::{BucketState, Hold};
use tower_distributed::{Dedupe, Error, SingleFlight, TokenBucket};

use super::history::{Event, HoldOutcome, HoldStep, now};
use super::worker::{ALONE, ITEM, LASTING, MAX_WAIT, Scribe, heard, hold_ms, told};

/// The time for which an item is claimed, confirmed and forgotten again and again, ns.
const REGISTER: u64 = 250_000_000;

/// Each run of a flight is written down as a task of its own.
static RUNS: AtomicU32 = AtomicU32::new(1000);
static HOLDS: AtomicU64 = AtomicU64::new(0);

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

async fn confirm(scribe: &Scribe, item: &str, claimed: Result<Claimed, Error>, step: u64, way: u32) {
    let claim = match claimed {
        Ok(Claimed::Duplicate) => return scribe.write(item, Event::Duplicate),
        Ok(Claimed::New(claim)) => Ok(claim),
        Err(error) => Err(error),
    };
    match way {
        0 | 1 => scribe.visit(item, claim, step, Event::Confirm, Claim::confirm).await,
        2 => scribe.visit(item, claim, step, Event::Release, Claim::release).await,
        _ => {
            let dropped = async |claim| {
                drop(claim);
                Event::Unheard
            };
            scribe.hold_then(item, claim, step, Event::Release, dropped).await;
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
    let run = Scribe { task: RUNS.fetch_add(1, Ordering::Relaxed), ..scribe.clone() };
    let asked = now();
    scribe.write(key, Event::Ask);
    let of_run = key.to_owned();
    let answer = flights.try_run(key, move || async move {
        run.journal.write(asked, run.task, run.primitive, &of_run, Event::Acquire(ALONE));
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

/// Holds tokens, at times more of them, and captures a few, or none, or drops the hold.
pub(super) async fn hold(scribe: &Scribe, bucket: &TokenBucket, key: &str, burst: u32, step: u64) {
    let number = HOLDS.fetch_add(1, Ordering::Relaxed);
    let write = |event| scribe.write(key, event);
    let ask = |step| write(Event::Hold(number, step));
    let done = |hold: &Hold| balance(HoldOutcome::Done, hold.state());
    let most = if rand::random_range(0..4) == 0 { burst / 4 } else { 3.min(burst / 4) };
    let mut tokens = rand::random_range(1..=1 + most);
    ask(HoldStep::Authorize(tokens));
    let mut hold = match bucket.authorize(key, tokens).await {
        Ok(hold) => hold,
        Err(error) => return write(told(&error)),
    };
    write(done(&hold));
    let pause = async || tokio::time::sleep(Duration::from_millis(hold_ms(scribe.primitive, step))).await;
    pause().await;
    if rand::random_range(0..3) == 0 {
        let more = rand::random_range(1..=burst / 8 + 1);
        ask(HoldStep::Extend(tokens + more));
        match hold.extend(more).await {
            Ok(()) => {
                tokens += more;
                write(done(&hold));
            }
            Err(error) if error.is_lost() => write(Event::Released(false)),
            Err(error) => write(told(&error)),
        }
        pause().await;
    }
    let used = match rand::random_range(0..64) {
        // Of the budget that refills, nobody captures more than is held.
        0 if key != LASTING => tokens + 2,
        1 => tokens,
        _ => rand::random_range(0..=2).min(tokens),
    };
    match rand::random_range(0..8) {
        0..=2 => {
            ask(HoldStep::Capture(0));
            write(heard(hold.release().await, Event::Released));
        }
        3 => {
            hold.usage().set(used);
            ask(HoldStep::Drop(used));
            drop(hold);
            write(Event::Unheard);
        }
        _ => {
            ask(HoldStep::Capture(used));
            write(match hold.capture(used).await {
                Ok(captured) if captured.ended => {
                    balance(HoldOutcome::Ended(captured.excess), &captured.state)
                }
                Ok(captured) => balance(HoldOutcome::Done, &captured.state),
                Err(error) => told(&error),
            });
        }
    }
}

pub(super) fn balance(outcome: HoldOutcome, state: &BucketState) -> Event {
    Event::Balance { outcome, remaining: state.remaining(), held: state.held() }
}
