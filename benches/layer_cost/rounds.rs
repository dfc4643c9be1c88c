//! Round by round: each service under wrk, and what it takes above the bare handler.

use std::time::Duration;

use crate::child::{self, Child};
use crate::common::Bench;
use crate::common::report::{Better, Versus, figure, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::cpu::nanos_by_thread;
use crate::services::Job::{self, Dedupe, Five, Flight, Mutex, Permit, Rate, RwLock};
use crate::services::{RUNS, Service};
use crate::wrk::{self, CONNECTIONS, handled};

const AGAINST_HAND: [Job; 5] = [Rate, Permit, Mutex, Dedupe, Flight];
const IN_MEMORY: [Job; 6] = [Permit, Mutex, RwLock, Dedupe, Flight, Five];
const WARM_UP: Duration = Duration::from_secs(1);

/// A service's process, and what each round gave.
struct Running {
    service: Service,
    /// Serves while it lives.
    _process: Child,
    id: u32,
    port: u16,
    samples: Vec<Sample>,
}

/// Time on a CPU per request, in µs.
#[derive(Clone, Copy)]
struct Sample {
    service: f64,
    redis: f64,
    per_second: f64,
}

pub fn run(bench: &Bench) -> Result<(), String> {
    let settings = &bench.settings;
    let wants = |part: &str, job: Job| settings.wants(&format!("{part}-{}", job.name()));
    let hand = |job| {
        AGAINST_HAND.contains(&job)
            && (wants("layer-service-us-vs-hand", job) || wants("layer-redis-us-vs-hand", job))
    };
    let wanted = |service: &Service| match (settings.only(), service) {
        (Some(part), _) => service.title().contains(part),
        (None, Service::Bare) => true,
        (None, Service::Memory(job)) => wants("memory-us", *job),
        (None, Service::Redis(job) | Service::Hand(job)) => hand(*job),
    };
    let services: Vec<_> = Service::ALL.into_iter().filter(wanted).collect();
    if services.len() < 2 && settings.only().is_none() {
        return Ok(());
    }
    if !wrk::is_there()? {
        note("no cost of layers: wrk is not on the PATH (on Debian, it is in the package `wrk`)");
        return Ok(());
    }
    let redis: String = bench.server.query(&["INFO", "server"]);
    let redis = redis.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().to_owned();
    let mut services: Vec<_> =
        services.into_iter().map(|service| start(service, &bench.server.url)).collect();
    for running in &services {
        measure(running, WARM_UP, "warm", &redis)?;
    }
    for round in 0..settings.rounds {
        // Who begins changes, so that nobody always follows the same neighbour.
        let count = services.len();
        for turn in 0..count {
            bench.server.empty();
            let running = &mut services[(turn + round) % count];
            let sample = measure(running, settings.length, &format!("{round}-"), &redis)?;
            running.samples.push(sample);
        }
        eprintln!("round {} of {} done", round + 1, settings.rounds);
    }
    print(bench, &services);
    Ok(())
}

fn start(service: Service, url: &str) -> Running {
    let role = Service::ALL.iter().position(|other| *other == service).unwrap();
    let mut process = child::start(1, &role.to_string(), url).remove(0);
    let told: Vec<u32> = process.numbers();
    let port = u16::try_from(told[0]).unwrap();
    Running { service, _process: process, id: told[1], port, samples: Vec::new() }
}

/// One run of wrk. Fails unless the handler has run once for each request.
fn measure(running: &Running, length: Duration, ids: &str, redis: &str) -> Result<Sample, String> {
    let cpu = || {
        [running.id.to_string(), redis.to_owned()]
            .map(|process| nanos_by_thread(process).into_values().sum::<u64>())
    };
    let (runs_before, before) = (handled(running.port, RUNS)?, cpu());
    let title = running.service.title();
    let report = wrk::run(running.port, length, ids).map_err(|error| format!("{title}: {error}"))?;
    let (runs, after) = (handled(running.port, RUNS)? - runs_before, cpu());
    // wrk goes away from requests that are under way when its time is over.
    if !(report.requests..=report.requests + CONNECTIONS).contains(&runs) {
        let requests = report.requests;
        return Err(format!("{title}: {requests} responses, but the handler has had {runs} requests"));
    }
    let each = |which: usize| (after[which] - before[which]) as f64 / 1000.0 / report.requests as f64;
    Ok(Sample { service: each(0), redis: each(1), per_second: report.per_second })
}

fn print(bench: &Bench, services: &[Running]) {
    let mut table = Table::new(
        format!("GET of a document, {CONNECTIONS} connections of wrk on the same machine"),
        ["service", "requests/s", "CPU µs of the service per request", "CPU µs of redis-server per request"],
    );
    for running in services {
        let of = |read: fn(&Sample) -> f64| number(median(running.samples.iter().map(read)));
        table.row([
            running.service.title(),
            of(|sample| sample.per_second.round()),
            of(|sample| sample.service),
            of(|sample| sample.redis),
        ]);
    }
    table.print();
    if bench.settings.only().is_some() {
        return;
    }
    let samples = |service| {
        let of = |running: &&Running| running.service == service;
        services.iter().find(of).map(|running| &running.samples[..]).unwrap_or_default()
    };
    let bare = samples(Service::Bare);
    // Above the bare handler in the same round.
    let above = |service| -> Vec<f64> {
        samples(service).iter().zip(bare).map(|(sample, bare)| sample.service - bare.service).collect()
    };
    let redis = |service| -> Vec<f64> { samples(service).iter().map(|sample| sample.redis).collect() };
    for job in AGAINST_HAND {
        let (ours, theirs) = (Service::Redis(job), Service::Hand(job));
        let parts: [(_, _, &dyn Fn(Service) -> Vec<f64>); 2] = [
            ("service", "CPU µs of the service per request, above the bare handler", &above),
            ("redis", "CPU µs of redis-server per request", &redis),
        ];
        for (part, measures, read) in parts {
            let name = format!("layer-{part}-us-vs-hand-{}", job.name());
            let (ours, theirs) = (read(ours), read(theirs));
            if ours.is_empty() || !bench.settings.wants(&name) {
                continue;
            }
            let ratio = median(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs));
            let (ours, theirs) = (median(ours), median(theirs));
            Versus { name: &name, measures, ours, peer: "by hand", theirs, ratio, better: Better::Lower }
                .tell();
        }
    }
    for job in IN_MEMORY {
        let above = above(Service::Memory(job));
        let name = format!("memory-us-{}", job.name());
        if !above.is_empty() && bench.settings.wants(&name) {
            figure(&name, "CPU µs of the service per request, above the bare handler", median(above));
        }
    }
}
