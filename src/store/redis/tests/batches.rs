//! Each operation of a batch gets its reply or an error, once.

use std::task::{Context, Poll, Waker};

use redis::Value;

use super::*;
use crate::Error;
use crate::error::Cause;
use crate::store::redis::batch::{Batch, Landing};
use crate::store::redis::budget::{Budget, weight};
use crate::store::redis::plan::Plan;
use crate::store::redis::reply::Reply;

type Answer = Option<Result<(i64, usize), String>>;

/// A batch of these operations, and the budget that they use.
fn batch(items: Vec<Item<Ask>>) -> (Arc<Batch<Ask>>, Arc<Budget>) {
    let budget = Arc::new(Budget::new(100, 1 << 20));
    let mut items = items.into_iter().map(|item| Item { weight: weight(1), ..item });
    let batch = Batch::of(&client(Store::builder()), items.next().unwrap(), 1, &budget, 1);
    assert!(budget.take(weight(1)));
    for (index, item) in (1..).zip(items) {
        assert!(budget.take(weight(1)));
        assert_eq!(batch.state().push(item, 1), index);
    }
    (batch, budget)
}

/// Sends the batch. Its only call is answered with these fields later.
fn sent(batch: &Batch<Ask>, fields: &[i64]) -> impl FnOnce() -> Landing<Ask> {
    let client = &batch.client;
    let plan = Plan::new(&client.script, &client.keys, &batch.depart().items);
    batch.departs(plan.calls.len());
    let values = [&[1], fields].concat().into_iter().map(Value::Int).collect();
    let reply = Reply::parse(Value::Array(values), plan.calls[0].size()).unwrap();
    move || batch.land(0, &plan.calls[0], &plan.order, Ok(reply))
}

fn polled(batch: &Batch<Ask>, index: usize) -> Answer {
    match batch.poll(index, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Some(reply.map_err(|error| error.to_string())),
        Poll::Pending => None,
    }
}

fn lost() -> Error {
    Error::unavailable(Cause::TimedOut, "lost")
}

#[test]
fn the_last_replies_of_a_run_are_those_without_a_caller() {
    let mut items: Vec<_> = ["a", "a", "a", "b", "c"].map(|key| waiting(key, ask(5))).into();
    items[1].owed = true;
    let (batch, _) = batch(items);
    // The callers go away while the call is under way.
    let answer = sent(&batch, &[7, 8, 9]);
    assert!([0, 1, 3].iter().all(|index| batch.leave(*index).is_none()));
    let landing = answer();
    assert_eq!(landing.owed, 1);
    assert_eq!(landing.orphans, [("a".into(), vec![(7, 2)]), ("b".into(), vec![(8, 0)])]);
    assert_eq!([2, 4].map(|index| polled(&batch, index)), [Some(Ok((7, 1))), Some(Ok((9, 0)))]);
}

#[test]
fn budget_is_used_until_the_batch_leaves_or_the_caller_goes() {
    let mut items: Vec<_> = ["a", "b", "c", "d"].map(|key| waiting(key, ask(5))).into();
    items[1].owed = true;
    let (batch, budget) = batch(items);
    assert!(batch.leave(0).is_none() && batch.leave(1).is_none());
    assert_eq!(budget.operations(), 3, "the owed one still waits");
    assert_eq!(batch.state().bytes, 4);
    drop(batch.depart());
    assert_eq!(budget.operations(), 0);
    assert!(batch.leave(2).is_none());
    assert_eq!(budget.operations(), 0);
}

#[test]
fn a_failure_reaches_all_that_wait_or_all_but_the_reserved() {
    let items = || {
        let mut items: Vec<_> = ["a", "b", "c", "d", "e"].map(|key| waiting(key, ask(5))).into();
        (items[1].reserved, items[1].owed) = (true, true);
        items[2].owed = true;
        (items[3].owed, items[3].phase) = (true, Phase::Left);
        items[4].phase = Phase::Left;
        items
    };
    let (all, _) = batch(items());
    assert_eq!(all.fail(&lost(), false), 3, "of which three are owed");
    let (some, _) = batch(items());
    assert_eq!(some.fail(&lost(), true), 2);
    for (batch, reserved) in [(all, true), (some, false)] {
        let failed = [0, 1, 2].map(|index| polled(&batch, index).is_some_and(|answer| answer.is_err()));
        assert_eq!(failed, [true, reserved, true]);
    }
    let (answered, _) = batch(vec![waiting("a", ask(5))]);
    sent(&answered, &[7])();
    assert_eq!(answered.fail(&lost(), false), 0);
    assert_eq!(polled(&answered, 0), Some(Ok((7, 0))), "the reply was there");
}
