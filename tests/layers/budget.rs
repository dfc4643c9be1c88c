//! Budgets: an estimate is held while a request is handled, and what it has used is captured at the end.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Bytes, Frame};
use tonic_health::pb::health_client::HealthClient;
use tower::util::BoxCloneService;
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_distributed::response::{MeterBody, MeteredBody};
use tower_distributed::token_bucket::{Meter, Usage};
use tower_distributed::{BudgetLayer, Quota, Store, TokenBucket, grpc};

use crate::health::{check, question, retry_delay, serve_health};
use crate::stores::{HOUR, SOON, Stores, on_each_store};
use support::eventually;

on_each_store!(
    what_was_sent_is_captured,
    fields_of_the_head_and_of_the_trailers,
    a_request_that_breaks_costs_the_estimate_by_choice,
    failures,
    a_request_without_a_response,
    messages_of_a_stream,
);

fn tokens(store: &Store) -> TokenBucket {
    TokenBucket::new(store, "tokens", Quota::new(1, HOUR).burst(1000)).unwrap()
}

/// What is held and what is left, in the end.
async fn comes_to(bucket: &TokenBucket, held: u32, left: u32) {
    eventually(&format!("{held} held and {left} left"), SOON, async || {
        let state = bucket.peek("ann").await.unwrap();
        (state.held(), state.remaining()) == (held, left)
    })
    .await;
}

type Frames = Result<Frame<Bytes>, io::Error>;
type Streamed = StreamBody<UnboundedReceiver<Frames>>;
type Answers = BoxCloneService<Request<()>, Response<Streamed>, io::Error>;

fn budget<M>(bucket: &TokenBucket, meter: M) -> BudgetLayer<Request<()>, M> {
    BudgetLayer::new(
        bucket.clone(),
        |_: &Request<()>| "ann",
        |_: &Request<()>| 600,
    )
    .meter(meter)
}

/// Answers one request.
fn answers(response: Result<Response<Streamed>, io::Error>) -> Answers {
    let response = Arc::new(Mutex::new(Some(response)));
    BoxCloneService::new(service_fn(move |_| {
        std::future::ready(response.lock().unwrap().take().expect("it answers once"))
    }))
}

fn data(text: &'static str) -> Frames {
    Ok(Frame::data(Bytes::from(text)))
}

/// The body of the response to a request of `ann`, which is sent frame by frame.
async fn streamed<F>(
    bucket: &TokenBucket,
    meter: MeterBody<F>,
) -> (UnboundedSender<Frames>, MeteredBody<Streamed, F>)
where
    MeterBody<F>: Meter<Response<Streamed>, Response = Response<MeteredBody<Streamed, F>>>,
    F: Clone,
{
    let (sender, receiver) = unbounded();
    let inner = answers(Ok(Response::new(StreamBody::new(receiver))));
    let response = budget(bucket, meter)
        .layer(inner)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    (sender, response.into_body())
}

/// The body of the response to a request of `ann`, whose head says what was used.
async fn answered<F>(
    bucket: &TokenBucket,
    meter: MeterBody<F>,
    used: &str,
) -> MeteredBody<Streamed, F>
where
    MeterBody<F>: Meter<Response<Streamed>, Response = Response<MeteredBody<Streamed, F>>>,
    F: Clone,
{
    let mut response = Response::new(StreamBody::new(unbounded().1));
    response
        .headers_mut()
        .insert("x-used", used.parse().unwrap());
    let inner = answers(Ok(response));
    budget(bucket, meter)
        .layer(inner)
        .oneshot(Request::new(()))
        .await
        .unwrap()
        .into_body()
}

fn words(data: &Bytes, usage: &Usage) {
    usage.add(
        data.split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .count() as u32,
    );
}

