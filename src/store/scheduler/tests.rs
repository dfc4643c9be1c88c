//! Tasks get their signals when they are due, on the runtime whose clock applies.

use std::time::Duration;

use support::eventually_blocking;
use tokio::time::sleep;

use super::*;

const SPAN: Duration = Duration::from_secs(10);

/// A task that is due once, and records its signals.
#[derive(Default)]
struct Noted {
    due: Mutex<Option<Instant>>,
    signals: Mutex<Vec<(Signal, Instant)>>,
}

impl PeriodicTask for Noted {
    fn due(&self) -> Option<Instant> {
        *lock(&self.due)
    }

    fn signal(self: Arc<Self>, signal: Signal) {
        *lock(&self.due) = None;
        lock(&self.signals).push((signal, Instant::now()));
    }
}

impl Noted {
    fn due_at(scheduler: &Scheduler, due: Option<Instant>) -> Arc<Self> {
        let task = Arc::new(Self {
            due: Mutex::new(due),
            ..Self::default()
        });
        scheduler.join(&task);
        task
    }

    fn signals(&self) -> Vec<(Signal, Instant)> {
        lock(&self.signals).clone()
    }

    fn kinds(&self) -> Vec<Signal> {
        self.signals()
            .into_iter()
            .map(|(signal, _)| signal)
            .collect()
    }
}

/// A scheduler, and the channel that reports whether pushes arrive.
fn scheduler(follows_paused: bool) -> (Arc<Scheduler>, watch::Sender<Link>) {
    let link = watch::Sender::new(Link::Down);
    (
        Scheduler::new(link.subscribe(), Background::thread(), follows_paused),
        link,
    )
}

fn places(scheduler: &Scheduler) -> Vec<Option<Id>> {
    lock(&scheduler.state)
        .tasks
        .iter()
        .map(|running| running.runtime_id)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_task_gets_its_signal_when_it_is_due() {
    let (scheduler, _link) = scheduler(true);
    let began = Instant::now();
    let tasks = [2, 1].map(|nth| Noted::due_at(&scheduler, Some(began + nth * SPAN)));
    drop(Noted::due_at(&scheduler, Some(began)));
    let idle = Noted::due_at(&scheduler, None);
    assert_eq!(
        lock(&scheduler.state).joined.len(),
        3,
        "one that is gone is forgotten"
    );
    scheduler.schedule(began + 2 * SPAN);
    scheduler.schedule(began + SPAN);
    scheduler.schedule(began + 3 * SPAN);
    assert_eq!(places(&scheduler), [Some(Handle::current().id())]);
    sleep(SPAN + SPAN / 2).await;
    assert_eq!(places(&scheduler).len(), 1, "it goes on for the other task");
    sleep(SPAN).await;
    for (task, nth) in tasks.iter().zip([2, 1]) {
        assert_eq!(task.signals(), [(Signal::Due, began + nth * SPAN)]);
    }
    assert!(idle.signals().is_empty() && places(&scheduler).is_empty());
    *lock(&idle.due) = Some(began + 4 * SPAN);
    scheduler.schedule(began + 4 * SPAN);
    sleep(2 * SPAN).await;
    assert_eq!(
        idle.signals(),
        [(Signal::Due, began + 4 * SPAN)],
        "it starts again"
    );
}

#[tokio::test(start_paused = true)]
async fn news_of_the_store_reach_all_tasks() {
    let (scheduler, link) = scheduler(true);
    let began = Instant::now();
    let tasks = [1, 2].map(|nth| Noted::due_at(&scheduler, Some(began + nth * SPAN)));
    let kinds = || tasks.each_ref().map(|task| task.kinds());
    scheduler.schedule(began + SPAN);
    sleep(SPAN / 2).await;
    link.send_replace(Link::Up(1));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(kinds(), [[Signal::Relinked]; 2]);
    scheduler.hurry();
    scheduler.shut_down();
    assert_eq!(
        kinds(),
        [[Signal::Relinked, Signal::Hurry, Signal::ShutDown]; 2]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_link_was_before_is_no_news() {
    let (scheduler, link) = scheduler(true);
    link.send_replace(Link::Up(1));
    let due = Instant::now() + SPAN;
    let task = Noted::due_at(&scheduler, Some(due));
    scheduler.schedule(due);
    sleep(SPAN / 2).await;
    assert_eq!(
        task.signals(),
        [],
        "nothing has changed since it was scheduled"
    );
    // A change before the task of the scheduler first runs is reported.
    *lock(&task.due) = None;
    scheduler.look_again();
    sleep(Duration::from_millis(1)).await;
    *lock(&task.due) = Some(due);
    scheduler.schedule(due);
    link.send_replace(Link::Up(2));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(task.kinds(), [Signal::Relinked]);
}

#[tokio::test]
async fn it_runs_on_the_background_thread_but_for_a_paused_clock_that_it_follows() {
    let due = Instant::now() + 100 * SPAN;
    let runtime_id = |follows_paused| {
        let (scheduler, _) = scheduler(follows_paused);
        let _task = Noted::due_at(&scheduler, Some(due));
        scheduler.schedule(due);
        let places = places(&scheduler);
        assert_eq!(places.len(), 1);
        places[0]
    };
    assert_eq!([runtime_id(false), runtime_id(true)], [None, None]);
    tokio::time::pause();
    assert_eq!(
        [runtime_id(false), runtime_id(true)],
        [None, Some(Handle::current().id())]
    );
}

#[test]
fn the_background_thread_continues_the_work_of_a_runtime_that_ends() {
    let (scheduler, _link) = scheduler(true);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let task = runtime.block_on(async {
        let due = Instant::now() + Duration::from_millis(50);
        let task = Noted::due_at(&scheduler, Some(due));
        scheduler.schedule(due);
        task
    });
    drop(runtime);
    eventually_blocking("its time", Duration::from_secs(60), || {
        !task.signals().is_empty()
    });
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_its_store() {
    let store = crate::store::Store::in_memory();
    let scheduler = Arc::downgrade(store.scheduler());
    let due = Instant::now() + 100 * SPAN;
    let task = Noted::due_at(store.scheduler(), Some(due));
    store.scheduler().schedule(due);
    sleep(SPAN).await;
    drop((task, store));
    sleep(SPAN).await;
    assert_eq!(scheduler.strong_count(), 0);
}
