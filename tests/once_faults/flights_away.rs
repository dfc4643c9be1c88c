//! Redis, the way to it, or a runtime goes away while something flies.

use std::sync::mpsc;
use std::time::Duration;

use tokio::time::timeout;
use tower_distributed::StoreFailure;
use tower_distributed::single_flight::{Postcard, RunError};
use tower_distributed::{Error, SingleFlight};

use crate::flights::{Outcome, builder, call, ended, flights, lead};
use crate::places::{LONG, Place, SOON, open, subscribed};
use crate::work::Work;
use support::eventually;
use support::redis_server::RedisServer;

/// Within what a lost message may be made up for: some beats.
const IN_TIME: Duration = Duration::from_secs(6);

fn flight_error(outcome: Outcome) -> Error {
    match outcome {
        Err(RunError::Flight(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The leader's runtime shuts down; those on another take over, in its process and elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_shuts_down_leaves_its_run_to_others() {
    for place in [Place::in_memory(2), Place::redis(2).await] {
        for follower in 0..2 {
            let (flights, work) = (flights(&place), Work::shut());
            let key = &*format!("k{follower}");
            let (began, begins) = mpsc::channel();
            let leads = call(&flights[0], key, &work);
            let watched = work.clone();
            let (shut, may_shut) = tokio::sync::oneshot::channel();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let leader = tokio::spawn(leads);
                    watched.began(1).await;
                    began.send(()).unwrap();
                    may_shut.await.unwrap();
                    assert!(!leader.is_finished());
                });
            });
            tokio::task::block_in_place(|| begins.recv()).unwrap();
            let others = [flights[follower].clone(), flights[1].clone()]
                .map(|flight| tokio::spawn(call(&flight, key, &work)));
            place.lined_up(key, 1).await;
            shut.send(()).unwrap();
            tokio::task::block_in_place(|| thread.join()).unwrap();
            work.began(2).await;
            work.let_go(1);
            let [first, second] = others;
            match ended(first).await {
                // The connections that its process has gone with the runtime they were made on.
                Err(RunError::Flight(error)) if follower == 0 => {
                    assert!(error.is_unavailable(), "{error}");
                    let again = call(&flights[0], key, &work);
                    assert_eq!(ended(tokio::spawn(again)).await.unwrap(), 2);
                }
                outcome => assert_eq!(outcome.unwrap(), 2),
            }
            assert_eq!(ended(second).await.unwrap(), 2);
            work.is_over().await;
            place.free(key).await;
        }
        place.leaves_nothing();
    }
}

/// Redis has lost who leads. Its own callers get what its run gives; those elsewhere go on with another.
#[tokio::test]
async fn a_restart_leaves_each_process_with_an_answer() {
    let place = Place::redis(2).await;
    // Who runs alone while the server is away publishes nothing.
    let build = |store| builder().on_store_failure(StoreFailure::FailClosed).build(store, "flights").unwrap();
    let (flights, work) = (place.stores.iter().map(build).collect::<Vec<_>>(), Work::shut());
    let here = [lead(&flights[0], "k", &work).await, tokio::spawn(call(&flights[0], "k", &work))];
    let there = [1, 1].map(|number| tokio::spawn(call(&flights[number], "k", &work)));
    place.lined_up("k", 1).await;
    place.server.as_ref().unwrap().restart().await;
    work.began(2).await;
    work.let_go(2);
    for caller in here {
        assert_eq!(ended(caller).await.unwrap(), 1);
    }
    for caller in there {
        assert_eq!(ended(caller).await.unwrap(), 2);
    }
    // What was published is of who led last.
    assert_eq!(ended(tokio::spawn(call(&flights[0], "k", &work))).await.unwrap(), 2);
    assert_eq!(work.runs(), 2);
    place.leaves_nothing();
}

