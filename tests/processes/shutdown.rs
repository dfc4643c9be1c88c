//! A runtime that shuts down in a process that goes on.

use std::future::pending;
use std::time::Duration;

use tower_distributed::{Mutex, RwLock, Store, WaitGroup};

use crate::fleet::{Fleet, store_of_role};
use crate::referee::Referee;
use support::eventually;
use support::processes::{is_child, tell};

/// So long that it is not by this that anything is free again.
const TTL: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(20);
const FAMILIES: [&str; 3] = ["locks", "permits", "documents"];
const HELD_IN: [&str; 2] = ["a task", "no task"];

#[derive(Clone)]
struct Families(Mutex, WaitGroup, RwLock);

impl Families {
    fn new(store: &Store) -> Self {
        Self(
            Mutex::builder().ttl(TTL).strict_fifo().build(store, "locks").unwrap(),
            WaitGroup::builder(1).ttl(TTL).build(store, "permits").unwrap(),
            RwLock::builder().ttl(TTL).build(store, "documents").unwrap(),
        )
    }

    async fn all(&self, key: &'static str) -> impl Send + use<> {
        let Self(mutex, group, lock) = self;
        tokio::join!(mutex.lock(key), group.add(key), lock.write(key))
    }

    /// Which of them are free.
    async fn free(&self, key: &'static str) -> [bool; 3] {
        let Self(mutex, group, lock) = self;
        let (mutex, group, lock) = tokio::join!(mutex.try_lock(key), group.try_add(key), lock.try_write(key));
        [mutex.is_ok(), group.is_ok(), lock.is_ok()]
    }
}

/// Holds something of each in a task and outside of any, and waits for it in another, until it is told to go on
/// without its runtime.
#[test]
#[ignore = "a role, started by the tests"]
fn role_runtime() {
    if !is_child() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outside = runtime.block_on(async {
        let (families, referee) = (Families::new(&store_of_role()), Referee::of_role().await);
        let outside = families.all(HELD_IN[1]).await;
        let (held, holding) = tokio::sync::oneshot::channel();
        let holder = families.clone();
        tokio::spawn(async move {
            let _all = holder.all(HELD_IN[0]).await;
            held.send(()).unwrap();
            pending::<()>().await;
        });
        holding.await.unwrap();
        tokio::spawn(async move { drop(families.all(HELD_IN[0]).await) });
        referee.next_order("p").await;
        outside
    });
    drop(runtime);
    drop(outside);
    tell("shut down");
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn what_a_runtime_held_is_free_soon_after_it_shuts_down() {
    let fleet = Fleet::start().await;
    let families = Families::new(&fleet.store());
    let mut player = fleet.spawn("shutdown::role_runtime", "p", &[]);
    for family in FAMILIES {
        fleet.lined_up(family, HELD_IN[0], 1).await;
    }
    for key in HELD_IN {
        assert_eq!(families.free(key).await, [false; 3]);
    }
    fleet.referee.order("p", "go on").await;
    assert_eq!(player.child.next_line().await, "shut down");
    for key in HELD_IN {
        let mut were_free = [false; 3];
        eventually(&format!("what was held in {key}"), SOON, async || {
            let are_free = families.free(key).await;
            were_free.iter_mut().zip(are_free).for_each(|(were, are)| *were |= are);
            were_free == [true; 3]
        })
        .await;
        for family in FAMILIES {
            fleet.lined_up(family, key, 0).await;
        }
    }
}
