//! Rules that change while the service runs.

use std::fs;
use std::process::Command;

use support::eventually;
use support::example::program_of;
use support::redis_server::RedisServer;

use crate::scene::{LONG, Service, Setup, request};

fn rules(limit: u32) -> String {
    format!(
        "domain: edge\ndescriptors:\n  - {{key: tenant, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n"
    )
}

/// The limit that applies to tenants, and the tokens that one has left. This takes a token.
async fn limit(service: &Service, tenant: &str) -> (u32, u32) {
    let response = service.ask(request(&[&[("tenant", tenant)]])).await;
    let status = &response.statuses[0];
    let limit = status
        .current_limit
        .as_ref()
        .map_or(0, |limit| limit.requests_per_unit);
    (limit, status.limit_remaining)
}

/// Asks for a tenant of its own each time, so that none is used up.
async fn becomes(service: &Service, expected: u32) {
    let mut asked = 0;
    eventually("the rules apply", LONG, async || {
        asked += 1;
        limit(service, &format!("asked {asked}")).await.0 == expected
    })
    .await;
}

#[test]
fn bad_rules_end_the_start() {
    for (rules, told) in [
        (
            "domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}",
            "rules.yaml:3: the unit must be one of",
        ),
        ("domain: edge\nlimits: []", "rules.yaml:"),
    ] {
        let setup = Setup::new(rules);
        let mut command = Command::new(program_of("envoy"));
        setup.arguments(&mut command);
        let output = command.arg("--check").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(told), "{text}");
    }
    let setup = Setup::new("");
    fs::remove_file(setup.rules()).unwrap();
    let mut command = Command::new(program_of("envoy"));
    setup.arguments(&mut command);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
    let setup = Setup::new(&rules(7));
    let mut command = Command::new(program_of("envoy"));
    setup.arguments(&mut command);
    let output = command.arg("--check").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "edge: tenant, bucket edge/tenant: 7/d\n"
    );
}

#[tokio::test]
async fn new_rules_refill_no_bucket() {
    let setup = Setup::new(&rules(100));
    let service = Service::start(&setup);
    for left in (90..100).rev() {
        assert_eq!(limit(&service, "acme").await, (100, left));
    }
    fs::write(setup.rules(), rules(50)).unwrap();
    becomes(&service, 50).await;
    // 90 were left, now the bucket is full; but what was taken is not back after the limit is raised again.
    let (_, left) = limit(&service, "acme").await;
    assert_eq!(left, 49);
    fs::write(setup.rules(), rules(200)).unwrap();
    becomes(&service, 200).await;
    let (_, left) = limit(&service, "acme").await;
    assert!(left < 200 - 10, "{left}");
}

/// A bad file, none, one that is replaced, and a folder that Kubernetes swaps below a symbolic link.
#[cfg(unix)]
#[tokio::test]
async fn files_change_in_any_way() {
    let setup = Setup::new(&rules(1));
    let service = Service::start(&setup);
    let file = setup.rules();
    for bad in ["domain: edge\ndescriptors: x", "", "domain: ["] {
        fs::write(&file, bad).unwrap();
        // The service reads files once more for each good one, so it has seen the bad one before.
        assert_eq!(limit(&service, bad).await.0, 1);
    }
    fs::write(&file, rules(2)).unwrap();
    becomes(&service, 2).await;
    fs::remove_file(&file).unwrap();
    assert_eq!(limit(&service, "while there is no file").await.0, 2);
    fs::write(&file, rules(3)).unwrap();
    becomes(&service, 3).await;
    let new = setup.dir().join("new.yaml");
    fs::write(&new, rules(4)).unwrap();
    fs::rename(&new, &file).unwrap();
    becomes(&service, 4).await;

    // `rules.yaml` -> `..data/rules.yaml`, `..data` -> `..5`, which is replaced by `..6`.
    let version = |number: u32| {
        let folder = setup.dir().join(format!("..{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("rules.yaml"), rules(number)).unwrap();
        std::os::unix::fs::symlink(format!("..{number}"), setup.dir().join("..data_tmp")).unwrap();
        fs::rename(setup.dir().join("..data_tmp"), setup.dir().join("..data")).unwrap();
    };
    version(5);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("..data/rules.yaml", &file).unwrap();
    becomes(&service, 5).await;
    version(6);
    becomes(&service, 6).await;
}

/// Another file of the folder is written all the time.
#[tokio::test]
async fn a_busy_folder_delays_no_change() {
    let setup = Setup::new(&rules(1));
    let service = Service::start(&setup);
    let busy = setup.dir().join("busy");
    let (ended, ends) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        while ends.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            fs::write(&busy, "x").unwrap();
        }
    });
    fs::write(setup.rules(), rules(2)).unwrap();
    becomes(&service, 2).await;
    drop(ended);
    writer.join().unwrap();
}

