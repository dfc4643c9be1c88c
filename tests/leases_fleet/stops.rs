//! Holders that stand still for longer than they may hold.

use std::time::Duration;

use futures::future::join_all;
use tower_distributed::{Mutex, Store};

use crate::fleet::{Fleet, LONG, in_time, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{setting, tell};
use support::role;

const STOPS: usize = 20;
const TTL: Duration = Duration::from_millis(500);

fn mutex(store: &Store, ttl: Duration) -> Mutex {
    Mutex::builder().ttl(ttl).build(store, "locks").unwrap()
}

// Locks `ROOM`, writes to its resource until that refuses, and tells what it knows then.
role!(role_writer, async {
    let (referee, room) = (Referee::of_role().await, setting("ROOM"));
    let guard = mutex(&store_of_role(), TTL).lock(room.as_str()).await.unwrap();
    let lost = tokio::spawn(guard.lost());
    assert!(referee.write(&room, guard.fence()).await, "nobody else has written yet");
    tell("writing");
    while referee.write(&room, guard.fence()).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tell(if guard.is_held() { "refused, though held" } else { "refused" });
    lost.await.unwrap();
    tell("lost");
    assert!(guard.extend().await.unwrap_err().is_lost());
    tell(if guard.unlock().await.unwrap() { "unlocked what another holds" } else { "was not held" });
});

/// Stops a holder until another has taken its lock and written, for two times to live at least.
async fn stop(fleet: &Fleet, number: usize) {
    let room = format!("room{number}");
    let mut writer = fleet.spawn("stops::role_writer", &format!("w{number}"), &[("ROOM", &room)]);
    assert_eq!(writer.child.next_line().await, "writing");
    writer.child.pause();
    let stopped = std::time::Instant::now();
    let guard = mutex(&fleet.store(), LONG).lock(room.as_str()).await.unwrap();
    assert!(fleet.referee.write(&room, guard.fence()).await, "a later holder has a lower fence");
    eventually("two times to live to be over", LONG, async || stopped.elapsed() > TTL * 2).await;
    writer.child.resume();
    for line in ["refused", "lost", "was not held"] {
        assert_eq!(writer.child.next_line().await, line);
    }
    assert!(guard.is_held());
    assert!(guard.unlock().await.unwrap(), "it was taken from who held it");
}

#[tokio::test]
async fn stopped_holders_are_told_and_their_writes_are_refused() {
    let fleet = &Fleet::start().await;
    in_time("stops", join_all((0..STOPS).map(|number| stop(fleet, number)))).await;
}
