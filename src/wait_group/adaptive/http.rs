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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_classified() {
        let of = |status: u16, grpc: &str| {
            let response = Response::builder().status(status);
            let response = if grpc.is_empty() { response } else { response.header("grpc-status", grpc) };
            HttpSignals.classify(&response.body(()).map_err(drop))
        };
        for (status, signal) in [
            (200, Signal::Success),
            (404, Signal::Success),
            (408, Signal::Overload),
            (429, Signal::Overload),
            (500, Signal::Ignore),
            (503, Signal::Overload),
            (504, Signal::Overload),
        ] {
            assert_eq!(of(status, ""), signal, "{status}");
        }
        for (code, signal) in [
            ("0", Signal::Success),
            ("5", Signal::Success),
            ("4", Signal::Overload),
            ("8", Signal::Overload),
            ("14", Signal::Overload),
            ("13", Signal::Ignore),
            ("1", Signal::Ignore),
        ] {
            assert_eq!(of(200, code), signal, "{code}");
        }
        assert_eq!(HttpSignals.classify(&Err::<Response<()>, _>(())), Signal::Overload);
    }
}