/// Each with a file of its own, of which one changes.
#[tokio::test]
async fn the_fleet_follows_one_file() {
    let server = RedisServer::start().await;
    let setups = [(); 2].map(|()| Setup::new(&rules(100)).on(&server.url()));
    let services = setups.each_ref().map(Service::start);
    let upstream = Service::upstream(&server.url());
    assert_eq!(limit(&services[0], "acme").await, (100, 99));
    assert_eq!(limit(&services[1], "acme").await, (100, 98));
    fs::write(setups[0].rules(), rules(5)).unwrap();
    becomes(&services[0], 5).await;
    becomes(&services[1], 5).await;
    eventually("the service behind them follows", LONG, async || {
        let (_, response) = upstream.get("/internal", "x-tenant: other\r\n").await;
        response.contains("\"default\";q=5;")
    })
    .await;

    // Another one starts, with older rules.
    let late = Setup::new(&rules(77)).on(&server.url());
    let hour = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    fs::File::options()
        .write(true)
        .open(late.rules())
        .unwrap()
        .set_modified(hour)
        .unwrap();
    let late_service = Service::start(&late);
    becomes(&late_service, 5).await;
    becomes(&services[0], 5).await;
    // Saved again, they apply to all.
    fs::write(late.rules(), rules(78)).unwrap();
    for service in [&late_service, &services[0], &services[1]] {
        becomes(service, 78).await;
    }
    // And so do those of a service that starts with newer ones.
    let newer = Setup::new(&rules(79)).on(&server.url());
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    fs::File::options()
        .write(true)
        .open(newer.rules())
        .unwrap()
        .set_modified(later)
        .unwrap();
    let newer_service = Service::start(&newer);
    for service in [&newer_service, &services[0]] {
        becomes(service, 79).await;
    }
}

/// The file applies once Redis is back.
#[tokio::test]
async fn a_change_in_an_outage_is_not_lost() {
    let server = RedisServer::start().await;
    let setups = [(); 2].map(|()| {
        Setup::new(&rules(10))
            .on(&server.url())
            .with(&["--on-outage", "local-share"])
    });
    let services = setups.each_ref().map(Service::start);
    becomes(&services[1], 10).await;
    server.kill9();
    fs::write(setups[0].rules(), rules(20)).unwrap();
    server.restart().await;
    for service in &services {
        becomes(service, 20).await;
    }
}

/// More than a setting of the fleet holds: each process follows its own file.
#[tokio::test]
async fn thousands_of_rules_apply() {
    let server = RedisServer::start().await;
    let rules = |limit: u32| {
        let tenant =
            |at| format!("  - {{key: tenant, value: t{at}, rate_limit: {{quotas: {limit}/d}}}}\n");
        let tenants: String = (0..3000).map(tenant).collect();
        format!("domain: edge\ndescriptors:\n{tenants}")
    };
    let setup = Setup::new(&rules(7)).on(&server.url());
    let service = Service::start(&setup);
    assert_eq!(limit(&service, "t2999").await, (7, 6));
    fs::write(setup.rules(), rules(6)).unwrap();
    let mut asked = 0;
    eventually("the rules apply", LONG, async || {
        asked += 1;
        limit(&service, &format!("t{asked}")).await.0 == 6
    })
    .await;
    assert_eq!(limit(&service, "t2999").await, (6, 5));
}
