//! Nobody gets what is another's: many users, several gateways, and each answer judged by what it was made for.

mod known;
mod origin;
mod users;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::{ServiceBuilder, ServiceExt as _};
use tower_distributed::SingleFlight;
use tower_distributed::http::{AnswerCodec, request_target, single_flight};

pub(crate) use self::origin::Builder;
use self::origin::{Origin, never};
use self::users::{Tally, ask, rng, seed};
use crate::net::serve;
use crate::stores::{SOON, Stores, on_each_store};

on_each_store!(
    users_of_two_gateways,
    stale_answers,
    with_turns_of_the_runtime_only,
    in_turn,
    through_proxies_over_sockets,
);

const USERS: u64 = 50;
const REQUESTS: usize = 60;

/// Many users ask each of the gateways in turn.
async fn besieged(gateways: Vec<Router>) -> Tally {
    let seed = seed();
    let users = (0..USERS).map(|user| {
        let gateways = gateways.clone();
        tokio::spawn(async move {
            let (mut rng, mut tally) = (rng(seed, user), Tally::default());
            for number in 0..REQUESTS {
                let asked = ask(&mut rng, user);
                let gateway = gateways[(number + user as usize) % gateways.len()].clone();
                let response = tokio::time::timeout(SOON * 3, gateway.oneshot(asked.request(""))).await;
                let response = response.unwrap_or_else(|_| panic!("no answer to {asked:?}")).unwrap();
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

async fn with(stores: Stores, settings: fn(Builder) -> Builder) -> (Origin, Tally) {
    let origin = Origin::default();
    let gateways = vec![origin.behind(&stores.open(), settings), origin.behind(&stores.open(), settings)];
    let tally = besieged(gateways).await;
    assert_eq!(tally.sums().1, USERS as usize * REQUESTS);
    (origin, tally)
}

/// That what is for all was shared: else there would be nothing to be seen here. And nothing else was.
fn assert_shared(tally: &Tally) {
    let (borrowed, all) = tally.sums();
    assert!(borrowed > all / 20, "{tally:?}");
    for kind in ["plain", "language", "accept", "cookie", "sometimes", "deep", "deeper", "missing", "turned"]
    {
        assert!(tally.borrowed(kind) > 0, "{kind}: {tally:?}");
    }
    for kind in ["anything", "private", "no-store", "session", "broken"] {
        assert_eq!(tally.borrowed(kind), 0, "{kind}");
    }
}

async fn users_of_two_gateways(stores: Stores) {
    let (_, tally) = with(stores, |flight| flight.life(Duration::from_millis(20))).await;
    assert_shared(&tally);
}

async fn stale_answers(stores: Stores) {
    let settings = |flight: Builder| flight.life(Duration::from_millis(1)).stale_for(Duration::from_secs(60));
    let (_, tally) = with(stores, settings).await;
    assert_shared(&tally);
}

/// With the shortest life, nearly all meet in the flights themselves.
async fn with_turns_of_the_runtime_only(stores: Stores) {
    let (_, tally) = with(stores, |flight| flight.life(Duration::from_millis(1))).await;
    assert!(tally.sums().0 > 0, "{tally:?}");
}

async fn in_turn(stores: Stores) {
    let settings = |flight: Builder| flight.followers(tower_distributed::single_flight::Followers::TakeTurns);
    let (origin, tally) = with(stores, settings).await;
    assert_eq!((origin.handled(), tally.sums().0), (tally.sums().1, 0), "nothing is shared");
}

/// Each gateway is a proxy whose client to the origin is guarded.
async fn through_proxies_over_sockets(stores: Stores) {
    let origin = Origin::default();
    let behind = origin.clone();
    let upstream =
        serve(Router::new().fallback(move |request: Request<Body>| behind.clone().answer(request))).await;
    let gateways = (0..2).map(|_| {
        let flight = SingleFlight::builder(AnswerCodec).life(Duration::from_millis(20));
        let flight = flight.build(&stores.open(), "public").unwrap();
        let key = |request: &Request<Body>| {
            // The client's URI names the origin; whom the user has asked is in the field.
            let mut asked = Request::new(Body::empty());
            *asked.method_mut() = request.method().clone();
            *asked.headers_mut() = request.headers().clone();
            *asked.uri_mut() = request.uri().path_and_query().unwrap().as_str().parse().unwrap();
            let key = request_target().private_if("x-api-key").unwrap();
            tower_distributed::KeyExtractor::extract(&key, &asked)
        };
        let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
        let guarded =
            ServiceBuilder::new().layer(single_flight(flight, key).reject_with(never)).service(client);
        let upstream = upstream.clone();
        Router::new().fallback(move |mut request: Request<Body>| {
            *request.uri_mut() = format!("{upstream}{}", request.uri()).parse().unwrap();
            async move { guarded.oneshot(request).await.unwrap().map(Body::new) }
        })
    });
    let tally = besieged(gateways.collect()).await;
    assert_shared(&tally);
}
