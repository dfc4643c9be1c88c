//! The path of a call: every operation gets its reply or an error, once, and the state of a breaker is consistent.
//!
//! Not covered: the send queues, the flushers and the tables of runtimes change under one lock each. Their behaviour at
//! the end of a runtime, which depends on more than one lock, is covered.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::Value;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::Store;
use crate::store::client::{Client, Namespace};
use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Rights, Script,
};
use crate::store::redis::RedisStore;
use crate::store::redis::batch::{Batch, Deliveries, Item, Phase, Reply};
use crate::store::redis::breaker::Breaker;
use crate::store::redis::budget::{Budget, weight};
use crate::store::redis::command::Calls;
use crate::store::redis::link::Link;
use crate::store::redis::queue::{RedisClient, Step};
use crate::store::stats::BreakerState;
use crate::sync::{block_on, check, spawn};
use crate::telemetry::server::Server;

fn outage() -> Outage {
    Outage {
        cause: Cause::TimedOut,
        text: "too slow".into(),
        source: None,
    }
}

fn breaker() -> Arc<Breaker> {
    Arc::new(Breaker::new(Duration::from_secs(2), Server::new("test")))
}

/// A call fails while an earlier one succeeds: the breaker is then closed or open, but not both.
pub(crate) fn a_breaker_is_open_if_it_says_so() {
    check(|| {
        let breaker = breaker();
        breaker.failed(Instant::now(), &outage(), false);
        let fails = {
            let breaker = breaker.clone();
            spawn(move || breaker.failed(Instant::now(), &outage(), true))
        };
        breaker.succeeded();
        fails.join().unwrap();
        let is_open = breaker.state() != BreakerState::Closed;
        assert_eq!(breaker.succeeded(), is_open, "a success closes it");
    });
}

/// Of two calls that find the breaker half-open, one is the probe.
pub(crate) fn one_call_is_the_probe() {
    check(|| {
        let breaker = breaker();
        breaker.failed(Instant::now(), &outage(), true);
        breaker.half_open();
        let other = breaker.clone();
        let other = spawn(move || other.check().is_ok());
        let passed = usize::from(breaker.check().is_ok()) + usize::from(other.join().unwrap());
        assert_eq!(passed, 1);
    });
}

/// If two operations compete for room for one, one waits. Both return their budget.
pub(crate) fn a_budget_is_not_exceeded() {
    check(|| {
        let budget = Arc::new(Budget::new(1, 1 << 20));
        let takes = |budget: &Budget| usize::from(budget.take(weight(1)));
        let other = budget.clone();
        let other = spawn(move || takes(&other));
        let taken = takes(&budget) + other.join().unwrap();
        assert_eq!((taken, budget.operations()), (1, 1));
        budget.give_back(weight(1));
        assert_eq!((takes(&budget), takes(&budget)), (1, 0));
    });
}

/// An operation whose reply is a number.
#[derive(Debug)]
struct Ask;

#[derive(Clone, Debug, Default)]
struct Nothing;

impl Cell for Nothing {
    fn is_idle(&self, _: i64) -> bool {
        true
    }
}

impl Operation for Ask {
    type Cell = Nothing;
    type Reply = i64;
    type Undo = Self;
    const SCRIPT: Script = Script {
        words: &[],
        pieces: &[],
        rights: Rights::Writes,
    };
    const PARTS: &'static [&'static str] = &["x"];
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = 8;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.integer(1);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<i64, Garbled> {
        fields.integer()
    }

    fn apply(self, _: &mut Nothing, _: i64) -> i64 {
        0
    }
}

fn client() -> Arc<RedisClient<Ask>> {
    let store = Store::redis("redis://127.0.0.1:1").unwrap();
    match Namespace::<Nothing>::open(&store, "n").client() {
        Client::Redis(client) => client,
        Client::InMemory(_) => unreachable!(),
    }
}

/// A batch of one operation, its client, and its budget.
fn batch() -> (Arc<RedisClient<Ask>>, Arc<Batch<Ask>>, Arc<Budget>) {
    let budget = Arc::new(Budget::new(10, 1 << 20));
    let weight = weight(1);
    assert!(budget.take(weight));
    let item = Item {
        operation: Some(Ask),
        key: "k".into(),
        slot: None,
        owed: false,
        weight,
        reserved: false,
        phase: Phase::Waiting(None),
    };
    (client(), Batch::of(item, 1, &budget, 1), budget)
}

