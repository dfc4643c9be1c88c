//! What must hold whatever is stored: by callers that come after it was forged, and hold nothing yet.

use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::join_all;
use tower_distributed::Error;
use tower_distributed::dedupe::Claimed;
use tower_distributed::single_flight::RunError;

use crate::forgeries::calls::{BURST, Calls, KEY, LIMIT};

/// What a call has found, if it is not refused for one of the reasons that a forged state may have.
fn found<T>(what: &str, result: Result<T, Error>) -> Result<Option<T>, String> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error)
            if error.is_refused()
                || error.is_wrong_type()
                || error.is_lost()
                || error.is_invalid() =>
        {
            Ok(None)
        }
        Err(error) => Err(format!("{what}: {error}")),
    }
}

fn at_most(what: &str, most: u32, count: u32) -> Result<(), String> {
    if count <= most {
        Ok(())
    } else {
        Err(format!("{count} of {what}, not {most} at most"))
    }
}

/// No limit is exceeded, and all errors are told as what they are.
pub(crate) async fn keeps_to_its_limits(calls: &Calls) -> Result<(), String> {
    for error in calls.look().await {
        found("inspect", Err::<(), _>(error))?;
    }
    tokens(calls).await?;
    permits(calls).await?;
    locks(calls).await?;
    flights(calls).await?;
    items(calls).await?;
    found("setting", calls.setting.refresh().await)?;
    Ok(())
}

async fn tokens(calls: &Calls) -> Result<(), String> {
    let both = calls.both.allow([KEY, KEY]).await;
    let both = found("both", both)?.is_some_and(|decision| decision.is_admitted());
    for (at, bucket) in calls.buckets.iter().enumerate() {
        let (mut admitted, mut holds) = (u32::from(both && at < 2), Vec::new());
        for _ in 0..BURST + 2 {
            let decision = found(bucket.name(), bucket.allow(KEY).await)?;
            admitted += u32::from(decision.is_some_and(|decision| decision.is_admitted()));
            let held = found(bucket.name(), bucket.authorize(KEY, 1).await)?;
            admitted += u32::from(held.is_some());
            holds.extend(held);
        }
        at_most(bucket.name(), BURST, admitted)?;
        for hold in holds {
            found(bucket.name(), hold.capture(1).await)?;
        }
        found(bucket.name(), bucket.peek(KEY).await)?;
    }
    Ok(())
}

async fn permits(calls: &Calls) -> Result<(), String> {
    for group in &calls.permits {
        let heavy = found(group.name(), group.try_add_n(KEY, 2).await)?;
        let mut held = 2 * u32::from(heavy.is_some());
        let mut permits = Vec::from_iter(heavy);
        for permit in join_all((0..LIMIT + 2).map(|_| group.try_add(KEY))).await {
            let permit = found(group.name(), permit)?;
            held += u32::from(permit.is_some());
            permits.extend(permit);
        }
        at_most(group.name(), LIMIT, held)?;
        if permits.is_empty() {
            permits.extend(found(group.name(), group.add(KEY).await)?);
        }
        found(group.name(), group.inspect_limit(KEY).await)?;
        for permit in permits {
            found(group.name(), permit.done().await)?;
        }
    }
    Ok(())
}

async fn locks(calls: &Calls) -> Result<(), String> {
    let mut guards = Vec::new();
    for guard in join_all((0..4).map(|_| calls.mutex.try_lock(KEY))).await {
        guards.extend(found("mutex", guard)?);
    }
    let all = found("all", calls.mutex.try_lock_all([KEY, "other"]).await)?;
    at_most("mutex", 1, guards.len() as u32 + u32::from(all.is_some()))?;
    if guards.is_empty() && all.is_none() {
        guards.extend(found("mutex", calls.mutex.lock(KEY).await)?);
    }
    for guard in guards {
        found("mutex", guard.unlock().await)?;
    }
    let reader = found("read", calls.rw_lock.try_read(KEY).await)?;
    let writers = join_all((0..3).map(|_| calls.rw_lock.try_write(KEY))).await;
    let mut held = Vec::new();
    for writer in writers {
        held.extend(found("write", writer)?);
    }
    at_most(
        "writers",
        1 - u32::from(reader.is_some()),
        held.len() as u32,
    )?;
    let late = found("read", calls.rw_lock.try_read(KEY).await)?;
    at_most("readers", 1 - held.len() as u32, u32::from(late.is_some()))?;
    Ok(())
}

async fn flights(calls: &Calls) -> Result<(), String> {
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let (inside, most) = (std::sync::Arc::new(inside), std::sync::Arc::new(most));
    let runs = (0..4).map(|_| {
        let (inside, most) = (inside.clone(), most.clone());
        calls.flights.try_run(KEY, move || async move {
            most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(1)
        })
    });
    for answer in join_all(runs).await {
        found(
            "flight",
            answer.map_err(|error| match error {
                RunError::Flight(error) => error,
                RunError::Failed(never) => match never {},
            }),
        )?;
    }
    at_most("leaders", 1, most.load(Ordering::SeqCst))
}

async fn items(calls: &Calls) -> Result<(), String> {
    for dedupe in &calls.dedupes {
        let mut claims = Vec::new();
        for claimed in join_all((0..3).map(|_| dedupe.try_claim(KEY))).await {
            if let Some(Claimed::New(claim)) = found(dedupe.name(), claimed)? {
                claims.push(claim);
            }
        }
        at_most("claims", 1, claims.len() as u32)?;
        for claim in claims {
            let confirmed = found(dedupe.name(), claim.confirm().await)?;
            let again = found(dedupe.name(), dedupe.try_claim(KEY).await)?;
            if confirmed == Some(true) && matches!(again, Some(Claimed::New(_))) {
                return Err(format!("{}: a handled item is new", dedupe.name()));
            }
        }
    }
    let first = found("filter", calls.filter.insert("item").await)?;
    let again = found("filter", calls.filter.insert("item").await)?;
    match first.is_some() && again == Some(true) {
        true => Err("filter: an item is new twice".into()),
        false => Ok(()),
    }
}

/// Without any state, all works as on the first day. The callers of before may hold nothing any more.
pub(crate) async fn works(calls: &Calls) -> Result<(), Error> {
    for bucket in &calls.buckets {
        for _ in 0..BURST {
            assert!(bucket.allow(KEY).await?.is_admitted(), "{}", bucket.name());
        }
        assert!(!bucket.allow(KEY).await?.is_admitted(), "{}", bucket.name());
    }
    for group in &calls.permits {
        group.add(KEY).await?.done().await?;
    }
    assert!(calls.mutex.lock(KEY).await?.unlock().await?);
    assert!(calls.rw_lock.write(KEY).await?.release().await?);
    drop(calls.flights.try_run(KEY, || async { Ok(1) }).await);
    for dedupe in &calls.dedupes {
        match dedupe.try_claim(KEY).await? {
            Claimed::New(claim) => assert!(claim.confirm().await?),
            Claimed::Duplicate => panic!("{}: without a state", dedupe.name()),
        }
    }
    assert!(calls.filter.insert("item").await?);
    calls.setting.set_if(0, "7/s", "ann").await?;
    Ok(())
}
