//! Connections that are upgraded over hyper: by 101 Switching Protocols, and by CONNECT.

use std::convert::Infallible;

use futures::stream;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::{Layer as _, service_fn};
use tower_distributed::LeaseHandle;
use tower_distributed::response::UntilBodyEnd;
use tower_distributed::web::InsertLease;

use crate::families::{becomes_free, is_free, on_each_layer};
use crate::net::serve_each as serve;
use crate::stores::{Stores, on_each_store};

on_each_store!(the_lease_ends_unless_the_handler_takes_it_along);

/// A body that never ends, which no server sends here.
type Tunnel = StreamBody<stream::Pending<Result<Frame<Bytes>, Infallible>>>;

fn by_ann(_: &Request<Incoming>) -> &'static str {
    "ann"
}

/// Upgrades the connection, and echoes what comes until it is closed.
async fn echo(mut request: Request<Incoming>, take: bool) -> Result<Response<Tunnel>, Infallible> {
    let lease: Option<&LeaseHandle> = request.extensions().get();
    let lease = lease.filter(|_| take).map(|lease| lease.take().unwrap());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let _lease = lease;
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        // Fails where the client goes away.
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    let mut response = Response::new(StreamBody::new(stream::pending()));
    if request.method() != Method::CONNECT {
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        response
            .headers_mut()
            .insert(header::UPGRADE, HeaderValue::from_static("echo"));
    }
    Ok(response)
}

/// A connection that a server has upgraded.
struct Echo(TokioIo<Upgraded>);

impl Echo {
    async fn open(url: &str, method: Method) -> Self {
        let address = url.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let uri = if method == Method::CONNECT {
            "example.com:443"
        } else {
            "/"
        };
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, "example.com")
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, "echo")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        Self(TokioIo::new(hyper::upgrade::on(response).await.unwrap()))
    }

    async fn says(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
        let mut echo = vec![0; text.len()];
        self.0.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, text.as_bytes());
    }
}

async fn the_lease_ends_unless_the_handler_takes_it_along(stores: Stores) {
    on_each_layer!(stores, by_ann, |layer| {
        let layer = layer.hold(UntilBodyEnd::default()).on_lease(InsertLease);
        for takes in [false, true] {
            let url = serve(layer.layer(service_fn(move |request| echo(request, takes)))).await;
            // By 101 Switching Protocols, and by a response to CONNECT.
            for method in [Method::GET, Method::CONNECT] {
                let mut connection = Echo::open(&url, method).await;
                for text in ["one", "two"] {
                    connection.says(text).await;
                    if takes {
                        assert!(!is_free(&stores, "ann").await);
                    } else {
                        becomes_free(&stores, "ann").await;
                    }
                }
                drop(connection);
                becomes_free(&stores, "ann").await;
            }
        }
    });
}
