//! Every caller may go away at any time, whatever its part is: the others get an answer, and no lock or place in a queue
//! is left behind.

use std::future::Future;

use tokio::task::{JoinHandle, yield_now};
use tokio_test::task;

use crate::flights::{Flight, Outcome, call, ended, flights, lead};
use crate::places::Place;
use crate::work::Work;

macro_rules! on_both_stores {
    ($($test:ident),* $(,)?) => {
        // On one thread each step is one of the scheduler's.
        mod in_memory {
            $(
                #[tokio::test]
                async fn $test() {
                    super::at_each_step(super::Place::in_memory(3), stringify!($test), super::$test).await;
                }
            )*
        }

        mod redis {
            $(
                #[tokio::test]
                async fn $test() {
                    super::at_each_step(super::Place::redis(3).await, stringify!($test), super::$test).await;
                }
            )*
        }
    };
}

on_both_stores!(
    a_leader_alone,
    a_leader_with_followers,
    a_leader_that_fails,
    a_follower_here,
    a_follower_elsewhere,
    who_runs_after_a_failure,
    who_takes_over_elsewhere,
);

/// Flights of several processes, and a key.
struct Scene<'a> {
    place: &'a Place,
    flights: &'a [Flight],
    key: &'a str,
    /// After how many steps the caller goes away.
    steps: usize,
}

/// For 0, 1, 2, … steps: plays a scene in which a caller goes away after so many, until it has got its answer by then.
async fn at_each_step(place: Place, what: &str, play: impl AsyncFn(Scene<'_>) -> bool) {
    let (flights, mut steps, mut played) = (flights(&place), 0, 0);
    loop {
        let key = &*format!("{what} {steps}");
        let done = play(Scene { place: &place, flights: &flights, key, steps }).await;
        place.free(key).await;
        // Whoever comes next gets an answer, everywhere.
        let work = Work::open();
        for flight in &flights {
            ended(tokio::spawn(call(flight, key, &work))).await.unwrap();
        }
        assert!(work.runs() <= 1, "nothing was shared");
        place.free(key).await;
        played += 1;
        if done {
            break;
        }
        // Where it is Redis that takes long there are many steps alike.
        steps += 1 + steps / 12;
    }
    println!("{what}: dropped at {played} points, up to step {steps}");
    place.leaves_nothing();
}

impl Scene<'_> {
    fn call(&self, number: usize, work: &Work) -> impl Future<Output = Outcome> + Send + 'static + use<> {
        call(&self.flights[number], self.key, work)
    }

    fn spawn(&self, number: usize, work: &Work) -> JoinHandle<Outcome> {
        tokio::spawn(self.call(number, work))
    }

    async fn lead(&self, work: &Work) -> JoinHandle<Outcome> {
        lead(&self.flights[0], self.key, work).await
    }

    /// Polls a call when it is woken, for so many steps, and drops it. What it waits for happens meanwhile.
    async fn drop_after(
        &self,
        call: impl Future<Output = Outcome>,
        mut happens: impl FnMut(usize),
    ) -> Option<Outcome> {
        let mut call = task::spawn(call);
        for step in 0..self.steps {
            if (step == 0 || call.is_woken())
                && let std::task::Poll::Ready(outcome) = call.poll()
            {
                return Some(outcome);
            }
            happens(step);
            yield_now().await;
        }
        None
    }

    /// Whether by this step so many wait in the store, as far as can be seen.
    fn are_waiting(&self, count: usize, step: usize) -> bool {
        self.place.waiting(self.key).map_or(step >= 12, |waiting| waiting >= count)
    }
}

async fn answers(callers: Vec<JoinHandle<Outcome>>) -> Vec<u64> {
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(ended(caller).await.unwrap());
    }
    answers
}

/// While it asks, runs, and publishes.
async fn a_leader_alone(scene: Scene<'_>) -> bool {
    let work = Work::open();
    let outcome = scene.drop_after(scene.call(0, &work), |_| ()).await;
    work.is_over().await;
    outcome.is_some_and(|outcome| outcome.unwrap() == 1)
}

