//! Settings of the fleet: every process follows a change, and no operator overwrites what another has set.

use std::time::Duration;

use futures::future::join_all;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::FleetTable;
use tower_distributed::operator::{Entry, Kind};
use tower_distributed::{FleetQuotas, Quota, RateLimitLayer, Store, TokenBucket};

use crate::operators::shown;
use crate::stores::{Place, SOON};
use support::eventually;
use support::patient;
use support::redis_server::RedisServer;

/// A store of another process at the same place; in memory there is none, so a clone.
pub(crate) fn elsewhere(place: &Place) -> Store {
    match &place.servers()[..] {
        [] => Store::clone(place),
        [server] => patient!()
            .prefix(place.prefix)
            .redis(&server.url())
            .unwrap(),
        nodes => patient!()
            .cluster(nodes.iter().map(|node| node.url()))
            .unwrap(),
    }
}

async fn becomes(quotas: &FleetQuotas, text: &str) {
    eventually(text, SOON, async || quotas.current().to_string() == text).await;
}

pub(crate) async fn every_process_follows(place: &Place, name: &str) {
    let here = FleetQuotas::new(place, name, "1/s").unwrap();
    let there = FleetQuotas::new(&elsewhere(place), name, "2/s").unwrap();
    assert_eq!(
        (here.current().to_string(), there.current().to_string()),
        ("1/s".into(), "2/s".into())
    );
    let first = here.set("100/min, burst 20", "ann").await.unwrap();
    assert_eq!(
        (first.number, first.text.as_deref(), &*first.who),
        (1, Some("100/min, burst 20"), "ann")
    );
    assert_eq!(
        (here.current().to_string(), here.version()),
        ("100/min, burst 20".into(), 1),
        "at once"
    );
    becomes(&there, "100/min, burst 20").await;
    there
        .set([Quota::per_second(3), Quota::per_hour(7)], "ben")
        .await
        .unwrap();
    becomes(&here, "3/s; 7/h").await;

    // Each undo is a version. The first version followed the defaults.
    let undone = here.undo("cleo").await.unwrap();
    assert_eq!(
        (undone.number, undone.text.as_deref()),
        (3, Some("100/min, burst 20"))
    );
    becomes(&there, "100/min, burst 20").await;
    there.undo("cleo").await.unwrap();
    becomes(&here, "3/s; 7/h").await;
    // A new process has what is stored: it asks at once, or in the background.
    let [asks, waits] = [(); 2].map(|()| FleetQuotas::new(&elsewhere(place), name, "1/s").unwrap());
    assert_eq!(
        (asks.refresh().await.unwrap(), asks.current().to_string()),
        (4, "3/s; 7/h".into())
    );
    becomes(&waits, "3/s; 7/h").await;
    assert_eq!(waits.set("6/s", "ann").await.unwrap().number, 5);
    let fresh = &format!("{name}.fresh");
    let here = FleetQuotas::new(place, fresh, "1/s").unwrap();
    let there = FleetQuotas::new(&elsewhere(place), fresh, "2/s").unwrap();
    assert!(
        here.undo("ann").await.unwrap_err().is_invalid(),
        "there is nothing to undo"
    );
    here.set("7/s", "ann").await.unwrap();
    becomes(&there, "7/s").await;
    assert_eq!(here.undo("ann").await.unwrap().text, None);
    becomes(&there, "2/s").await;
    assert_eq!(here.current().to_string(), "1/s");
}

pub(crate) async fn no_operator_overwrites_another(place: &Place, name: &str) {
    let operators = [(); 8].map(|()| FleetQuotas::new(&elsewhere(place), name, "1/s").unwrap());
    let set = operators.iter().enumerate().map(async |(who, operator)| {
        let quota = format!("{}/h", who + 1);
        (
            who,
            operator
                .set_if(0, quota.as_str(), &format!("operator {who}"))
                .await,
        )
    });
    let (won, lost): (Vec<_>, Vec<_>) = join_all(set)
        .await
        .into_iter()
        .partition(|(_, set)| set.is_ok());
    let [(winner, Ok(version))] = &won[..] else {
        panic!("{won:?}")
    };
    let quotas = &operators[0];
    let stored = &quotas.history().await.unwrap()[0];
    assert_eq!(
        (version.number, &*stored.who),
        (1, &*format!("operator {winner}"))
    );
    let told = "version 0 was expected, and version 1 was found";
    for error in lost.into_iter().map(|(_, set)| set.unwrap_err()) {
        let text = error.to_string();
        assert!(
            error.is_conflict() && !error.is_unavailable() && !error.is_refused(),
            "{text}"
        );
        assert!(
            text.contains(told) && text.ends_with(&format!("set by \"operator {winner}\"")),
            "{text}"
        );
    }
    assert_eq!(quotas.set("2/s", "ann").await.unwrap().number, 2);
    // After a conflict the operator knows what was found.
    assert!(
        operators[1]
            .undo_if(1, "ann")
            .await
            .unwrap_err()
            .is_conflict()
    );
    assert_eq!(operators[1].undo("ann").await.unwrap().number, 3);
    let long = "x".repeat(65);
    for who in ["", "a\nb", "a\u{202e}b", &long] {
        assert!(
            quotas.set("1/s", who).await.unwrap_err().is_invalid(),
            "{who:?}"
        );
    }
    for value in ["1/0s", "1"] {
        assert!(
            quotas.set(value, "ann").await.unwrap_err().is_invalid(),
            "{value:?}"
        );
    }
    let long = Quota::per_second(1).named("x".repeat(20_000));
    assert!(
        quotas
            .set(long, "ann")
            .await
            .unwrap_err()
            .to_string()
            .contains("16384")
    );
    assert_eq!(quotas.refresh().await.unwrap(), 3);
}

