//! Nobody gets what is another's: many users, several gateways, and each answer judged by what it was made for.

mod origin;
mod users;

use std::time::Duration;

use axum::Router;
use tower::ServiceExt as _;

use self::origin::{Builder, Origin};
use self::users::{Tally, ask, rng};
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(users_of_two_gateways,);

const USERS: u64 = 50;
const REQUESTS: usize = 60;

/// How long an answer is shared. Long enough for a slow machine to ask again in that time, and most sieges take longer.
const LIFE: Duration = Duration::from_millis(200);

/// At most so many of them after each other.
const SIEGES: usize = 20;

/// Many users ask each of the gateways in turn.
async fn besieged(gateways: Vec<Router>) -> Tally {
    let seed = support::seed();
    let users = (0..USERS).map(|user| {
        let gateways = gateways.clone();
        tokio::spawn(async move {
            let (mut rng, mut tally) = (rng(seed, user), Tally::default());
            for number in 0..REQUESTS {
                let asked = ask(&mut rng, user);
                let gateway = gateways[(number + user as usize) % gateways.len()].clone();
                let response =
                    tokio::time::timeout(SOON * 3, gateway.oneshot(asked.request())).await;
                let response = response
                    .unwrap_or_else(|_| panic!("no answer to {asked:?}"))
                    .unwrap();
                tally.count(&asked, &asked.judge(response).await);
            }
            tally
        })
    });
    let mut tally = Tally::default();
    for outcome in futures::future::join_all(users).await {
        tally.add(outcome.unwrap());
    }
    tally
}

/// As often as it takes: who meets whom is a matter of luck.
async fn besieged_until(gateways: Vec<Router>, is_enough: fn(&Tally) -> bool) -> Tally {
    let mut tally = Tally::default();
    for siege in 1..=SIEGES {
        tally.add(besieged(gateways.clone()).await);
        assert_eq!(tally.sums().1, siege * USERS as usize * REQUESTS);
        if is_enough(&tally) {
            return tally;
        }
    }
    panic!("not enough was shared: {tally:?}");
}

/// Whether all that is for all was shared: else there would be nothing to be seen here.
fn is_shared(tally: &Tally) -> bool {
    let kinds = [
        "plain",
        "language",
        "accept",
        "cookie",
        "sometimes",
        "deep",
        "deeper",
        "missing",
        "turned",
    ];
    let (borrowed, all) = tally.sums();
    borrowed > all / 20 && kinds.iter().all(|kind| tally.borrowed(kind) > 0)
}

/// Nothing else was shared.
fn assert_private(tally: &Tally) {
    for kind in ["anything", "private", "no-store", "session"] {
        assert_eq!(tally.borrowed(kind), 0, "{kind}");
    }
}

async fn users_of_two_gateways(stores: Stores) {
    type Setting = (&'static str, fn(Builder) -> Builder, fn(&Tally) -> bool);
    let settings: [Setting; 4] = [
        ("shared", |flight| flight.ttl(LIFE), is_shared),
        (
            "cached",
            |flight| flight.ttl(LIFE).local_cache(1 << 20),
            is_shared,
        ),
        (
            "stale",
            |flight| {
                flight
                    .ttl(Duration::from_millis(1))
                    .stale_while_revalidate(Duration::from_secs(60))
            },
            is_shared,
        ),
        // With the shortest life, nearly all meet in the flights themselves.
        (
            "brief",
            |flight| flight.ttl(Duration::from_millis(1)),
            |tally| tally.sums().0 > 0,
        ),
    ];
    for (name, settings, is_enough) in settings {
        let origin = Origin::default();
        let gateways = [(); 2].map(|()| origin.behind(&stores.open(), name, settings));
        assert_private(&besieged_until(gateways.into(), is_enough).await);
    }
}
