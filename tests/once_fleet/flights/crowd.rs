//! Many callers in several processes, none of which fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::future::join_all;

use super::flights;
use crate::fleet::{Fleet, LONG, store_of_role};
use crate::origin::hex;
use crate::referee::Referee;
use support::processes::{setting, tell};
use support::role;

const PROCESSES: usize = 4;
const TASKS: usize = 64;
const KEYS: usize = 500;

// Asks for each key once in each task, and notes what its callers got.
role!(role_caller, threads = 2, async {
    let (referee, name) = (Referee::of_role().await, setting("NAME"));
    let process: usize = name[1..].parse().unwrap();
    let flights = flights(&store_of_role(), LONG);
    tell("ready");
    let orders = Referee::of_role().await;
    orders.next_order(&name).await;
    let tasks = (0..TASKS).map(|task| {
        let (flights, referee, name) = (flights.clone(), referee.clone(), name.clone());
        // Half of them side by side, the others each from somewhere else.
        let first = if task % 2 == 0 { 0 } else { (task * PROCESSES + process) * KEYS / (TASKS * PROCESSES) };
        tokio::spawn(async move {
            let mut got = Vec::new();
            for key in (0..KEYS).map(|key| format!("key{}", (key + first) % KEYS)) {
                let (referee, name, of) = (referee.clone(), name.clone(), key.clone());
                let work = move || async move {
                    let bytes = referee.run(&of, &name).await;
                    referee.note(&of, "ran", &hex(&bytes)).await;
                    bytes
                };
                let answer = flights.run(key.as_str(), work).await.unwrap();
                got.push((key, answer));
            }
            got
        })
    });
    let mut got = BTreeMap::<String, Vec<Vec<u8>>>::new();
    for task in join_all(tasks).await {
        for (key, answer) in task.unwrap() {
            got.entry(key).or_default().push(answer);
        }
    }
    for (key, answers) in got {
        let callers = answers.len();
        for answer in answers.into_iter().collect::<BTreeSet<_>>() {
            referee.note(&key, "got", &format!("{callers} {}", hex(&answer))).await;
        }
    }
    tell("done");
});

#[tokio::test]
async fn each_key_is_run_once_and_all_get_what_came_of_it() {
    let fleet = Fleet::start().await;
    let names: Vec<_> = (0..PROCESSES).map(|process| format!("p{process}")).collect();
    let mut callers: Vec<_> =
        names.iter().map(|name| fleet.spawn("flights::crowd::role_caller", name, &[])).collect();
    for caller in &mut callers {
        assert_eq!(caller.next_line().await, "ready");
    }
    let began = Instant::now();
    for name in &names {
        fleet.referee.order(name, "go").await;
    }
    for caller in &mut callers {
        assert_eq!(caller.next_line().await, "done");
    }
    println!("{} calls in {:?}", PROCESSES * TASKS * KEYS, began.elapsed());
    let mut runs = BTreeMap::<String, usize>::new();
    for key in (0..KEYS).map(|key| format!("key{key}")) {
        let notes = fleet.referee.story(&key).await;
        let of =
            |verb| notes.iter().filter(|note| note.verb == verb).map(|note| &*note.rest).collect::<Vec<_>>();
        let (ran, got) = (of("ran"), of("got"));
        assert_eq!((of("run").len(), ran.len()), (1, 1), "{key}: {notes:?}");
        assert_eq!(got, vec![format!("{TASKS} {}", ran[0]); PROCESSES], "{key}");
        *runs.entry(of("run")[0].to_owned()).or_default() += 1;
    }
    println!("who ran: {runs:?}");
    assert_eq!(runs.values().sum::<usize>(), KEYS);
    fleet.leaves_nothing();
}
