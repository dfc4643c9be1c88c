//! Classifies HTTP and gRPC responses.

pub(crate) mod watched_body;

use http::Response;

use crate::adaptive::{Classify, HttpSignals, Signal};

impl<B, E> Classify<Response<B>, E> for HttpSignals {
    fn classify(&self, outcome: &Result<Response<B>, E>) -> Signal {
        let Ok(response) = outcome else {
            return Signal::Overload;
        };
        match response.status().as_u16() {
            503 | 504 => return Signal::Overload,
            ..200 | 400.. => return Signal::Ignore,
            _ => {}
        }
        match response
            .headers()
            .get("grpc-status")
            .map(|status| status.as_bytes())
        {
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
            let response = if grpc.is_empty() {
                response
            } else {
                response.header("grpc-status", grpc)
            };
            HttpSignals.classify(&response.body(()).map_err(drop))
        };
        for (signal, statuses, codes) in [
            (Signal::Success, &[200, 304][..], &["0"][..]),
            (
                Signal::Ignore,
                &[101, 404, 408, 429, 500],
                &["5", "4", "8", "13", "1"],
            ),
            (Signal::Overload, &[503, 504], &["14"]),
        ] {
            for status in statuses {
                assert_eq!(of(*status, ""), signal, "{status}");
            }
            for code in codes {
                assert_eq!(of(200, code), signal, "{code}");
            }
        }
        assert_eq!(
            HttpSignals.classify(&Err::<Response<()>, _>(())),
            Signal::Overload
        );
    }
}