/// All in the process get the answer, though it cannot be published.
#[tokio::test]
async fn an_answer_reaches_its_process_though_the_store_is_away() {
    let place = Place::redis(1).await;
    let (flights, work) = (flights(&place), Work::shut());
    let leader = lead(&flights[0], "k", &work).await;
    let follower = tokio::spawn(call(&flights[0], "k", &work));
    tokio::task::yield_now().await;
    place.server.as_ref().unwrap().kill9();
    work.let_go(1);
    for caller in [leader, follower] {
        assert_eq!(ended(caller).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn an_outage_is_told_as_such_or_work_goes_on_alone() {
    let server = RedisServer::start().await;
    let store = open(&server.url());
    let told = builder().on_store_failure(StoreFailure::FailClosed).build(&store, "told").unwrap();
    let alone = builder().build(&store, "alone").unwrap();
    let work = Work::shut();
    server.kill9();
    for _ in 0..3 {
        let error = flight_error(ended(tokio::spawn(call(&told, "k", &work))).await);
        assert!(error.is_unavailable() && !error.is_refused() && !error.is_wrong_type(), "{error}");
        assert!(told.forget("k").await.unwrap_err().is_unavailable());
    }
    assert_eq!(work.runs(), 0);
    for run in 1..=2 {
        let leader = lead(&alone, "k", &work).await;
        let followers = [(); 4].map(|()| tokio::spawn(call(&alone, "k", &work)));
        tokio::task::yield_now().await;
        work.let_go(1);
        for caller in followers.into_iter().chain([leader]) {
            assert_eq!(ended(caller).await.unwrap(), run);
        }
    }
    assert_eq!(work.runs(), 2, "nothing is kept");
    server.restart().await;
    work.let_go(3);
    for flight in [&told, &alone] {
        eventually("it to be shared again", SOON, async || {
            let outcome = ended(tokio::spawn(call(flight, "k", &work))).await;
            outcome.is_ok()
                && server.query(&["EXISTS", &format!("td:{{{}:k}}:flight:answer", flight.name())]) == Ok(1)
        })
        .await;
    }
}

/// The message that there is an answer, or that somebody is to take over, goes to a connection that is just being
/// killed.
#[tokio::test]
async fn lost_pushes_hold_nobody_up() {
    let place = Place::redis(2).await;
    let (flights, server) = (flights(&place), place.server.as_ref().unwrap());
    for round in 0..16 {
        let (key, work) = (&*format!("k{round}"), Work::shut());
        let leader = lead(&flights[0], key, &work).await;
        let follower = tokio::spawn(call(&flights[1], key, &work));
        place.lined_up(key, 1).await;
        eventually("the subscription", SOON, async || subscribed(server) == 1).await;
        let (fails, early) = (round % 2 == 0, round % 4 < 2);
        let kill = || server.query::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        if early {
            kill();
        }
        match fails {
            true => leader.abort(),
            false => work.let_go(1),
        }
        tokio::task::yield_now().await;
        if !early {
            kill();
        }
        work.let_go(1);
        let answer = timeout(IN_TIME, follower).await.expect("the follower is forgotten").unwrap().unwrap();
        assert_eq!(answer, if fails { 2 } else { 1 });
        place.free(key).await;
    }
    place.leaves_nothing();
}

/// What is none of ours is named, and is no outage; deleted or forgotten, all goes on.
#[tokio::test]
async fn keys_of_another_type_are_named() {
    let place = Place::redis(1).await;
    let server = place.server.as_ref().unwrap();
    let flight = builder().build(&place.stores[0], "flights").unwrap();
    for part in ["lock", "answer"] {
        let (name, work) = (format!("td:{{flights:{part}}}:flight:{part}"), Work::open());
        server.cli(&["RPUSH", &name, "a"]);
        let error = flight_error(ended(tokio::spawn(call(&flight, part, &work))).await);
        assert!(error.is_wrong_type() && error.is_unavailable() && !error.is_refused(), "{part}: {error}");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        assert_eq!(work.runs(), 0);
        assert_eq!(server.cli(&["LRANGE", &name, "0", "-1"]), "a", "it was overwritten");
        match part {
            "answer" => flight.forget(part).await.unwrap(),
            _ => drop(server.cli(&["DEL", &name])),
        }
        assert_eq!(ended(tokio::spawn(call(&flight, part, &work))).await.unwrap(), 1);
        place.free(part).await;
    }
}

/// It becomes of another type while its leader runs: whatever is told, its own caller gets its answer.
#[tokio::test]
async fn a_part_that_becomes_of_another_type_stops_nobody_who_runs() {
    let place = Place::redis(2).await;
    let (flights, server) = (flights(&place), place.server.as_ref().unwrap());
    for part in ["lock", "answer", "waiters", "beats"] {
        let (name, work) = (format!("td:{{flights:{part}}}:flight:{part}"), Work::shut());
        let leader = lead(&flights[0], part, &work).await;
        server.cli(&["DEL", &name]);
        server.cli(&["XADD", &name, "*", "field", "value"]);
        work.let_go(2);
        assert_eq!(ended(leader).await.unwrap(), 1);
        if let Err(error) = ended(tokio::spawn(call(&flights[1], part, &work))).await {
            assert!(error.to_string().contains("WRONGTYPE"), "{part}: {error}");
        }
        server.cli(&["DEL", &name]);
        work.let_go(1);
        ended(tokio::spawn(call(&flights[1], part, &work))).await.unwrap();
    }
}

/// Under the name of an answer stands what nobody here wrote.
#[tokio::test]
async fn junk_is_no_answer() {
    let place = Place::redis(1).await;
    let (flights, server) = (flights(&place), place.server.as_ref().unwrap());
    let codec = "postcard/1+";
    let far = "99999999999999999";
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
        let name = format!("td:{{flights:{key}}}:flight:answer");
        server.cli(&["SET", &name, junk, "PX", "600000"]);
        for _ in 0..2 {
            let outcome = ended(tokio::spawn(call(&flights[0], key, &work))).await;
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
    let place = Place::redis(2).await;
    let server = place.server.as_ref().unwrap();
    for cancel in [true, false] {
        let name = format!("cancel-{cancel}");
        let flight = SingleFlight::<u64, String>::builder(Postcard).ttl(LONG);
        let flight =
            flight.lease_ttl(Duration::from_secs(1)).cancel_when_lost(cancel).build(&place.stores[0], &name);
        let (flight, work) = (flight.unwrap(), Work::shut());
        let leader = lead(&flight, "k", &work).await;
        server.cli(&["SET", &format!("td:{{{name}:k}}:flight:lock"), "somebody", "PX", "3000"]);
        if cancel {
            assert!(flight_error(ended(leader).await).is_lost());
            work.is_over().await;
        } else {
            work.let_go(1);
            assert_eq!(ended(leader).await.unwrap(), 1);
        }
    }
}

/// Those who follow when the store goes away are not told that somebody else's work was slow, and need not wait for it.
#[tokio::test]
async fn who_follows_hears_of_an_outage_or_goes_on_alone() {
    let place = Place::redis(2).await;
    let work = Work::shut();
    let longest = Duration::from_secs(8); // several beats
    let build = |number: usize, name, alone| {
        builder()
            .max_wait(longest)
            .on_store_failure(if alone { StoreFailure::FailOpen } else { StoreFailure::FailClosed })
            .build(&place.stores[number], name)
            .unwrap()
    };
    let leaders = [build(0, "told", false), build(0, "alone", false)];
    let leaders = [lead(&leaders[0], "k", &work).await, lead(&leaders[1], "k", &work).await];
    let (told, alone) = (build(1, "told", false), build(1, "alone", true));
    let told = [(); 2].map(|()| tokio::spawn(call(&told, "k", &work)));
    let alone = [(); 2].map(|()| tokio::spawn(call(&alone, "k", &work)));
    place.lined_up("k", 2).await;
    place.server.as_ref().unwrap().kill9();
    work.began(3).await;
    work.let_go(3);
    for caller in alone {
        assert_eq!(ended(caller).await.unwrap(), 3);
    }
    for caller in told {
        let error = flight_error(ended(caller).await);
        assert!(error.is_unavailable() && !error.is_refused(), "{error}");
    }
    for leader in leaders {
        assert!(ended(leader).await.unwrap() < 3);
    }
}
