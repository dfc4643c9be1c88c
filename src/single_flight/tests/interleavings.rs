//! Flights within a process: no caller is forgotten when a flight ends or is handed on, and no run that others wait for.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::FutureExt as _;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::key::Key;
use crate::single_flight::task::Run;
use crate::single_flight::waiters::{Caller, LeaderGuard, Role, Table, Wakeup};
use crate::sync::{block_on, check, spawn};

type Table1 = Arc<Table<u32>>;

fn leads(table: &Table1, key: &Key) -> (LeaderGuard<u32>, Caller<u32>) {
    match table.join(key) {
        Role::Leader(guard, caller) => (guard, caller),
        _ => panic!("there is a flight"),
    }
}

fn follows(table: &Table1, key: &Key) -> Option<(oneshot::Receiver<Wakeup<u32>>, Caller<u32>)> {
    match table.join(key) {
        Role::Follower(waits, caller) => Some((waits, caller)),
        _ => None,
    }
}

/// A caller that comes while a flight ends gets its outcome, or leads the next one.
pub(crate) fn a_follower_gets_the_outcome() {
    check(|| {
        let (table, key) = (Table::new("x", false), Key::from("k"));
        let (mut guard, caller) = leads(&table, &key);
        let ends = spawn(move || {
            guard.finish(Ok(&7));
            drop(caller);
        });
        if let Some((waits, _caller)) = follows(&table, &key) {
            assert!(matches!(block_on(waits), Ok(Wakeup::Outcome(Ok(7)))));
        }
        ends.join().unwrap();
        drop(leads(&table, &key));
    });
}

/// If a leader goes away together with the follower that is next, the other follower leads.
pub(crate) fn the_follower_that_stays_leads() {
    check(|| {
        let (table, key) = (Table::new("x", false), Key::from("k"));
        let leader = leads(&table, &key);
        let (next, stays) = (
            follows(&table, &key).unwrap(),
            follows(&table, &key).unwrap(),
        );
        let (one, other) = (spawn(move || drop(leader)), spawn(move || drop(next)));
        let woken = block_on(stays.0);
        assert!(matches!(woken, Ok(Wakeup::Lead(_))));
        one.join().unwrap();
        other.join().unwrap();
        drop((woken, stays.1));
        drop(leads(&table, &key));
    });
}

/// A run that others begin to wait for while its caller polls it becomes a task: its caller may poll it no more.
pub(crate) fn a_run_that_others_wait_for_becomes_a_task() {
    check(|| {
        let runtime = Builder::new_current_thread().build().unwrap();
        let run = {
            let _entered = runtime.enter();
            Run::new(pending().boxed()).unwrap()
        };
        let waits = {
            let run = run.clone();
            spawn(move || run.spawn())
        };
        let (_sender, outcome) = oneshot::channel::<()>();
        let polled =
            pin!(run.outcome(outcome, || {})).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        waits.join().unwrap();
        assert_eq!(runtime.metrics().num_alive_tasks(), 1);
    });
}
