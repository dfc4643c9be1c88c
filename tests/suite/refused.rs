//! Refused keys: counted by a layer in each process, and added up for an operator.

use futures::future::join_all;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_distributed::fleet::{RefusedKey, RefusedKeys};
use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, TokenBuckets};

use crate::fleet::elsewhere;
use crate::stores::{Place, SOON};
use support::eventually;

fn counts(top: &[RefusedKey]) -> Vec<(&str, u64, u64)> {
    top.iter()
        .map(|refused| (refused.key.as_str(), refused.at_least, refused.at_most))
        .collect()
}

async fn send(layer: RateLimitLayer<&'static str, ()>, users: &[&'static str]) {
    let mut service = layer.layer(service_fn(async |_: &'static str| {
        Ok::<_, std::io::Error>(())
    }));
    for user in users {
        drop(service.ready().await.unwrap().call(*user).await);
    }
}

pub(crate) async fn refused_keys_are_counted_over_the_fleet(place: &Place, name: &str) {
    let stores: [Store; 3] = [Store::clone(place), elsewhere(place), elsewhere(place)];
    let refused = stores
        .each_ref()
        .map(|store| RefusedKeys::with_plain_keys(store, name).unwrap());
    let layer = |at: usize| {
        let bucket = TokenBucket::new(&stores[at], name, Quota::per_hour(1)).unwrap();
        RateLimitLayer::new(bucket, |user: &&'static str| *user).count_refused(&refused[at])
    };
    send(layer(0), &["ann", "ann", "ann", "ben", "cid"]).await;
    send(layer(1), &["ann", "ben", "ben"]).await;
    // Not enforced, and counted.
    send(layer(2).shadow(), &["ann\x1b[2J", "ann\x1b[2J"]).await;
    let is_one = place.servers().is_empty();
    let here = if is_one {
        vec![("ann", 3, 3), ("ben", 2, 2), ("ann%1b[2J", 1, 1)]
    } else {
        vec![("ann", 2, 2)]
    };
    assert_eq!(counts(&refused[0].top(9)), here, "in this process");
    assert_eq!(counts(&refused[0].top(1)), here[..1]);

    let operator = place.operator();
    for server in place.servers() {
        // What is not recognised is skipped. On a Cluster this is a key of one of the nodes.
        let forged = place.part(&format!("{name}:0123456789abcdef"), "refused");
        drop(server.query::<()>(&["SET", &forged, "9 9\n9 9 \x1b[2J", "EX", "60"]));
    }
    let all = [("ann", 3, 3), ("ben", 2, 2), ("ann%1b[2J", 1, 1)];
    let what = async || counts(&operator.top_refused(name, 9).await.unwrap()) == all;
    eventually("the lists of all processes", SOON, what).await;
    // On more pages than one.
    let many = TokenBucket::new(place, name, Quota::per_hour(1)).unwrap();
    for outcome in join_all((0..2000_u32).map(|key| many.allow(key))).await {
        assert!(outcome.unwrap().is_admitted());
    }
    assert_eq!(counts(&operator.top_refused(name, 9).await.unwrap()), all);
    assert_eq!(
        counts(&operator.top_refused(name, 2).await.unwrap()),
        all[..2]
    );
    assert!(
        operator
            .top_refused(&format!("{name}.other"), 9)
            .await
            .unwrap()
            .is_empty()
    );
}

/// The key of the limit that refused.
pub(crate) async fn the_key_of_the_limit_that_refused_is_counted(place: &Place, name: &str) {
    let bucket = |ending: &str, burst| {
        TokenBucket::new(
            place,
            &format!("{name}.{ending}"),
            Quota::per_hour(1).burst(burst),
        )
        .unwrap()
    };
    let refused = RefusedKeys::new(place, name).unwrap();
    let limits = TokenBuckets::new([bucket("users", 2), bucket("all", 3)]).unwrap();
    let keys = (|user: &&'static str| *user, |_: &&'static str| "everybody");
    send(
        RateLimitLayer::all_of(limits, keys).count_refused(&refused),
        &["ann", "ann", "ann", "ben", "ben", "cid"],
    )
    .await;
    // printf everybody | sha256sum, printf ann | sha256sum
    let digests = [
        "%#10eb99d2d879b4e3f5c9342a7bcb040b90153d5c9ebfa125f47d4467c5947530",
        "%#49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1",
    ];
    assert_eq!(
        counts(&refused.top(9)),
        [(digests[0], 2, 2), (digests[1], 1, 1)]
    );
}
