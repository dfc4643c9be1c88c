//! What HTTP and gRPC responses say about a service.

use http::Response;

use super::{Classify, HttpSignals, Signal};

impl<B, E> Classify<Response<B>, E> for HttpSignals {
    fn classify(&self, outcome: &Result<Response<B>, E>) -> Signal {
        let Ok(response) = outcome else { return Signal::Overload };
        match response.status().as_u16() {
            408 | 429 | 503 | 504 => return Signal::Overload,
            500.. => return Signal::Ignore,
            _ => {}
        }
        match response.headers().get("grpc-status").map(|status| status.as_bytes()) {
            Some(b"4" | b"8" | b"14") => Signal::Overload,
            Some(b"1" | b"2" | b"12" | b"13" | b"15") => Signal::Ignore,
            _ => Signal::Success,
        }
    }
}
