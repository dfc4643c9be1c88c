//! [`RetryInfo`]: reads the time to wait that an upstream requests from the status of a refused call.

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, Response};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::error::Error;
use crate::layers::rate_limit::hooks::{Block, BlockOnResponse};

/// Blocks a key when the upstream refuses with a status that has `google.rpc.RetryInfo`: for
/// [`block_on_response`](crate::RateLimitLayer::block_on_response) around a channel.
///
/// It reads the status of trailers-only responses, the form of all refusals without a message. Details that cannot be
/// read are ignored, and counted in the event `upstream_field_ignored`. A longer time is reduced to 5 min;
/// [`at_most`](Self::at_most) sets another maximum.
///
/// ```
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(100))?;
/// let limit = RateLimitLayer::new(bucket, |_: &http::Request<tonic::body::Body>| "orders")
///     .block_on_response(grpc::RetryInfo::default());
/// # let _: RateLimitLayer<_, http::Response<tonic::body::Body>> = limit;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RetryInfo {
    longest: Duration,
}

impl Default for RetryInfo {
    fn default() -> Self {
        Self {
            longest: Block::LONGEST,
        }
    }
}

impl RetryInfo {
    /// Sets the maximum. Default: 5 min.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_distributed::grpc::RetryInfo;
    ///
    /// let believed = RetryInfo::at_most(Duration::from_secs(60))?;
    /// assert!(RetryInfo::at_most(Duration::ZERO).is_err_and(|error| error.is_invalid()));
    /// # let _ = believed;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not 1 s to 366 days.
    pub fn at_most(longest: Duration) -> Result<Self, Error> {
        Ok(Self {
            longest: Block::longest(longest)?,
        })
    }

    /// Returns the time to wait that the status in these header fields requests. No time if the status requests none,
    /// or if the call succeeded.
    #[must_use]
    pub fn read(&self, headers: &HeaderMap) -> Block {
        // Most responses have no details.
        let Some(details) = headers.get("grpc-status-details-bin") else {
            return Block::default();
        };
        if headers
            .get("grpc-status")
            .is_none_or(|status| status == "0")
        {
            return Block::default();
        }
        // Not `Status::from_header_map`, which panics on details that are not base64.
        let details = ENGINE.decode(details).ok();
        let status = details.map(|details| Status::with_details(Code::Unknown, "", details.into()));
        let Some(details) = status.and_then(|status| status.check_error_details().ok()) else {
            return Block {
                duration: None,
                ignored: 1,
            };
        };
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        delay
            .map(|delay| delay.min(self.longest))
            .filter(|delay| !delay.is_zero())
            .into()
    }
}

/// The padding is optional in the protocol.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

impl<B> BlockOnResponse<Response<B>> for RetryInfo {
    fn block_on_response(&self, response: &Response<B>) -> Block {
        self.read(response.headers())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    fn told(after: Option<Duration>) -> Response<()> {
        let details = ErrorDetails::with_retry_info(after);
        Status::with_error_details(Code::ResourceExhausted, "later", details).into_http()
    }

    #[test]
    fn the_delay_is_read_and_capped() {
        let read =
            |response: &Response<()>| RetryInfo::default().block_on_response(response).duration();
        assert_eq!(
            read(&told(Some(Duration::from_millis(1500)))),
            Some(Duration::from_millis(1500))
        );
        assert_eq!(
            read(&told(Some(Duration::from_secs(1_000_000_000)))),
            Some(Duration::from_secs(300))
        );
        assert_eq!(
            read(&told(None)).or(read(&told(Some(Duration::ZERO)))),
            None
        );
        assert_eq!(read(&Status::resource_exhausted("later").into_http()), None);
    }

    #[test]
    fn broken_details_are_ignored() {
        for details in [
            "",
            "*",
            "CAgSBWxhdGVyGv",
            "////////////////",
            &"A".repeat(60_000),
        ] {
            let mut response = told(Some(Duration::from_secs(1)));
            response.headers_mut().insert(
                "grpc-status-details-bin",
                HeaderValue::from_str(details).unwrap(),
            );
            let block = RetryInfo::default().block_on_response(&response);
            assert_eq!(
                (block.duration(), block.ignored()),
                (None, u64::from(!details.is_empty())),
                "{details:.20}"
            );
        }
    }
}