/// Those in its process go on with its run. The rest of what it was to do is theirs.
async fn a_leader_with_followers(scene: Scene<'_>) -> bool {
    let (work, mut followers) = (Work::shut(), Vec::new());
    let outcome = scene
        .drop_after(scene.call(0, &work), |step| match step {
            2 => followers.extend([0, 1, 2].map(|number| scene.spawn(number, &work))),
            20 => work.let_go(4),
            _ => {}
        })
        .await;
    work.let_go(4);
    let answers = answers(followers).await;
    // Either the first had begun or not, and either one here was with it or not.
    assert!(work.runs() <= 2 && answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    work.is_over().await;
    outcome.is_some_and(|outcome| outcome.is_ok())
}

async fn a_leader_that_fails(scene: Scene<'_>) -> bool {
    let (work, mut followers) = (Work::failing(), Vec::new());
    let outcome = scene
        .drop_after(scene.call(0, &work), |step| match step {
            2 => followers.extend([0, 1, 2].map(|number| scene.spawn(number, &work))),
            20 => work.let_go(4),
            _ => {}
        })
        .await;
    work.let_go(4);
    let mut failed = 0;
    let mut got = Vec::new();
    for follower in followers {
        match ended(follower).await {
            Ok(answer) => got.push(answer),
            Err(_) => failed += 1,
        }
    }
    failed += usize::from(matches!(outcome, Some(Err(_))));
    // The first run fails for its caller alone, and those who waited for it run at once.
    assert!(failed <= 1 && got.iter().all(|run| (2..=4).contains(run)), "{got:?}, {failed} failed");
    work.is_over().await;
    outcome.is_some()
}

async fn a_follower_here(scene: Scene<'_>) -> bool {
    let work = Work::shut();
    let leader = scene.lead(&work).await;
    let outcome = scene
        .drop_after(scene.call(0, &work), |step| {
            if step == 3 {
                work.let_go(1);
            }
        })
        .await;
    if scene.steps <= 3 {
        work.let_go(1);
    }
    assert_eq!(answers(vec![leader]).await, [1]);
    assert_eq!(work.runs(), 1);
    outcome.is_some_and(|outcome| outcome.unwrap() == 1)
}

async fn a_follower_elsewhere(scene: Scene<'_>) -> bool {
    let work = Work::shut();
    let leader = scene.lead(&work).await;
    let mut is_let_go = false;
    let outcome = scene
        .drop_after(scene.call(1, &work), |step| {
            if !is_let_go && scene.are_waiting(1, step) {
                work.let_go(1);
                is_let_go = true;
            }
        })
        .await;
    if !is_let_go {
        // It is out of the queue while the leader is still at it.
        scene.place.lined_up(scene.key, 0).await;
        assert!(!leader.is_finished());
        work.let_go(1);
    }
    assert_eq!(answers(vec![leader]).await, [1]);
    assert_eq!(work.runs(), 1);
    outcome.is_some_and(|outcome| outcome.unwrap() == 1)
}

async fn who_runs_after_a_failure(scene: Scene<'_>) -> bool {
    let work = Work::failing();
    let leader = scene.lead(&work).await;
    let mut others = Vec::new();
    let outcome = scene
        .drop_after(scene.call(0, &work), |step| match step {
            1 => others.extend([0, 1, 2].map(|number| scene.spawn(number, &work))),
            12 => work.let_go(5),
            _ => {}
        })
        .await;
    work.let_go(5);
    ended(leader).await.unwrap_err();
    // All who waited for the run that failed run at once, and who came after that shares.
    let answers = answers(others).await;
    assert!(work.runs() <= 5 && answers.iter().all(|run| (2..=5).contains(run)), "{answers:?}");
    work.is_over().await;
    outcome.is_some_and(|outcome| outcome.is_ok())
}

async fn who_takes_over_elsewhere(scene: Scene<'_>) -> bool {
    let work = Work::shut();
    let leader = scene.lead(&work).await;
    let (mut others, mut is_aborted) = (Vec::new(), false);
    let outcome = scene
        .drop_after(scene.call(1, &work), |step| {
            if others.is_empty() && scene.are_waiting(1, step) {
                others.extend([1, 2].map(|number| scene.spawn(number, &work)));
            } else if !is_aborted && !others.is_empty() && scene.are_waiting(2, step.saturating_sub(12)) {
                leader.abort();
                work.let_go(3);
                is_aborted = true;
            }
        })
        .await;
    leader.abort();
    work.let_go(3);
    let answers = answers(others).await;
    assert!(work.runs() <= 3 && answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    work.is_over().await;
    outcome.is_some_and(|outcome| outcome.is_ok())
}
