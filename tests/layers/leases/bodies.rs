//! Leases that are held to the end of a response's body.

use std::io;
use std::sync::{Arc, Mutex};

use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service, ServiceExt as _, service_fn};
use tower_distributed::response::{LeasedBody, UntilBodyEnd};

use crate::families::{becomes_free, by_name, is_free, on_each_layer};
use crate::stores::{Stores, on_each_store};

on_each_store!(held_to_the_end, held_to_the_head);

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

fn responds<B: Send + 'static>(response: Response<B>) -> Answers<B> {
    let response = Arc::new(Mutex::new(Some(response)));
    BoxCloneService::new(service_fn(move |_| {
        std::future::ready(Ok(response
            .lock()
            .unwrap()
            .take()
            .expect("it answers once")))
    }))
}

/// The body of the response to `ann`, which holds its lease.
pub(crate) async fn held<B: Send + 'static, L: Layer<Answers<B>>>(
    layer: L,
    body: B,
) -> LeasedBody<B>
where
    L::Service: Service<&'static str, Response = Response<LeasedBody<B>>, Error = BoxError>,
{
    layer
        .layer(answers(body))
        .oneshot("ann")
        .await
        .unwrap()
        .into_body()
}

/// The same, with a body that is sent frame by frame.
pub(crate) async fn streamed<L: Layer<Answers<Slow>>>(
    layer: L,
) -> (UnboundedSender<Frames>, LeasedBody<Slow>)
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

/// What becomes of a body of which two frames were read, or none.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Read,
    Failed,
    Dropped,
    DroppedUnread,
}

async fn held_to_the_end(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        for end in [End::Read, End::Failed, End::Dropped, End::DroppedUnread] {
            let (sender, mut body) = streamed(layer.clone().hold(UntilBodyEnd::default())).await;
            let texts: &[&'static str] = if end == End::DroppedUnread {
                &[]
            } else {
                &["one", "two"]
            };
            for &text in texts {
                assert!(!is_free(&stores, "ann").await);
                sender.unbounded_send(data(text)).unwrap();
                assert!(reads(&mut body, text).await && !body.is_end_stream());
            }
            assert!(
                !is_free(&stores, "ann").await,
                "nobody knows yet that it was the last"
            );
            match end {
                End::Read => {
                    drop(sender);
                    assert!(body.frame().await.is_none());
                    becomes_free(&stores, "ann").await;
                    assert!(body.frame().await.is_none());
                }
                End::Failed => {
                    sender
                        .unbounded_send(Err(io::ErrorKind::BrokenPipe.into()))
                        .unwrap();
                    let error = body.frame().await.unwrap().unwrap_err();
                    assert_eq!(
                        error.downcast_ref::<io::Error>().unwrap().kind(),
                        io::ErrorKind::BrokenPipe
                    );
                    becomes_free(&stores, "ann").await;
                }
                End::Dropped | End::DroppedUnread => {
                    drop(body);
                    becomes_free(&stores, "ann").await;
                }
            }
        }
        let all = Full::new(Bytes::from("all"));
        let mut body = held(layer.hold(UntilBodyEnd::default()), all).await;
        assert_eq!(body.size_hint().exact(), Some(3));
        assert!(!is_free(&stores, "ann").await);
        assert!(
            reads(&mut body, "all").await && body.is_end_stream(),
            "known by its last frame"
        );
        becomes_free(&stores, "ann").await;
        drop(body);
    });
}

/// Empty bodies, those of upgrades, what is to be held until the head, and errors.
async fn held_to_the_head(stores: Stores) {
    on_each_layer!(stores, by_name, |layer| {
        let layer = layer.hold(UntilBodyEnd::default());
        let mut empty = held(layer.clone(), Empty::<Bytes>::new()).await;
        assert!(empty.is_end_stream() && empty.frame().await.is_none());
        becomes_free(&stores, "ann").await;

        let (_sender, body) = slow();
        let mut upgrade = Response::new(body);
        *upgrade.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let upgrade = layer.layer(responds(upgrade)).oneshot("ann").await.unwrap();
        becomes_free(&stores, "ann").await;

        let (sender, body) = slow();
        let service = layer.clone().until_response().layer(answers(body));
        let mut body: Slow = service.oneshot("ann").await.unwrap().into_body();
        becomes_free(&stores, "ann").await;
        sender.unbounded_send(data("one")).unwrap();
        assert!(reads(&mut body, "one").await);

        let fails = service_fn(async |_| Err::<Response<Slow>, BoxError>("out of order".into()));
        let error = layer.layer(fails).oneshot("ann").await.err().unwrap();
        assert_eq!(error.to_string(), "out of order");
        becomes_free(&stores, "ann").await;
        drop((empty, upgrade));
    });
}
