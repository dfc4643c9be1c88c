//! Of many who ask for an item at once, one is told that it is new.

use std::collections::HashMap;

use futures::future::join_all;

use crate::fleet::{Fleet, filter, store_of_role};
use crate::referee::Referee;
use support::processes::{setting, tell};
use support::role;
use support::size;

const PROCESSES: usize = 4;
const CALLERS: usize = 64;

fn items() -> usize {
    500 * size()
}

role!(role_callers, async {
    let (referee, seen) = (Referee::of_role().await, filter(&store_of_role()));
    tell("ready");
    Referee::of_role().await.next_order(&setting("NAME")).await;
    let callers = (0..CALLERS).map(|_| {
        let (referee, seen) = (referee.clone(), seen.clone());
        tokio::spawn(async move {
            for item in 0..items() {
                if seen.insert(item.to_string()).await.unwrap() {
                    referee.note("items", "new", &item.to_string()).await;
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.unwrap();
    }
    tell("done");
});

#[tokio::test]
async fn each_item_is_new_once_to_256_callers_in_4_processes() {
    let fleet = Fleet::start().await;
    let name = |number: usize| format!("p{number}");
    let mut children: Vec<_> =
        (0..PROCESSES).map(|number| fleet.spawn("one_new::role_callers", &name(number))).collect();
    for child in &mut children {
        assert_eq!(child.next_line().await, "ready");
    }
    let began = std::time::Instant::now();
    for number in 0..PROCESSES {
        fleet.referee.order(&name(number), "go").await;
    }
    for child in &mut children {
        assert_eq!(child.next_line().await, "done");
    }
    println!("{} calls in {:?}", PROCESSES * CALLERS * items(), began.elapsed());
    let mut new: HashMap<String, usize> = HashMap::new();
    for note in fleet.referee.notes("items").await {
        *new.entry(note.rsplit(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(new.len(), items());
    assert!(new.values().all(|times| *times == 1), "{new:?}");
}
