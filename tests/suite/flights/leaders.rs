//! What becomes of a run whose caller goes away or panics.

use std::sync::Mutex;
use std::time::Duration;

use futures::poll;
use tokio::task::JoinHandle;
use tower_distributed::{Error, SingleFlight};

use super::{LONG, Origin, all_ended, begin, begin_run, builder, call, ended, several};
use crate::stores::Place;

/// Followers in the leader's process and elsewhere.
async fn follow(
    flights: &[SingleFlight<u64>],
    origin: &Origin,
    numbers: &[usize],
) -> Vec<JoinHandle<Result<u64, Error>>> {
    let mut followers = Vec::new();
    for number in numbers {
        followers.push(call(&flights[*number], origin).await);
    }
    followers
}

/// Long before its lease would have run out, another takes over from a run whose last caller has gone away, which is dropped with
/// it; unless it is to go on.
pub(crate) async fn a_run_goes_on_for_those_who_are_left(place: &Place, name: &str) {
    // The processes of the followers, how many other processes these are, how many of them go away as well, and whose answer the
    // others get.
    let rows: [(&[usize], usize, usize, bool, u64); 4] = [
        (&[1, 1, 2], 2, 0, false, 2),
        (&[0, 0, 1], 1, 0, false, 1),
        (&[0, 0, 1], 1, 2, false, 2),
        (&[1], 1, 0, true, 1),
    ];
    for (number, (processes, elsewhere, gone, goes_on, answer)) in rows.into_iter().enumerate() {
        let name = &format!("{name}.{number}");
        let (flights, origin) = (
            several(place, name, 3, || builder().go_on(goes_on)),
            Origin::shut(),
        );
        let mut callers = vec![begin_run(&flights[0], &origin).await];
        callers.extend(follow(&flights, &origin, processes).await);
        place.lined_up(&format!("{name}:k"), elsewhere).await;
        let mut left = callers.split_off(1 + gone);
        for caller in callers {
            assert_eq!(origin.runs(), 1);
            caller.abort();
            assert!(caller.await.unwrap_err().is_cancelled());
        }
        origin.began(answer).await;
        if goes_on {
            left.extend(follow(&flights, &origin, &[0]).await);
        }
        origin.let_go(1);
        let expected = vec![answer; left.len()];
        assert_eq!(all_ended(left).await, expected, "{number}");
        assert_eq!(origin.runs(), answer, "{number}");
    }
}

pub(crate) async fn a_panic_goes_on_in_its_caller_and_one_takes_over(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 2, builder), Origin::shut());
    let (flight, work) = (flights[0].clone(), origin.work());
    let panics = begin(async move {
        let work = || async {
            panic!("as run {}", work().await);
        };
        flight.run("k", work).await
    })
    .await;
    origin.began(1).await;
    let followers = follow(&flights, &origin, &[0, 1, 0, 1]).await;
    place.lined_up(&format!("{name}:k"), 1).await;
    origin.let_go(2);
    let panic = panics.await.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "as run 1");
    assert_eq!(all_ended(followers).await, [2; 4]);
    assert_eq!(origin.runs(), 2);
}

/// A leader that is not polled any more holds up nobody.
pub(crate) async fn unpolled_callers_hold_nobody_up(place: &Place, name: &str) {
    let (flights, origin) = (several(place, name, 2, builder), Origin::shut());
    let mut leader = Box::pin(flights[0].run("k", origin.work()));
    assert!(poll!(leader.as_mut()).is_pending());
    origin.began(1).await;
    let followers = follow(&flights, &origin, &[0, 1]).await;
    origin.let_go(1);
    assert_eq!(all_ended(followers).await, [1; 2]);
    assert_eq!(ended(tokio::spawn(async { 0 })).await, 0);
    assert_eq!(leader.await.unwrap(), 1);
}

/// As soon as its caller has what it wants it goes away; the answer is published all the same.
pub(crate) async fn an_answer_is_published_though_its_caller_is_content(place: &Place, name: &str) {
    for in_process in [true, false] {
        let (content, is_content) = std::sync::mpsc::channel();
        let is_content = Mutex::new(is_content);
        let name = format!("{name}.{in_process}");
        let leads = builder().share_unpublished(in_process).ttl_with(move |_| {
            // It may also have to wait for this.
            let _ = is_content
                .lock()
                .unwrap()
                .recv_timeout(Duration::from_millis(100));
            Some(LONG)
        });
        let leads = leads.build(place, &name).unwrap();
        let follows = builder()
            .share_unpublished(in_process)
            .build(place, &name)
            .unwrap();
        for key in 0..10_u64 {
            let origin = Origin::open();
            assert_eq!(leads.run(key, origin.work()).await.unwrap(), 1);
            content.send(()).unwrap();
            assert_eq!(follows.run(key, origin.work()).await.unwrap(), 1, "{key}");
        }
    }
}