async fn what_was_sent_is_captured(stores: Stores) {
    let bucket = tokens(&stores.open());
    for (count, sent, end, left) in [
        (words as fn(&Bytes, &Usage), "some words", "ends", 998),
        (words, "", "ends", 1000),
        // There was data, and no word.
        (|_, _| {}, " ", "ends", 400),
        (words, "three of many", "is dropped", 997),
        (words, "three of many", "fails", 997),
    ] {
        bucket.reset("ann").await.unwrap();
        let (sender, mut body) = streamed(&bucket, MeterBody::default().frames(count)).await;
        comes_to(&bucket, 600, 400).await;
        if !sent.is_empty() {
            sender.unbounded_send(data(sent)).unwrap();
            assert!(body.frame().await.unwrap().is_ok());
        }
        // A body that has ended or failed is still there, and holds nothing.
        match end {
            "ends" => {
                drop(sender);
                assert!(body.frame().await.is_none());
            }
            "fails" => {
                sender
                    .unbounded_send(Err(io::ErrorKind::BrokenPipe.into()))
                    .unwrap();
                assert!(body.frame().await.unwrap().is_err());
            }
            _ => {
                sender.unbounded_send(data("these were not sent")).unwrap();
                drop(body);
            }
        }
        comes_to(&bucket, 0, left).await;
    }
    // It has ended with its head.
    bucket.reset("ann").await.unwrap();
    let empty = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let meter = MeterBody::default().frames(words as fn(&Bytes, &Usage));
    budget(&bucket, meter)
        .layer(empty)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    comes_to(&bucket, 0, 1000).await;
}

async fn fields_of_the_head_and_of_the_trailers(stores: Stores) {
    let bucket = tokens(&stores.open());
    let used = HeaderName::from_static("x-used");
    let (sender, body) = streamed(&bucket, MeterBody::default().field(used.clone())).await;
    let trailers = HeaderMap::from_iter([(used.clone(), "17".parse().unwrap())]);
    sender.unbounded_send(data("text")).unwrap();
    sender
        .unbounded_send(Ok(Frame::trailers(trailers)))
        .unwrap();
    drop(sender);
    body.collect().await.unwrap();
    comes_to(&bucket, 0, 983).await;
    let next = async |bucket: &TokenBucket| {
        bucket
            .peek("ann")
            .await
            .unwrap()
            .available_after(1)
            .unwrap()
    };
    // Whatever an upstream sends is no debt beyond a day.
    let meter = || MeterBody::default().field(used.clone());
    for (meter, told, left) in [
        (meter(), "20", 980),
        (meter(), "-3", 400),
        (meter(), "4294967295", 0),
        (meter(), "18446744073709551615", 0),
        (meter(), "99999999999999999999999", 0),
        (meter().at_most(700), "701", 300),
        (meter().at_most(700), "700", 300),
    ] {
        bucket.reset("ann").await.unwrap();
        answered(&bucket, meter, told)
            .await
            .collect()
            .await
            .unwrap();
        comes_to(&bucket, 0, left).await;
        let next = next(&bucket).await;
        assert!(next <= 25 * HOUR, "{told}: {next:?}");
    }
    // What comes back within a day is believed, also above the burst: a large answer is paid for.
    let quick = TokenBucket::new(&stores.open(), "quick", Quota::per_minute(1000)).unwrap();
    drop(answered(&quick, meter(), "8000").await);
    eventually("the debt", SOON, async || {
        next(&quick).await > Duration::from_secs(360)
    })
    .await;
}

async fn a_request_that_breaks_costs_the_estimate_by_choice(stores: Stores) {
    let bucket = tokens(&stores.open());
    let asked = async |counted: u32, ends: &[&str]| {
        bucket.reset("ann").await.unwrap();
        let (sender, receiver) = unbounded();
        let usage = Arc::new(Mutex::new(Usage::default()));
        let told = Arc::clone(&usage);
        let layer = budget(&bucket, MeterBody::default()).broken_costs_estimate(true);
        let layer = layer.on_hold(move |usage: &Usage, _: &mut Request<()>| {
            *told.lock().unwrap() = usage.clone()
        });
        let inner = answers(Ok(Response::new(StreamBody::new(receiver))));
        let mut body = layer
            .layer(inner)
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .into_body();
        let usage = usage.lock().unwrap().clone();
        usage.set(counted);
        sender.unbounded_send(data("text")).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        for end in ends {
            match *end {
                "complete" => usage.complete(),
                "fails" => {
                    sender
                        .unbounded_send(Err(io::ErrorKind::BrokenPipe.into()))
                        .unwrap();
                    assert!(body.frame().await.unwrap().is_err());
                }
                _ => {
                    sender.close_channel();
                    assert!(body.frame().await.is_none());
                }
            }
        }
        drop(body);
    };
    for (counted, ends, left) in [
        (25, &[] as &[&str], 400),
        (25, &["fails"], 400),
        (700, &["fails"], 300),
        (25, &["ends"], 975),
        (625, &["complete"], 375),
        (25, &["complete", "fails"], 975),
    ] {
        asked(counted, ends).await;
        comes_to(&bucket, 0, left).await;
    }
    // Before the head of the response.
    bucket.reset("ann").await.unwrap();
    let layer = BudgetLayer::new(bucket.clone(), |_: &u32| "ann", |_: &u32| 600)
        .broken_costs_estimate(true)
        .on_hold(|usage: &Usage, used: &mut u32| usage.set(*used));
    let failed = service_fn(async |_: u32| Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)));
    assert!(layer.clone().layer(failed).oneshot(20).await.is_err());
    comes_to(&bucket, 0, 400).await;
    bucket.reset("ann").await.unwrap();
    let answered = service_fn(async |_: u32| Ok::<_, Infallible>(()));
    layer.layer(answered).oneshot(20).await.unwrap();
    comes_to(&bucket, 0, 980).await;
}

