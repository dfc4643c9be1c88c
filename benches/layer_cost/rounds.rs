//! Round by round: each service under wrk, and what it takes above the bare handler.

use crate::common::Bench;
use crate::common::report::{Better, Versus, figure, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::served::{self, Running, Sample};
use crate::services::Job::{
    self, Dedupe, Empty, Five, FiveEmpty, Flight, Mutex, Permit, Rate, RwLock,
};
use crate::services::Service;
use crate::wrk::{self, CONNECTIONS};

const AGAINST_HAND: [Job; 5] = [Rate, Permit, Mutex, Dedupe, Flight];
const IN_MEMORY: [Job; 8] = [
    Permit, Mutex, RwLock, Dedupe, Flight, Five, Empty, FiveEmpty,
];
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
    let services: Vec<_> = Service::ALL
        .into_iter()
        .enumerate()
        .filter(|(_, service)| wanted(service))
        .collect();
    if services.len() < 2 && settings.only().is_none() {
        return Ok(());
    }
    if !wrk::is_there()? {
        note("no cost of layers: wrk is not on the PATH (on Debian, it is in the package `wrk`)");
        return Ok(());
    }
    let services = services
        .into_iter()
        .map(|(role, service)| (role, service.title(), service));
    print(bench, &served::rounds(bench, services)?);
    Ok(())
}

fn print(bench: &Bench, services: &[Running<Service>]) {
    let mut table = Table::new(
        format!("GET of a document, {CONNECTIONS} connections of wrk on the same machine"),
        [
            "service",
            "requests/s",
            "CPU µs of the service per request",
            "CPU µs of redis-server per request",
        ],
    );
    for running in services {
        let of = |read: fn(&Sample) -> f64| number(median(running.samples.iter().map(read)));
        table.row([
            running.title.clone(),
            of(|sample| sample.report.per_second.round()),
            of(|sample| sample.cpu),
            of(|sample| sample.redis),
        ]);
    }
    table.print();
    if bench.settings.only().is_some() {
        return;
    }
    let samples = |service| served::samples(services, &service);
    let bare = samples(Service::Bare);
    // Above the bare handler in the same round.
    let above = |service| -> Vec<f64> {
        samples(service)
            .iter()
            .zip(bare)
            .map(|(sample, bare)| sample.cpu - bare.cpu)
            .collect()
    };
    let redis =
        |service| -> Vec<f64> { samples(service).iter().map(|sample| sample.redis).collect() };
    for job in AGAINST_HAND {
        let (ours, theirs) = (Service::Redis(job), Service::Hand(job));
        let parts: [(_, _, &dyn Fn(Service) -> Vec<f64>); 2] = [
            (
                "service",
                "CPU µs of the service per request, above the bare handler",
                &above,
            ),
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
            Versus {
                name: &name,
                measures,
                ours,
                peer: "by hand",
                theirs,
                ratio,
                better: Better::Lower,
            }
            .tell();
        }
    }
    for job in IN_MEMORY {
        let above = above(Service::Memory(job));
        let name = format!("memory-us-{}", job.name());
        if !above.is_empty() && bench.settings.wants(&name) {
            figure(
                &name,
                "CPU µs of the service per request, above the bare handler",
                median(above),
            );
        }
    }
}
