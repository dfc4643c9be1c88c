//! What a large answer takes of memory: where it is read, stored, and read again elsewhere, and while slow clients have it.

use std::convert::Infallible;
use std::fs;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use http::{Request, Response};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::extract::shared_get;
use tower_distributed::response::{AnswerCodec, Responses};
use tower_distributed::web::single_flight;
use tower_distributed::{SingleFlight, Store};

use crate::common::Bench;
use crate::common::report::{figure, note};

const PEAK: &str = "large-answer-peak-factor";
const HELD: &str = "large-answer-held-factor";
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 63 * 16;
const READERS: usize = 32;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(PEAK) && !bench.settings.wants(HELD) {
        return;
    }
    bench.server.empty();
    let (peak, held) = bench.runtime.block_on(large(&bench.server.url));
    let size = (CHUNK * CHUNKS) as f64;
    note(format!(
        "An answer of {size} bytes, {READERS} callers over 2 stores of one process: {:.0} MiB at the peak, {:.0} MiB while \
         all of them have it",
        peak / f64::from(1 << 20),
        held / f64::from(1 << 20)
    ));
    figure(
        PEAK,
        "memory at the peak ÷ size of an answer of 63 MiB, 32 callers over 2 stores",
        peak / size,
    );
    figure(
        HELD,
        "memory while all callers have it ÷ its size",
        held / size,
    );
}

/// How many bytes the process has taken, at its peak and then.
async fn large(url: &str) -> (f64, f64) {
    let services = [(); 2].map(|()| {
        let flight = SingleFlight::builder(AnswerCodec)
            .ttl(Duration::from_secs(60))
            .largest_answer(64 << 20);
        let flight = flight.build(&Store::redis(url).unwrap(), "large").unwrap();
        let layer = single_flight(flight, shared_get())
            .capture(Responses::default().largest_body(64 << 20));
        let answer = async |_: Request<Body>| {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // Each chunk is memory of its own, as that of a connection is.
            let chunks = stream::iter(0..CHUNKS)
                .map(|number| Ok::<_, Infallible>(Bytes::from(vec![number as u8; CHUNK])));
            Ok::<_, Infallible>(Response::new(Body::from_stream(chunks)))
        };
        ServiceBuilder::new()
            .layer(layer)
            .service(service_fn(answer))
    });
    let before = status("VmRSS:");
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let calls = (0..READERS).map(|number| {
        let request = Request::get("/")
            .header("host", "a.com")
            .body(Body::empty())
            .unwrap();
        tokio::spawn(services[number % 2].clone().oneshot(request))
    });
    let responses = join_all(calls).await;
    assert!(
        responses
            .iter()
            .all(|response| response.as_ref().unwrap().is_ok())
    );
    // What is stored is on its way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (peak, held) = (status("VmHWM:") - before, status("VmRSS:") - before);
    drop(responses);
    (peak, held)
}

/// A size of `/proc/self/status`, in bytes.
fn status(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}
