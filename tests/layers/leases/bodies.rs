//! Leases that are held to the end of a response's body.

use std::io;
use std::sync::{Arc, Mutex};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http::Response;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service, ServiceExt as _, service_fn};
use tower_distributed::response::{LeasedBody, UntilBodyEnd};

use crate::families::{becomes_free, by_name, is_free, on_each_layer};
use crate::stores::{Stores, on_each_store};

on_each_store!(
    read_slowly,
    dropped_half_way,
    dropped_unread,
    failed_half_way,
    ended_by_its_last_frame,
    empty_bodies,
    until_the_head,
    errors_have_no_body,
);

pub(crate) type Frames = Result<Frame<Bytes>, io::Error>;
pub(crate) type Slow = StreamBody<UnboundedReceiver<Frames>>;

pub(crate) fn slow() -> (UnboundedSender<Frames>, Slow) {
    let (sender, receiver) = unbounded();
    (sender, StreamBody::new(receiver))
}

pub(crate) fn data(text: &'static str) -> Frames {
    Ok(Frame::data(Bytes::from(text)))
}

/// Answers one request.
pub(crate) type Answers<B> = BoxCloneService<&'static str, Response<B>, BoxError>;

/// With a body.
pub(crate) fn answers<B: Send + 'static>(body: B) -> Answers<B> {
    responds(Response::new(body))
}

pub(crate) fn responds<B: Send + 'static>(response: Response<B>) -> Answers<B> {
    let response = Arc::new(Mutex::new(Some(response)));
    BoxCloneService::new(service_fn(move |_| {
        std::future::ready(Ok(response.lock().unwrap().take().expect("it answers once")))
    }))
}

/// The body of the response to `ann`, which holds its lease.
pub(crate) async fn held<B: Send + 'static, L: Layer<Answers<B>>>(layer: L, body: B) -> LeasedBody<B>
where
    L::Service: Service<&'static str, Response = Response<LeasedBody<B>>, Error = BoxError>,
{
    layer.layer(answers(body)).oneshot("ann").await.unwrap().into_body()
}

/// The same, with a body that is sent frame by frame.
pub(crate) async fn streamed<L: Layer<Answers<Slow>>>(layer: L) -> (UnboundedSender<Frames>, LeasedBody<Slow>)
where
    L::Service: Service<&'static str, Response = Response<LeasedBody<Slow>>, Error = BoxError>,
{
    let (sender, body) = slow();
    (sender, held(layer, body).await)
}

/// Whether the next frame has this text.
pub(crate) async fn reads<B>(body: &mut B, text: &str) -> bool
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    body.frame().await.unwrap().unwrap().into_data().unwrap() == text
}

async fn read_slowly(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (sender, mut body) = streamed(layer.hold(UntilBodyEnd::default())).await;
        assert!(!is_free(&stores, "ann").await);
        sender.unbounded_send(data("one")).unwrap();
        assert!(reads(&mut body, "one").await && !body.is_end_stream());
        assert!(!is_free(&stores, "ann").await);
        sender.unbounded_send(data("two")).unwrap();
        drop(sender);
        assert!(reads(&mut body, "two").await);
        assert!(!is_free(&stores, "ann").await, "nobody knows yet that it was the last");
        assert!(body.frame().await.is_none());
        becomes_free(&stores, "ann").await;
        assert!(body.frame().await.is_none());
        drop(body);
    });
}

async fn dropped_half_way(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (sender, mut body) = streamed(layer.hold(UntilBodyEnd::default())).await;
        sender.unbounded_send(data("one")).unwrap();
        assert!(reads(&mut body, "one").await);
        assert!(!is_free(&stores, "ann").await);
        drop(body);
        becomes_free(&stores, "ann").await;
    });
}

async fn dropped_unread(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let response =
            layer.hold(UntilBodyEnd::default()).layer(answers(slow().1)).oneshot("ann").await.unwrap();
        assert!(!is_free(&stores, "ann").await);
        drop(response);
        becomes_free(&stores, "ann").await;
    });
}

async fn failed_half_way(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (sender, mut body) = streamed(layer.hold(UntilBodyEnd::default())).await;
        sender.unbounded_send(data("one")).unwrap();
        sender.unbounded_send(Err(io::Error::other("out of paper"))).unwrap();
        assert!(reads(&mut body, "one").await);
        assert!(!is_free(&stores, "ann").await);
        assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "out of paper");
        becomes_free(&stores, "ann").await;
        drop(body);
    });
}

async fn ended_by_its_last_frame(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let body = Full::new(Bytes::from("all"));
        let mut body = held(layer.hold(UntilBodyEnd::default()), body).await;
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!is_free(&stores, "ann").await);
        assert!(reads(&mut body, "all").await && body.is_end_stream());
        becomes_free(&stores, "ann").await;
        drop(body);
    });
}

async fn empty_bodies(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let mut body = held(layer.hold(UntilBodyEnd::default()), Empty::<Bytes>::new()).await;
        assert!(body.is_end_stream() && body.frame().await.is_none());
        becomes_free(&stores, "ann").await;
        drop(body);
    });
}

async fn until_the_head(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let (sender, body) = slow();
        let service = layer.hold(UntilBodyEnd::default()).until_response().layer(answers(body));
        let mut body: Slow = service.oneshot("ann").await.unwrap().into_body();
        becomes_free(&stores, "ann").await;
        sender.unbounded_send(data("one")).unwrap();
        assert!(reads(&mut body, "one").await);
    });
}

async fn errors_have_no_body(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let fails = service_fn(async |_| Err::<Response<Slow>, BoxError>("out of order".into()));
        let error = layer.hold(UntilBodyEnd::default()).layer(fails).oneshot("ann").await.err().unwrap();
        assert_eq!(error.to_string(), "out of order");
        becomes_free(&stores, "ann").await;
    });
}