async fn failures(stores: Stores) {
    let bucket = tokens(&stores.open());
    for (are_free, left) in [(true, 1000), (false, 400)] {
        let (sender, receiver) = unbounded();
        let mut response = Response::new(StreamBody::new(receiver));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        let layer = budget(&bucket, MeterBody::default().failures_are_free(are_free));
        let response = layer
            .layer(answers(Ok(response)))
            .oneshot(Request::new(()))
            .await
            .unwrap();
        drop(sender);
        response.into_body().collect().await.unwrap();
        comes_to(&bucket, 0, left).await;
        bucket.reset("ann").await.unwrap();
        let layer = budget(&bucket, MeterBody::default().failures_are_free(are_free));
        let failed = answers(Err(io::ErrorKind::NotFound.into()));
        assert!(layer.layer(failed).oneshot(Request::new(())).await.is_err());
        comes_to(&bucket, 0, left).await;
    }
}

/// What was counted until it failed, or was dropped.
async fn a_request_without_a_response(stores: Stores) {
    let bucket = tokens(&stores.open());
    let layer =
        budget(&bucket, MeterBody::default()).on_hold(|usage: &Usage, _: &mut _| usage.add(3));
    let failed = layer
        .layer(answers(Err(io::ErrorKind::NotFound.into())))
        .oneshot(Request::new(()))
        .await;
    assert!(failed.is_err_and(|error| error.downcast_ref::<io::Error>().is_some()));
    comes_to(&bucket, 0, 997).await;
    bucket.reset("ann").await.unwrap();
    let layer = BudgetLayer::new(bucket.clone(), |_: &u32| "ann", |_: &u32| 600)
        .on_hold(|usage: &Usage, used: &mut u32| usage.set(*used));
    let hangs = service_fn(async |_: u32| std::future::pending::<Result<(), Infallible>>().await);
    let calling = tokio::spawn(layer.layer(hangs).oneshot(20));
    comes_to(&bucket, 600, 400).await;
    calling.abort();
    comes_to(&bucket, 0, 980).await;
}

/// Over gRPC, with a real server: what the client did not wait for costs nothing.
async fn messages_of_a_stream(stores: Stores) {
    let bucket = tokens(&stores.open());
    let (reporter, health) = tonic_health::server::health_reporter();
    let budget = grpc::token_budget(
        bucket.clone(),
        |_: &Request<tonic::body::Body>| "ann",
        |_: &Request<_>| 600,
    );
    let budget = budget.meter(MeterBody::default().frames(grpc::count_messages()));
    let channel = serve_health!(budget, health);
    check(&channel, "ann").await.unwrap();
    comes_to(&bucket, 0, 999).await;
    let mut stream = HealthClient::new(channel.clone())
        .watch(question("ann"))
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap().unwrap();
    comes_to(&bucket, 600, 399).await;
    let status = check(&channel, "ann").await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert!(
        retry_delay(&status).is_some_and(|delay| delay > HOUR),
        "{status:?}"
    );
    reporter
        .set_service_status("", tonic_health::ServingStatus::NotServing)
        .await;
    stream.message().await.unwrap().unwrap();
    drop(stream);
    comes_to(&bucket, 0, 997).await;
}
