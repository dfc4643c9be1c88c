//! Redis, the way to it, a runtime or a leader goes away while something flies, or keys hold something else.

use std::time::Duration;

use tower_distributed::single_flight::RunError;
use tower_distributed::{Error, StoreFailure};

use super::{Outcome, Place, Work, asked, begin, builder, ended, lead};

fn flight_error(outcome: Outcome) -> Error {
    match outcome {
        Err(RunError::Flight(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// One who waits takes over from a leader that hangs: in its process, or in another. What comes of the hanging run is for its
/// own caller, with which it ends.
#[tokio::test]
async fn one_who_waits_takes_over_from_a_leader_that_hangs() {
    for place in [Place::redis(2).await, Place::in_memory(2)] {
        let builder = || builder().max_run(Duration::from_millis(300));
        let flights =
            [0, 1].map(|number| builder().build(&place.stores[number], "flights").unwrap());
        for (follower, follows) in flights.iter().enumerate() {
            let leads = &flights[0];
            for is_left in [false, true] {
                let (key, hangs, works) = (
                    &*format!("k{follower} {is_left}"),
                    Work::shut(),
                    Work::open(),
                );
                let leader = lead(leads, key, &hangs).await;
                for caller in [(); 3].map(|()| begin(follows, key, &works)) {
                    assert_eq!(ended(caller).await.unwrap(), 1, "more than one took over");
                }
                assert!(!leader.is_finished() && hangs.running() == 1);
                if is_left {
                    leader.abort();
                    hangs.is_over().await;
                } else {
                    hangs.let_go(1);
                    assert_eq!(ended(leader).await.unwrap(), 1);
                }
                assert_eq!(asked(follows, key, &works).await.unwrap(), 1);
                assert_eq!(works.runs(), 1, "it was published");
            }
        }
    }
}

/// Those who follow when the store goes away, or come later, are not told that somebody else's work was slow: they hear of the
/// outage, or share work with their process alone, as is set.
#[tokio::test]
async fn an_outage_is_told_as_such_or_work_goes_on_alone() {
    let place = Place::redis(2).await;
    let (work, server) = (Work::shut(), place.server());
    let build = |number: usize, name, on_store_failure| {
        // Several beats.
        let builder = builder()
            .max_wait(Duration::from_secs(8))
            .on_store_failure(on_store_failure);
        builder.build(&place.stores[number], name).unwrap()
    };
    let [told, alone] = [
        ("told", StoreFailure::FailClosed),
        ("alone", StoreFailure::FailOpen),
    ]
    .map(|(name, on_store_failure)| [0, 1].map(|number| build(number, name, on_store_failure)));
    let leaders = [
        lead(&told[0], "k", &work).await,
        lead(&alone[0], "k", &work).await,
    ];
    let [hear, go_on] =
        [&told[1], &alone[1]].map(|flight| [(); 2].map(|()| begin(flight, "k", &work)));
    place.lined_up("k", 2).await;
    server.kill9();
    work.began(3).await;
    work.let_go(3);
    for caller in go_on {
        assert_eq!(ended(caller).await.unwrap(), 3);
    }
    for caller in hear {
        let error = flight_error(ended(caller).await);
        assert!(error.is_unavailable() && !error.is_refused(), "{error}");
    }
    for leader in leaders {
        assert!(ended(leader).await.unwrap() < 3);
    }
    for _ in 0..3 {
        let error = flight_error(asked(&told[1], "k", &work).await);
        assert!(
            error.is_unavailable() && !error.is_refused() && !error.is_wrong_type(),
            "{error}"
        );
        assert!(told[1].forget("k").await.unwrap_err().is_unavailable());
    }
    for run in 4..=5 {
        let leader = lead(&alone[1], "k", &work).await;
        let followers = [(); 4].map(|()| begin(&alone[1], "k", &work));
        tokio::task::yield_now().await;
        work.let_go(1);
        for caller in followers.into_iter().chain([leader]) {
            assert_eq!(ended(caller).await.unwrap(), run, "nothing is kept");
        }
    }
}

/// What is none of ours is named, and is no outage; deleted or forgotten, all goes on.
#[tokio::test]
async fn keys_of_another_type_are_named() {
    let place = Place::redis(2).await;
    let (flights, server) = (place.flights(), place.server());
    for part in ["lock", "answer"] {
        let (name, work) = (format!("td:{{flights:{part}}}:flight:{part}"), Work::open());
        server.cli(&["RPUSH", &name, "a"]);
        let error = flight_error(asked(&flights[0], part, &work).await);
        assert!(
            error.is_wrong_type() && error.is_unavailable() && !error.is_refused(),
            "{part}: {error}"
        );
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        assert_eq!(work.runs(), 0);
        assert_eq!(
            server.cli(&["LRANGE", &name, "0", "-1"]),
            "a",
            "it was overwritten"
        );
        match part {
            "answer" => flights[0].forget(part).await.unwrap(),
            _ => drop(server.cli(&["DEL", &name])),
        }
        assert_eq!(asked(&flights[0], part, &work).await.unwrap(), 1);
        place.free(part).await;
    }
    // It becomes of another type while its leader runs: whatever is told, its own caller gets its answer.
    for part in ["lock", "answer", "waiters", "beats"] {
        let (key, work) = (&*format!("late-{part}"), Work::shut());
        let name = format!("td:{{flights:{key}}}:flight:{part}");
        let leader = lead(&flights[0], key, &work).await;
        server.cli(&["DEL", &name]);
        server.cli(&["XADD", &name, "*", "field", "value"]);
        work.let_go(2);
        assert_eq!(ended(leader).await.unwrap(), 1);
        if let Err(error) = asked(&flights[1], key, &work).await {
            assert!(error.to_string().contains("WRONGTYPE"), "{part}: {error}");
        }
        server.cli(&["DEL", &name]);
        work.let_go(1);
        asked(&flights[1], key, &work).await.unwrap();
    }
}

/// Under the name of an answer stands what nobody here wrote.
#[tokio::test]
async fn junk_is_no_answer() {
    let place = Place::redis(1).await;
    let (flights, server) = (place.flights(), place.server());
    let (codec, far) = ("postcard/1+", "99999999999999999");
    let junk = [
        String::new(),
        " ".to_owned(),
        "junk".to_owned(),
        format!("{far} {codec}"),
        format!("-1 {codec} +\x01"),
        format!("{far} {codec} "),
        format!("{far} {codec} +"),
        format!("{far} {codec} -\x01"),
        format!("{far} {codec} ?\x01"),
        format!("{far} {codec} +\x01\x01"),
        format!("0 {codec} +\x01"),
        format!("{}{far} {codec} +", "9".repeat(300)),
        format!("x{far} {codec} +\x01"),
    ];
    for (number, junk) in junk.iter().enumerate() {
        let (key, work) = (&*format!("k{number}"), Work::open());
        server.cli(&[
            "SET",
            &format!("td:{{flights:{key}}}:flight:answer"),
            junk,
            "PX",
            "600000",
        ]);
        for _ in 0..2 {
            let outcome = asked(&flights[0], key, &work).await;
            assert!(matches!(outcome, Ok(1)), "{junk:?}: {outcome:?}");
        }
        assert_eq!(work.runs(), 1, "{junk:?}");
        place.free(key).await;
    }
    place.leaves_nothing();
}

/// A flight whose lease is lost is dropped where that is asked for, and says so.
#[tokio::test]
async fn a_run_may_end_with_its_lease() {
    let (place, work) = (Place::redis(1).await, Work::shut());
    let flight = builder()
        .lease_ttl(Duration::from_secs(1))
        .cancel_when_lost(true);
    let flight = flight.build(&place.stores[0], "flights").unwrap();
    let leader = lead(&flight, "k", &work).await;
    place.server().cli(&[
        "SET",
        "td:{flights:k}:flight:lock",
        "somebody",
        "PX",
        "3000",
    ]);
    assert!(flight_error(ended(leader).await).is_lost());
    work.is_over().await;
}