pub(crate) async fn the_last_ten_versions_are_kept(place: &Place, name: &str) {
    let quotas = FleetQuotas::new(place, name, "1/s").unwrap();
    let mut set = Vec::new();
    for number in 1..=13 {
        set.insert(
            0,
            quotas
                .set(Quota::per_hour(number), &format!("who {number}"))
                .await
                .unwrap(),
        );
    }
    set.truncate(10);
    assert_eq!(quotas.history().await.unwrap(), set);
    assert!(
        set.is_sorted_by(|newer, older| newer.at > older.at && newer.number == older.number + 1)
    );
    assert_eq!(set[0].number, 13);

    let operator = place.operator();
    let page = operator
        .scan_namespace(name)
        .unwrap()
        .next()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(page, [Entry::whole(Kind::FleetQuotas, name).unwrap()]);
    assert_eq!(shown!(operator, &page[0], Setting), set);
    // Settings of other kinds are apart, though they have one name.
    let none = Entry::whole(Kind::FleetLimit, name).unwrap();
    assert!(operator.inspect(&none).await.unwrap().is_none());
    assert_eq!(
        FleetLimit::new(place, name, 1_u32)
            .unwrap()
            .refresh()
            .await
            .unwrap(),
        0
    );
}

pub(crate) async fn tables_follow(place: &Place, name: &str) {
    let other = elsewhere(place);
    let table = FleetTable::new(place, name, "/a = 1/d").unwrap();
    let bucket = TokenBucket::new(place, name, Quota::per_day(3)).unwrap();
    let layer = RateLimitLayer::new(bucket, |_: &&'static str| "user")
        .quota_table(table.clone(), |route: &&'static str| *route);
    let mut service = layer.layer(service_fn(async |_: &'static str| {
        Ok::<_, std::io::Error>(())
    }));
    let mut admitted = async |route: &'static str, most: u32| {
        let mut admitted = 0;
        while admitted < most && service.ready().await.unwrap().call(route).await.is_ok() {
            admitted += 1;
        }
        admitted
    };
    assert_eq!((admitted("/a", 9).await, admitted("/b", 9).await), (1, 3));
    let remote = FleetTable::new(&other, name, "").unwrap();
    remote
        .set("/a = 2/d\n/b = 4/d; 9/h, named \"x = y\"", "ann")
        .await
        .unwrap();
    eventually("the table", SOON, async || {
        table.current().get("/b").is_some()
    })
    .await;
    assert_eq!((admitted("/a", 9).await, admitted("/b", 9).await), (1, 4));
    assert_eq!(table.version(), 1);
}

/// The last known value holds in an outage. A process that starts in it has its default, until Redis answers.
#[tokio::test]
async fn an_outage_changes_nothing() {
    let server = RedisServer::start().await;
    let patient = FleetQuotas::new(&patient!(server.url()), "api", "1/s").unwrap();
    patient.set("5/s", "ann").await.unwrap();
    let hasty = || {
        let store = Store::builder()
            .timeout(Duration::from_millis(200))
            .redis(&server.url())
            .unwrap();
        FleetQuotas::new(&store, "api", "1/s").unwrap()
    };
    let quotas = hasty();
    becomes(&quotas, "5/s").await;
    server.pause();
    let started = hasty();
    for setting in [&quotas, &started] {
        assert!(
            setting
                .set("6/s", "ann")
                .await
                .unwrap_err()
                .is_unavailable()
        );
        assert!(setting.refresh().await.unwrap_err().is_unavailable());
        assert!(setting.history().await.is_err());
    }
    assert_eq!(
        (quotas.current().to_string(), started.current().to_string()),
        ("5/s".into(), "1/s".into())
    );
    server.resume();
    // The call that was lost may have run when the server went on.
    eventually("all to have what is stored", SOON, async || {
        let stored = patient.history().await.unwrap()[0].text.clone().unwrap();
        [&patient, &quotas, &started]
            .iter()
            .all(|setting| *setting.current().to_string() == *stored)
    })
    .await;

    // A restart without persistence loses what was set. Processes go on with what they know.
    let known = patient.current().to_string();
    server.cli(&["FLUSHALL"]);
    assert_eq!(
        (
            patient.refresh().await.unwrap(),
            patient.current().to_string()
        ),
        (0, known)
    );
    let again = patient.set("7/s", "ann").await.unwrap();
    assert_eq!(
        (again.number, patient.current().to_string()),
        (1, "7/s".into())
    );
}
