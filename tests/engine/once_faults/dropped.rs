//! Every caller may go away at any time, whatever its part is: the others get an answer, and no lock or place in a queue
//! is left behind.

use std::collections::BTreeSet;
use std::task::Poll;

use tokio::task::{JoinHandle, yield_now};
use tokio_test::task;

use super::{Flight, Outcome, Place, Work, asked, begin, call, ended, lead};

/// Who goes away, and who is there besides.
struct Play {
    what: &'static str,
    /// Whether another leads, in the first process, and whether it goes away later.
    is_led: bool,
    is_left: bool,
    /// The process of the one who goes away, and those of callers that come later.
    process: usize,
    others: &'static [usize],
    /// Whether the first run fails.
    fails: bool,
    /// There are so many runs at most.
    runs: u64,
}

const ALONE: Play = Play {
    what: "leads alone",
    is_led: false,
    is_left: false,
    process: 0,
    others: &[],
    fails: false,
    runs: 1,
};

const PLAYS: [Play; 7] = [
    ALONE,
    // Those in its process go on with its run. The rest of what it was to do is theirs.
    Play { what: "leads", others: &[0, 1, 2], runs: 2, ..ALONE },
    // The first run fails for its caller alone, and those who waited for it run at once.
    Play { what: "fails", others: &[0, 1, 2], fails: true, runs: 4, ..ALONE },
    Play { what: "follows here", is_led: true, ..ALONE },
    Play { what: "follows elsewhere", is_led: true, process: 1, ..ALONE },
    Play { what: "runs after a failure", is_led: true, others: &[0, 1, 2], fails: true, runs: 5, ..ALONE },
    Play { what: "takes over", is_led: true, is_left: true, process: 1, others: &[1, 2], runs: 3, ..ALONE },
];

// On one thread each step is one of the scheduler's.
#[tokio::test]
async fn who_goes_away_in_memory_holds_up_nobody() {
    for play in &PLAYS {
        play.at_each_step(&Place::in_memory(3)).await;
    }
}

#[tokio::test]
async fn who_goes_away_on_redis_holds_up_nobody() {
    let place = Place::redis(3).await;
    for play in &PLAYS {
        play.at_each_step(&place).await;
    }
}

impl Play {
    /// For 0, 1, 2, … steps: one goes away after so many, until it has got its answer by then.
    async fn at_each_step(&self, place: &Place) {
        let (flights, mut steps, mut played) = (place.flights(), 0, 0);
        loop {
            let key = &*format!("{} {steps}", self.what);
            let is_done = self.play(place, &flights, key, steps).await;
            place.free(key).await;
            // Whoever comes next gets an answer, everywhere.
            let work = Work::open();
            for flight in &flights {
                asked(flight, key, &work).await.unwrap();
            }
            assert!(work.runs() <= 1, "{key}: nothing was shared");
            place.free(key).await;
            played += 1;
            if is_done {
                break;
            }
            // Where it is Redis that takes long there are many steps alike.
            steps += 1 + steps / 12;
        }
        println!("{}: dropped at {played} points, up to step {steps}", self.what);
        place.leaves_nothing();
    }

    /// Whether it got its answer within these steps.
    async fn play(&self, place: &Place, flights: &[Flight], key: &str, steps: usize) -> bool {
        let work = if self.fails { Work::failing() } else { Work::shut() };
        let mut leader = None;
        if self.is_led {
            leader = Some(lead(&flights[0], key, &work).await);
        }
        // Each other process has a place in the queue.
        let elsewhere = self.others.iter().chain([&self.process]).filter(|process| **process > 0);
        let in_line = elsewhere.collect::<BTreeSet<_>>().len() as u64;
        let happens = |leader: &Option<JoinHandle<_>>| {
            leader.iter().filter(|_| self.is_left).for_each(JoinHandle::abort);
            work.let_go(8);
        };
        let (mut others, mut outcome, mut has_happened) = (Vec::new(), None, false);
        let mut caller = task::spawn(call(&flights[self.process], key, &work));
        for step in 0..steps {
            if (step == 0 || caller.is_woken())
                && let Poll::Ready(ready) = caller.poll()
            {
                outcome = Some(ready);
                break;
            }
            if step == 2 {
                others.extend(self.others.iter().map(|other| begin(&flights[*other], key, &work)));
            }
            let are_in_line = || place.waiting(key).map_or(step >= 20, |waiting| waiting >= in_line);
            if !has_happened && step > 2 && are_in_line() {
                happens(&leader);
                has_happened = true;
            }
            yield_now().await;
        }
        drop(caller);
        if !has_happened {
            if let Some(leader) = leader.as_ref().filter(|_| others.is_empty()) {
                // It is out of the queue while the leader is still at it.
                place.lined_up(key, 0).await;
                assert!(!leader.is_finished());
            }
            happens(&leader);
        }
        let is_done = outcome.is_some();
        let mut outcomes: Vec<Outcome> = outcome.into_iter().collect();
        others.extend(leader.filter(|_| !self.is_left));
        for other in others {
            outcomes.push(ended(other).await);
        }
        work.is_over().await;
        self.judge(key, outcomes, work.runs());
        is_done
    }

    fn judge(&self, key: &str, outcomes: Vec<Outcome>, runs: u64) {
        if self.is_led && !self.is_left {
            // That of who leads.
            assert_eq!(outcomes.last().unwrap().is_err(), self.fails, "{key}: {outcomes:?}");
        }
        let (answers, failures): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        let answers: BTreeSet<_> = answers.into_iter().map(Result::unwrap).collect();
        assert!(failures.len() <= usize::from(self.fails), "{key}: {failures:?}");
        assert!(runs <= self.runs, "{key}: {runs} runs");
        if self.fails {
            assert!(answers.iter().all(|run| (2..=self.runs).contains(run)), "{key}: {answers:?}");
        } else {
            assert!(answers.len() <= 1, "{key}: {answers:?}");
        }
    }
}