/// Sends the batch and replies to its call with 7, if an operation still needs it.
fn answer(client: &RedisClient<Ask>, batch: &Batch<Ask>) -> Option<Deliveries<Ask>> {
    let calls = Calls::new(&client.script, &client.keys, &batch.close().items);
    batch.note_sent(calls.list.len());
    let reply = || Reply::parse(Value::Array(vec![Value::Int(1), Value::Int(7)]), 1).unwrap();
    calls
        .list
        .first()
        .map(|call| batch.deliver(0, call, &calls.order, Ok(reply())))
}

/// A caller that polls while its reply arrives gets it, even if another task polled before.
pub(crate) fn a_reply_wakes_the_task_that_polled_last() {
    check(|| {
        let (client, batch, _) = batch();
        let answers = {
            let batch = batch.clone();
            spawn(move || drop(answer(&client, &batch)))
        };
        let first = batch.poll(0, &mut Context::from_waker(Waker::noop()));
        let reply = match first {
            Poll::Ready(reply) => reply,
            Poll::Pending => block_on(poll_fn(|context| batch.poll(0, context))),
        };
        assert_eq!(reply.unwrap(), 7);
        answers.join().unwrap();
    });
}

/// If a caller is dropped while its reply arrives, the reply is undone once, and the budget is returned once.
pub(crate) fn a_reply_without_a_caller_is_taken_back_once() {
    check(|| {
        let (client, batch, budget) = batch();
        let answers = {
            let batch = batch.clone();
            spawn(move || {
                let landing = answer(&client, &batch)?;
                Some(
                    landing
                        .orphans
                        .iter()
                        .map(|(_, replies)| replies.len())
                        .sum::<usize>(),
                )
            })
        };
        let left_with = batch.leave(0).is_some();
        match answers.join().unwrap() {
            Some(orphans) => assert_eq!(orphans + usize::from(left_with), 1),
            None => assert!(!left_with, "it was not sent"),
        }
        assert_eq!(budget.operations(), 0);
    });
}

/// A runtime that runs no task, and ends on another thread.
fn runtime() -> (Runtime, Handle) {
    let runtime = Builder::new_current_thread().build().unwrap();
    let handle = runtime.handle().clone();
    // It drops its tasks in an order that depends on their ids. An interleaving can only be repeated with the same
    // order.
    while handle
        .spawn(async {})
        .id()
        .to_string()
        .parse::<u64>()
        .unwrap()
        % 8
        > 0
    {}
    (runtime, handle)
}

/// An operation on a runtime that ends meanwhile fails.
pub(crate) fn an_operation_on_a_runtime_that_ends_fails() {
    check(|| {
        let (client, (runtime, handle)) = (client(), runtime());
        let ends = spawn(move || drop(runtime));
        let enqueue = || {
            client
                .clone()
                .enqueue(Some(handle.clone()), "k".into(), Ask, None, false)
        };
        let steps = [enqueue(), enqueue()];
        ends.join().unwrap();
        for step in steps {
            let reply: Option<Result<i64, Error>> = match step {
                Step::Done(reply) => reply,
                Step::Queued(queued) => {
                    match queued
                        .batch
                        .poll(queued.index, &mut Context::from_waker(Waker::noop()))
                    {
                        Poll::Ready(reply) => Some(reply),
                        Poll::Pending => None,
                    }
                }
                Step::Submitted(_) => None,
            };
            assert!(reply.expect("it waits for ever").is_err());
        }
    });
}

/// A caller that waits for a connection on a runtime that ends gets an error, and the next one starts another attempt.
/// (Two callers at once would be woken in an order that tokio chooses at random.)
pub(crate) fn a_connection_on_a_runtime_that_ends_fails() {
    check(|| {
        let (client, (ended, handle), (_runs, other)) = (client(), runtime(), runtime());
        let RedisStore {
            source,
            process,
            telemetry,
            ..
        } = &*client.store;
        let link = Arc::new(Link::new(
            source.clone(),
            Duration::from_secs(1),
            *process,
            telemetry.clone(),
            None,
        ));
        let ends = spawn(move || drop(ended));
        assert!(block_on(link.hold(&handle)).is_err());
        ends.join().unwrap();
        let attempt = pin!(link.hold(&other)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(
            attempt.is_pending(),
            "it does not wait for the attempt that failed"
        );
    });
}
