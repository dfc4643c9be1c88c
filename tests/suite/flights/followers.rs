//! Those who do not come first, and how long they wait.

use std::time::Duration;

use tower_distributed::Error;
use tower_distributed::single_flight::RunError;

use super::{Origin, begin, begin_run, builder, call, ended, several};
use crate::stores::{Place, in_memory};

/// For followers. The leader needs less, also on a machine that is busy.
const SHORT: Duration = Duration::from_secs(3);

fn is_over(error: &Error) {
    assert!(
        error.is_waited_too_long() && error.is_refused() && !error.is_unavailable(),
        "{error}"
    );
}

pub(crate) async fn nobody_follows_longer_than_the_longest_wait(place: &Place, name: &str) {
    let flights = several(place, name, 2, || builder().max_wait(SHORT));
    let origin = Origin::shut();
    let leader = begin_run(&flights[0], &origin).await;
    let mut followers = Vec::new();
    for flight in [&flights[0], &flights[0], &flights[1], &flights[1]] {
        followers.push(call(flight, &origin).await);
    }
    for follower in followers {
        is_over(&ended(follower).await.unwrap_err());
    }
    // Whose own work runs is waited for, and who was refused has left nothing behind.
    place.lined_up(&format!("{name}:k"), 0).await;
    assert!(!leader.is_finished());
    origin.let_go(1);
    assert_eq!(ended(leader).await.unwrap(), 1);
    assert_eq!(flights[1].run("k", origin.work()).await.unwrap(), 1);
    assert_eq!(origin.runs(), 1);
}

/// Here or elsewhere, a follower takes over, and then is waited for as long as it takes.
pub(crate) async fn who_takes_over_follows_no_more(place: &Place, name: &str) {
    for number in 0..2 {
        let name = &format!("{name}.{number}");
        let flights = several::<String>(place, name, 2, || builder().max_wait(SHORT));
        let origin = Origin::shut();
        let call = |number: usize| {
            let (flight, work) = (flights[number].clone(), origin.failing(0));
            async move { flight.try_run("k", work).await }
        };
        let (flight, work) = (flights[0].clone(), origin.work());
        let leader = begin(async move {
            flight
                .try_run("k", || async { panic!("run {}", work().await) })
                .await
        });
        let leader = leader.await;
        origin.began(1).await;
        let follower = begin(call(number)).await;
        origin.let_go(1);
        assert!(leader.await.unwrap_err().is_panic());
        origin.began(2).await;
        match call(number).await {
            Err(RunError::Flight(error)) => is_over(&error),
            other => panic!("{other:?}"),
        }
        assert!(!follower.is_finished());
        origin.let_go(1);
        assert_eq!(ended(follower).await.unwrap(), 2);
        assert_eq!(origin.runs(), 2);
    }
}

/// Who waits with it goes on with work of its own.
#[tokio::test(start_paused = true)]
async fn the_work_of_who_was_refused_does_not_run() {
    let (place, name) = (&in_memory().await, "refused");
    let [leads, follows] =
        [builder(), builder().max_wait(SHORT)].map(|builder| builder.build(place, name).unwrap());
    let (origin, refused, other) = (Origin::shut(), Origin::open(), Origin::open());
    let leader = begin_run(&leads, &origin).await;
    let follow = async |origin: &Origin| call(&follows, origin).await;
    let first = follow(&refused).await;
    tokio::time::sleep(SHORT / 2).await;
    let second = follow(&other).await;
    is_over(&ended(first).await.unwrap_err());
    leader.abort();
    match ended(second).await {
        Ok(run) => assert_eq!((run, other.runs()), (1, 1)),
        Err(error) => is_over(&error),
    }
    assert_eq!(follows.run("k", other.work()).await.unwrap(), 1);
    assert_eq!(refused.runs(), 0);
}

/// A run that goes on without its caller waits for its turn without the caller's longest wait.
#[tokio::test(start_paused = true)]
async fn the_longest_wait_ends_with_its_caller() {
    let (place, name, longest) = (&in_memory().await, "longest", 4 * SHORT);
    let [leads, goes_on] = [builder(), builder().max_wait(longest).go_on(true)]
        .map(|builder| builder.build(place, name).unwrap());
    let (origin, own) = (Origin::shut(), Origin::open());
    let leader = begin_run(&leads, &origin).await;
    let caller = call(&goes_on, &own).await;
    caller.abort();
    tokio::time::sleep(longest + SHORT).await;
    leader.abort();
    own.began(1).await;
}
