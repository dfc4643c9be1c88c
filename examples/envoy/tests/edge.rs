//! Two real Envoys, two services, a service behind them, and one Redis.

use std::fs;
use std::time::{Duration, Instant};

use futures::future::join_all;
use support::eventually;
use support::redis_server::RedisServer;

use crate::scene::{Envoy, LONG, Service, Setup};

const RATE: u32 = 20;

fn rules(rate: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - {{key: tenant, rate_limit: {{unit: second, requests_per_unit: {rate}}}}}\n"
    )
}

struct Edge {
    envoys: [Envoy; 2],
    services: [Service; 2],
    upstream: Service,
    setups: [Setup; 2],
    server: RedisServer,
}

/// `None`, after a word, where there is no Envoy.
async fn edge(policies: [&str; 2]) -> Option<Edge> {
    let program = Envoy::program()?;
    let server = RedisServer::start().await;
    let setup = |policy| {
        Setup::new(&rules(RATE))
            .on(&server.url())
            .with(&["--on-outage", policy, "--replicas", "2"])
    };
    let setups = policies.map(setup);
    let services = setups.each_ref().map(Service::start);
    let upstream = Service::upstream(&server.url());
    let both = || [&services[0], &services[1]];
    let envoys = [
        Envoy::start(&program, both(), &upstream).await,
        Envoy::start(&program, both(), &upstream).await,
    ];
    for envoy in &envoys {
        eventually("Envoy knows its services", LONG, async || {
            envoy.get("/", "x-tenant: warm-up\r\n").await.0 == 200
        })
        .await;
    }
    Some(Edge {
        envoys,
        services,
        upstream,
        setups,
        server,
    })
}

/// How many of a second's requests of a tenant are answered with 200, over both Envoys and the inside of the service, and
/// the most that the limit admits.
async fn admitted(edge: &Edge, tenant: &str) -> ([u32; 3], f64) {
    let began = Instant::now();
    let headers = format!("x-tenant: {tenant}\r\n");
    let count = async |way: usize| {
        let mut count = 0;
        while began.elapsed() < Duration::from_secs(1) {
            let (status, response) = match way {
                2 => edge.upstream.get("/internal", &headers).await,
                _ => edge.envoys[way].get("/", &headers).await,
            };
            assert!(matches!(status, 200 | 429), "{response}");
            count += u32::from(status == 200);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        count
    };
    let counts = join_all([count(0), count(1), count(2)]).await;
    let most = f64::from(RATE) * (1.0 + began.elapsed().as_secs_f64());
    (counts.try_into().unwrap(), most)
}

#[tokio::test]
async fn the_edge_and_the_service_share_a_limit() {
    let Some(edge) = edge(["fail-closed"; 2]).await else {
        return;
    };
    let (counts, most) = admitted(&edge, "acme").await;
    let sum: u32 = counts.iter().sum();
    assert!(
        f64::from(sum) <= most && sum >= RATE,
        "{counts:?}, at most {most}"
    );
    assert!(counts.iter().all(|&count| count > 0), "{counts:?}");
    let refused = edge.envoys[0]
        .get("/", "x-tenant: closed\r\nx-forwarded-for: 6.6.6.6\r\n")
        .await;
    assert_eq!(refused.0, 200, "each tenant has a limit of its own");
    assert!(
        refused.1.contains("x-ratelimit-limit: 20, 20;w=1"),
        "{}",
        refused.1
    );
    // Without the header field there is no descriptor.
    assert_eq!(edge.envoys[0].get("/", "").await.0, 200);

    // A rule that changes at one service holds at both Envoys, and behind them.
    fs::write(edge.setups[0].rules(), rules(0)).unwrap();
    let began = Instant::now();
    for envoy in &edge.envoys {
        for _ in 0..4 {
            eventually("the changed rule holds", LONG, async || {
                envoy.get("/", "x-tenant: later\r\n").await.0 == 429
            })
            .await;
        }
    }
    eventually("the changed rule holds behind them", LONG, async || {
        edge.upstream
            .get("/internal", "x-tenant: later\r\n")
            .await
            .0
            == 429
    })
    .await;
    println!(
        "figure rls-changed-rule-holds-ms {}",
        began.elapsed().as_millis()
    );
    fs::write(edge.setups[1].rules(), rules(RATE)).unwrap();
    eventually("the old rule holds again", LONG, async || {
        edge.envoys[0].get("/", "x-tenant: later\r\n").await.0 == 200
    })
    .await;
}

#[tokio::test]
async fn envoy_goes_to_the_other_service() {
    let Some(mut edge) = edge(["fail-closed"; 2]).await else {
        return;
    };
    edge.services[0].process.kill9();
    // Not one request fails, not even the first: it is sent again.
    for tenant in 0..50 {
        let headers = format!("x-tenant: {tenant}\r\n");
        let (status, response) = edge.envoys[tenant % 2].get("/", &headers).await;
        assert_eq!(status, 200, "{response}");
    }
}

#[tokio::test]
async fn an_outage_of_redis_is_decided_by_the_policy() {
    for (policy, expected) in [
        ("fail-closed", 503),
        ("fail-open", 200),
        ("local-share", 200),
    ] {
        let Some(edge) = edge([policy; 2]).await else {
            return;
        };
        edge.server.kill9();
        for (turn, envoy) in edge.envoys.iter().enumerate() {
            let (status, response) = envoy.get("/", &format!("x-tenant: out{turn}\r\n")).await;
            assert_eq!(status, expected, "{policy}: {response}");
        }
        if policy == "local-share" {
            let (mut statuses, mut refused) = (0, 0);
            while refused == 0 {
                let (status, response) = edge.envoys[0].get("/", "x-tenant: share\r\n").await;
                assert!(matches!(status, 200 | 429), "{response}");
                refused += u32::from(status == 429);
                statuses += 1;
            }
            assert!(statuses > 1, "the first ones are admitted");
        }
        edge.server.restart().await;
        eventually("Redis decides again", LONG, async || {
            edge.envoys[0].get("/", "x-tenant: back\r\n").await.0 == 200
        })
        .await;
    }
}
