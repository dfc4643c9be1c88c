//! A backend whose capacity halves and doubles, behind eight processes with eight callers each: limits that adapt, beside fixed
//! ones and beside limiters of each process by itself.
//!
//! Latencies are those of the backend. Goodput is what it has answered. Callers wait for their permits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};
use tower_distributed::wait_group::{Adaptive, Signal};
use tower_distributed::{ConcurrencyLimitLayer, Store, WaitGroup};

use crate::common::Bench;
use crate::common::report::{Better, Versus, figure, note};

const PROCESSES: usize = 8;
const CALLERS: usize = 8;
const CAPACITY: usize = 16;
const SERVICE: Duration = Duration::from_millis(10);
const WINDOW: Duration = Duration::from_millis(50);
const PHASES: u32 = 8;
const STATIC: [u32; 5] = [8, 12, 16, 20, 24];
const FAR: Duration = Duration::from_secs(60);

const GOODPUT: &str = "adaptive-goodput-vs-best-static";
const P99: &str = "adaptive-p99-vs-best-static";
const SAME: &str = "adaptive-vs-same-algorithm-local-p99";
const LOCAL: &str = "adaptive-vs-local-gradient-p99";

/// What a process limits its requests by.
enum Limit {
    Permits(WaitGroup, Option<Adaptive<Classify>>),
    Local(Arc<Gradient2>),
}

type Classify = fn(&Result<(), Infallible>) -> Signal;

/// Answers per second, and the 99th percentile of their latencies in ms.
#[derive(Clone, Copy)]
struct Measured {
    goodput: f64,
    p99: f64,
}

pub fn run(bench: &Bench) {
    if ![GOODPUT, P99, SAME, LOCAL]
        .iter()
        .any(|name| bench.settings.wants(name))
    {
        return;
    }
    let phase = bench.settings.length * 2;
    let measure = |limit: &dyn Fn(&str) -> Limit| bench.runtime.block_on(measured(limit, phase));
    let on_redis = || Store::builder().redis(&bench.server.url).unwrap();
    let adaptive = || {
        let success: Classify = |_| Signal::Success;
        Some(Adaptive::gradient().window(WINDOW).classify(success))
    };
    let fixed = STATIC.map(|limit| {
        (
            limit,
            measure(&|name| {
                Limit::Permits(WaitGroup::new(&on_redis(), name, limit).unwrap(), None)
            }),
        )
    });
    let most = fixed
        .iter()
        .map(|(_, measured)| measured.goodput)
        .fold(0.0, f64::max);
    let good = fixed
        .iter()
        .filter(|(_, measured)| measured.goodput >= 0.98 * most);
    let (limit, best) = good
        .min_by(|one, other| one.1.p99.total_cmp(&other.1.p99))
        .unwrap();
    let start = CAPACITY as u32;
    let ours = measure(&|name| {
        Limit::Permits(
            WaitGroup::new(&on_redis(), name, start).unwrap(),
            adaptive(),
        )
    });
    let each = start / PROCESSES as u32;
    let same = measure(&|name| {
        Limit::Permits(
            WaitGroup::new(&Store::in_memory(), name, each).unwrap(),
            adaptive(),
        )
    });
    let local = measure(&|_| Limit::Local(Arc::new(Gradient2::new(each.into()))));
    note(format!(
        "The best of the fixed limits {STATIC:?} is {limit}: the shortest p99 with 98 % of the goodput."
    ));
    let versus = |name, measures, (ours, theirs): (f64, f64), peer, better| {
        Versus {
            name,
            measures,
            ours,
            peer,
            theirs,
            ratio: ours / theirs,
            better,
        }
        .tell();
    };
    versus(
        GOODPUT,
        "answers/s",
        (ours.goodput, best.goodput),
        "best fixed limit",
        Better::Higher,
    );
    let p99 = "latency of the backend, p99, ms";
    versus(
        P99,
        p99,
        (ours.p99, best.p99),
        "best fixed limit",
        Better::Lower,
    );
    versus(
        SAME,
        p99,
        (ours.p99, same.p99),
        "the same, each process by itself",
        Better::Lower,
    );
    versus(
        LOCAL,
        p99,
        (ours.p99, local.p99),
        "Gradient2, each process by itself",
        Better::Lower,
    );
    figure(
        "adaptive-goodput-vs-local-gradient",
        "answers/s, ratio",
        ours.goodput / local.goodput,
    );
}

/// Serves so many requests at once, in the order of arrival.
struct Backend {
    capacity: AtomicUsize,
    busy: Mutex<(usize, VecDeque<oneshot::Sender<()>>)>,
    latencies: Mutex<Vec<Duration>>,
}

impl Backend {
    async fn call(&self) -> Duration {
        let began = Instant::now();
        let turn = {
            let mut busy = self.busy.lock().unwrap();
            let (sender, turn) = oneshot::channel();
            busy.1.push_back(sender);
            self.serve(&mut busy);
            turn
        };
        turn.await.unwrap();
        // A shifted exponential distribution, of mean 1.
        let varies = 0.7 - 0.3 * rand::random::<f64>().max(1e-9).ln();
        tokio::time::sleep(SERVICE.mul_f64(varies)).await;
        let mut busy = self.busy.lock().unwrap();
        busy.0 -= 1;
        self.serve(&mut busy);
        drop(busy);
        let latency = began.elapsed();
        self.latencies.lock().unwrap().push(latency);
        latency
    }

