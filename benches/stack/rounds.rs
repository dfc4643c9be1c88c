//! Round by round: each service under wrk, and the shares that come from that.

use std::time::Duration;

use crate::child::{self, Child};
use crate::common::Bench;
use crate::common::report::{Better, Versus, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::cpu::nanos_by_thread;
use crate::services::{RUNS, Service};
use crate::wrk::{self, CONNECTIONS, Report, handled};

/// The name of a figure, the service, and the service that it is a share of.
const SHARES: [(&str, Service, Service); 4] = [
    ("stack-share-of-bare", Service::FiveLayers, Service::Bare),
    ("stack-redis-share-of-bare", Service::Redis, Service::Bare),
    ("stack-redis-prefetch-share-of-bare", Service::RedisPrefetch, Service::Bare),
    ("stack-redis-prefetch-share-of-same-fields", Service::RedisPrefetch, Service::BareWithFields),
];
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

struct Sample {
    report: Report,
    /// Time on a CPU of the service per request, in µs.
    cpu: f64,
}

pub fn run(bench: &Bench) -> Result<(), String> {
    let wanted = |service: &Service| match bench.settings.only() {
        Some(part) => service.title().contains(part),
        None if bench.settings.wants("table") => true,
        None => SHARES
            .iter()
            .any(|(name, layered, alone)| bench.settings.wants(name) && [layered, alone].contains(&service)),
    };
    let services: Vec<_> = Service::ALL.into_iter().filter(wanted).collect();
    if services.is_empty() {
        return Ok(());
    }
    if !wrk::is_there()? {
        note("no shares of a bare handler: wrk is not on the PATH (on Debian, it is in the package `wrk`)");
        return Ok(());
    }
    bench.server.empty();
    let mut services: Vec<_> =
        services.into_iter().map(|service| start(service, &bench.server.url)).collect();
    for running in &mut services {
        measure(running, WARM_UP, "warm")?;
    }
    for round in 0..bench.settings.rounds {
        // Who begins changes, so that nobody always follows the same neighbour.
        let count = services.len();
        for turn in 0..count {
            let running = &mut services[(turn + round) % count];
            let sample = measure(running, bench.settings.length, &format!("{round}-"))?;
            running.samples.push(sample);
        }
        eprintln!("round {} of {} done", round + 1, bench.settings.rounds);
    }
    print(bench, &services);
    Ok(())
}

fn start(service: Service, url: &str) -> Running {
    let role = Service::ALL.iter().position(|other| *other == service).unwrap();
    let mut process = child::start(1, &role.to_string(), url).remove(0);
    let told: Vec<u32> = process.numbers();
    Running {
        service,
        _process: process,
        id: told[1],
        port: u16::try_from(told[0]).unwrap(),
        samples: Vec::new(),
    }
}

/// One run of wrk. Fails unless the handler has run once for each request.
fn measure(running: &Running, length: Duration, ids: &str) -> Result<Sample, String> {
    let cpu = || nanos_by_thread(running.id).into_values().sum::<u64>();
    let (runs_before, cpu_before) = (handled(running.port, RUNS)?, cpu());
    let report = wrk::run(running.port, length, ids)
        .map_err(|error| format!("{}: {error}", running.service.title()))?;
    let (runs, cpu) = (handled(running.port, RUNS)? - runs_before, cpu() - cpu_before);
    // wrk goes away from requests that are under way when its time is over.
    if !(report.requests..=report.requests + CONNECTIONS).contains(&runs) {
        let (title, requests) = (running.service.title(), report.requests);
        return Err(format!("{title}: {requests} responses, but the handler has had {runs} requests"));
    }
    Ok(Sample { cpu: cpu as f64 / 1000.0 / report.requests as f64, report })
}

fn print(bench: &Bench, services: &[Running]) {
    let mut table = Table::new(
        format!("GET of a document, {CONNECTIONS} connections of wrk on the same machine"),
        ["service", "requests/s", "p50 ms", "p99 ms", "CPU µs of the service per request"],
    );
    for running in services {
        let of = |read: fn(&Sample) -> f64| number(median(running.samples.iter().map(read)));
        table.row([
            running.service.title().to_owned(),
            number(median(running.samples.iter().map(|sample| sample.report.per_second)).round()),
            of(|sample| sample.report.p50),
            of(|sample| sample.report.p99),
            of(|sample| sample.cpu),
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
    let rate = |sample: &Sample| sample.report.per_second;
    for (name, service, alone) in SHARES.into_iter().filter(|(name, ..)| bench.settings.wants(name)) {
        let (layered, bare) = (samples(service), samples(alone));
        let ratios = layered.iter().zip(bare).map(|(layered, bare)| rate(layered) / rate(bare));
        Versus {
            name,
            measures: &format!("requests/s of axum: {}", service.title()),
            ours: median(layered.iter().map(rate)),
            peer: alone.title(),
            theirs: median(bare.iter().map(rate)),
            ratio: median(ratios),
            better: Better::Higher,
        }
        .tell();
    }
}
