//! Services of axum under wrk: each is a process of its own, and all take turns within each round.

use std::net::Ipv4Addr;
use std::process::{self, ExitCode};
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;

use crate::child::{self, Child, tell};
use crate::common::{self, Bench};
use crate::cpu::nanos_by_thread;
use crate::wrk::{self, CONNECTIONS, Report, handled};

/// Where a service tells how many requests its handler has had.
pub const RUNS: &str = "/runs";
const WARM_UP: Duration = Duration::from_secs(1);

/// A service's process, and what each round gave.
pub struct Running<S> {
    pub service: S,
    pub title: String,
    pub samples: Vec<Sample>,
    /// Serves while it lives.
    _process: Child,
    id: u32,
    port: u16,
}

pub struct Sample {
    pub report: Report,
    /// Time on a CPU of the service per request, in µs.
    pub cpu: f64,
    /// That of redis-server.
    pub redis: f64,
}

/// Serves until the process is killed. Tells its port and its process id.
pub fn serve(app: impl Future<Output = Router>) -> ExitCode {
    common::runtime().unwrap().block_on(async {
        let app = app.await;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        child::wait_for_the_others();
        tell(&[u32::from(port), process::id()]);
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        axum::serve(listener, app).await.unwrap();
    });
    ExitCode::SUCCESS
}

/// Measures services round by round, of which each has a role, a title and what it is.
pub fn rounds<S>(
    bench: &Bench,
    services: impl IntoIterator<Item = (usize, String, S)>,
) -> Result<Vec<Running<S>>, String> {
    let redis: String = bench.server.query(&["INFO", "server"]);
    let redis = redis
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"))
        .unwrap()
        .trim()
        .to_owned();
    bench.server.empty();
    let start = |(role, title, service)| start(role, title, service, &bench.server.url);
    let mut services: Vec<_> = services.into_iter().map(start).collect();
    for running in &services {
        running.measure(WARM_UP, "warm", &redis)?;
    }
    for round in 0..bench.settings.rounds {
        // Who begins changes, so that nobody always follows the same neighbour.
        let count = services.len();
        for turn in 0..count {
            bench.server.empty();
            let running = &mut services[(turn + round) % count];
            let sample = running.measure(bench.settings.length, &format!("{round}-"), &redis)?;
            running.samples.push(sample);
        }
        eprintln!("round {} of {} done", round + 1, bench.settings.rounds);
    }
    Ok(services)
}

fn start<S>(role: usize, title: String, service: S, url: &str) -> Running<S> {
    let mut process = child::start(1, &role.to_string(), url).remove(0);
    let told: Vec<u32> = process.numbers();
    let port = u16::try_from(told[0]).unwrap();
    Running {
        service,
        title,
        samples: Vec::new(),
        _process: process,
        id: told[1],
        port,
    }
}

impl<S> Running<S> {
    /// One run of wrk. Fails unless the handler has run once for each request.
    fn measure(&self, length: Duration, ids: &str, redis: &str) -> Result<Sample, String> {
        let cpu = || {
            [&self.id.to_string(), redis]
                .map(|process| nanos_by_thread(process).into_values().sum::<u64>())
        };
        let (runs_before, before) = (handled(self.port, RUNS)?, cpu());
        let title = &self.title;
        let report =
            wrk::run(self.port, length, ids).map_err(|error| format!("{title}: {error}"))?;
        let (runs, after) = (handled(self.port, RUNS)? - runs_before, cpu());
        let requests = report.requests;
        // wrk goes away from requests that are under way when its time is over.
        if !(requests..=requests + CONNECTIONS).contains(&runs) {
            return Err(format!(
                "{title}: {requests} responses, but the handler has had {runs} requests"
            ));
        }
        let each = |which: usize| (after[which] - before[which]) as f64 / 1000.0 / requests as f64;
        Ok(Sample {
            cpu: each(0),
            redis: each(1),
            report,
        })
    }
}

/// The samples of one service; none if it did not run.
pub fn samples<'a, S: PartialEq>(services: &'a [Running<S>], service: &S) -> &'a [Sample] {
    let of = |running: &&Running<S>| running.service == *service;
    services
        .iter()
        .find(of)
        .map(|running| &running.samples[..])
        .unwrap_or_default()
}
