//! What HTTP and gRPC responses say about a service.

mod watched_body;

use http::Response;

pub use self::watched_body::WatchedBody;

use super::{Classify, HttpSignals, Signal};

impl<B, E> Classify<Response<B>, E> for HttpSignals {
    fn classify(&self, outcome: &Result<Response<B>, E>) -> Signal {
        let Ok(response) = outcome else { return Signal::Overload };
        match response.status().as_u16() {
            503 | 504 => return Signal::Overload,
            ..200 | 400.. => return Signal::Ignore,
            _ => {}
        }
        match response.headers().get("grpc-status").map(|status| status.as_bytes()) {
            None | Some(b"0") => Signal::Success,
            Some(b"14") => Signal::Overload,
            Some(_) => Signal::Ignore,
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
            (304, Signal::Success),
            (101, Signal::Ignore),
            (404, Signal::Ignore),
            (408, Signal::Ignore),
            (429, Signal::Ignore),
            (500, Signal::Ignore),
            (503, Signal::Overload),
            (504, Signal::Overload),
        ] {
            assert_eq!(of(status, ""), signal, "{status}");
        }
        for (code, signal) in [
            ("0", Signal::Success),
            ("5", Signal::Ignore),
            ("4", Signal::Ignore),
            ("8", Signal::Ignore),
            ("14", Signal::Overload),
            ("13", Signal::Ignore),
            ("1", Signal::Ignore),
        ] {
            assert_eq!(of(200, code), signal, "{code}");
        }
        assert_eq!(HttpSignals.classify(&Err::<Response<()>, _>(())), Signal::Overload);
    }
}
