//! Round by round: each service under wrk, and the shares that come from that.

use crate::common::Bench;
use crate::common::report::{Better, Versus, note, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::served::{self, Running, Sample};
use crate::services::Service;
use crate::wrk::{self, CONNECTIONS};

/// The name of a figure, the service, and the service that it is a share of.
const SHARES: [(&str, Service, Service); 4] = [
    ("stack-share-of-bare", Service::FiveLayers, Service::Bare),
    ("stack-redis-share-of-bare", Service::Redis, Service::Bare),
    (
        "stack-redis-prefetch-share-of-bare",
        Service::RedisPrefetch,
        Service::Bare,
    ),
    (
        "stack-redis-prefetch-share-of-same-fields",
        Service::RedisPrefetch,
        Service::BareWithFields,
    ),
];
pub fn run(bench: &Bench) -> Result<(), String> {
    let wanted = |service: &Service| match bench.settings.only() {
        Some(part) => service.title().contains(part),
        None if bench.settings.wants("table") => true,
        None => SHARES.iter().any(|(name, layered, alone)| {
            bench.settings.wants(name) && [layered, alone].contains(&service)
        }),
    };
    let services: Vec<_> = Service::ALL
        .into_iter()
        .enumerate()
        .filter(|(_, service)| wanted(service))
        .collect();
    if services.is_empty() {
        return Ok(());
    }
    if !wrk::is_there()? {
        note(
            "no shares of a bare handler: wrk is not on the PATH (on Debian, it is in the package `wrk`)",
        );
        return Ok(());
    }
    let services = services
        .into_iter()
        .map(|(role, service)| (role, service.title().to_owned(), service));
    print(bench, &served::rounds(bench, services)?);
    Ok(())
}

fn print(bench: &Bench, services: &[Running<Service>]) {
    let mut table = Table::new(
        format!("GET of a document, {CONNECTIONS} connections of wrk on the same machine"),
        [
            "service",
            "requests/s",
            "p50 ms",
            "p99 ms",
            "CPU µs of the service per request",
        ],
    );
    for running in services {
        let of = |read: fn(&Sample) -> f64| number(median(running.samples.iter().map(read)));
        table.row([
            running.title.clone(),
            number(
                median(
                    running
                        .samples
                        .iter()
                        .map(|sample| sample.report.per_second),
                )
                .round(),
            ),
            of(|sample| sample.report.p50),
            of(|sample| sample.report.p99),
            of(|sample| sample.cpu),
        ]);
    }
    table.print();
    if bench.settings.only().is_some() {
        return;
    }
    let samples = |service| served::samples(services, &service);
    let rate = |sample: &Sample| sample.report.per_second;
    for (name, service, alone) in SHARES
        .into_iter()
        .filter(|(name, ..)| bench.settings.wants(name))
    {
        let (layered, bare) = (samples(service), samples(alone));
        let ratios = layered
            .iter()
            .zip(bare)
            .map(|(layered, bare)| rate(layered) / rate(bare));
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