    fn serve(&self, (busy, queue): &mut (usize, VecDeque<oneshot::Sender<()>>)) {
        while *busy < self.capacity.load(Ordering::Relaxed)
            && let Some(next) = queue.pop_front()
        {
            *busy += usize::from(next.send(()).is_ok());
        }
    }
}

async fn measured(limit: &dyn Fn(&str) -> Limit, phase: Duration) -> Measured {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let (capacity, busy) = (AtomicUsize::new(CAPACITY), Mutex::default());
    let backend = Arc::new(Backend {
        capacity,
        busy,
        latencies: Mutex::default(),
    });
    let callers: Vec<_> = (0..PROCESSES)
        .flat_map(|_| {
            let call = caller(limit(&name), &backend);
            (0..CALLERS).map(move |_| call()).collect::<Vec<_>>()
        })
        .collect();
    // The first two phases are not measured.
    let mut began = Instant::now();
    for nth in 0..PHASES + 2 {
        if nth == 2 {
            backend.latencies.lock().unwrap().clear();
            began = Instant::now();
        }
        backend
            .capacity
            .store(CAPACITY >> (nth % 2), Ordering::Relaxed);
        tokio::time::sleep(phase).await;
    }
    let (span, mut latencies) = (
        began.elapsed(),
        std::mem::take(&mut *backend.latencies.lock().unwrap()),
    );
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100].as_secs_f64() * 1000.0;
    Measured {
        goodput: latencies.len() as f64 / span.as_secs_f64(),
        p99,
    }
}

/// Returns what begins a caller of a process.
fn caller(
    limit: Limit,
    backend: &Arc<Backend>,
) -> impl Fn() -> tokio::task::JoinHandle<()> + use<> {
    let backend = Arc::clone(backend);
    let inner = {
        let backend = Arc::clone(&backend);
        service_fn(move |()| {
            let backend = Arc::clone(&backend);
            async move {
                backend.call().await;
                Ok::<_, Infallible>(())
            }
        })
    };
    let service = match &limit {
        Limit::Local(_) => None,
        Limit::Permits(group, adaptive) => {
            let layer = ConcurrencyLimitLayer::new(group.clone(), |_: &()| "backend").max_wait(FAR);
            Some(match adaptive {
                Some(adaptive) => layer
                    .adaptive(*adaptive)
                    .unwrap()
                    .layer(inner)
                    .boxed_clone(),
                None => layer.layer(inner).boxed_clone(),
            })
        }
    };
    move || {
        let (service, backend) = (service.clone(), Arc::clone(&backend));
        let local = match &limit {
            Limit::Local(local) => Some(Arc::clone(local)),
            Limit::Permits(..) => None,
        };
        tokio::spawn(async move {
            loop {
                match (&local, &service) {
                    (Some(local), _) => local.call(&backend).await,
                    (None, Some(service)) => {
                        drop::<Result<(), BoxError>>(service.clone().oneshot(()).await)
                    }
                    (None, None) => return,
                }
            }
        })
    }
}

/// A limiter of one process, by the algorithm of `Gradient2Limit` in Netflix's concurrency-limits with its defaults (queue 4,
/// smoothing 0.2, mean of 600 windows after 10), and the windows of the other contestants.
struct Gradient2 {
    state: Mutex<State>,
    freed: Notify,
}

struct State {
    limit: f64,
    long: f64,
    windows: f64,
    in_flight: u32,
    peak: u32,
    sum: f64,
    samples: f64,
    began: Instant,
}

impl Gradient2 {
    fn new(limit: f64) -> Self {
        let (long, windows, sum, samples) = (0.0, 0.0, 0.0, 0.0);
        let began = Instant::now();
        let state = State {
            limit,
            long,
            windows,
            in_flight: 0,
            peak: 0,
            sum,
            samples,
            began,
        };
        Self {
            state: Mutex::new(state),
            freed: Notify::new(),
        }
    }

    async fn call(&self, backend: &Backend) {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock().unwrap();
                if state.in_flight < state.limit as u32 {
                    state.in_flight += 1;
                    state.peak = state.peak.max(state.in_flight);
                    break;
                }
            }
            freed.await;
        }
        let latency = backend.call().await;
        let mut state = self.state.lock().unwrap();
        state.in_flight -= 1;
        state.sum += latency.as_secs_f64();
        state.samples += 1.0;
        if state.began.elapsed() >= WINDOW && state.samples >= 10.0 {
            state.adjust();
        }
        let free = (state.limit as u32).saturating_sub(state.in_flight);
        drop(state);
        (0..free).for_each(|_| self.freed.notify_one());
    }
}

impl State {
    fn adjust(&mut self) {
        let short = self.sum / self.samples;
        self.windows += 1.0;
        let weight = if self.windows <= 10.0 {
            1.0 / self.windows
        } else {
            2.0 / 601.0
        };
        self.long += (short - self.long) * weight;
        if self.long > 2.0 * short {
            self.long *= 0.9;
        }
        if f64::from(self.peak) >= self.limit / 2.0 {
            let target = self.limit * (self.long / short).clamp(0.5, 1.0) + 4.0;
            self.limit = (self.limit * 0.8 + target * 0.2).max(1.0);
        }
        (self.sum, self.samples, self.peak, self.began) =
            (0.0, 0.0, self.in_flight, Instant::now());
    }
}
