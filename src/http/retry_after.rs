//! Reads the `Retry-After` of an upstream.

use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};

use crate::error::Error;
use crate::http::origin::Origin;
use crate::http::values::{texts, wait};
use crate::layers::rate_limit::hooks::{Block, BlockOnResponse};

#[cfg(test)]
mod tests;

/// Blocks a key when the upstream refuses a request with a time to wait: for
/// [`block_on_response`](crate::RateLimitLayer::block_on_response) around a client.
///
/// A response counts if its status is 400 to 599 and it has one of these fields; [`statuses`](Self::statuses) sets
/// other statuses. In a 2xx or 3xx response the field has another meaning, so these never count.
///
/// | field | |
/// |---|---|
/// | `retry-after-ms` | milliseconds; it takes precedence, because it is more precise |
/// | `Retry-After` | seconds, with or without a fraction; a time with units, such as `1m30s`; a date of HTTP or RFC 3339, counted from the `Date` of the response, or without it from the clock of this machine |
///
/// If the response comes from a cache, its `Age` is subtracted. A value that cannot be read is ignored, and counted in
/// the event `upstream_field_ignored`.
///
/// A longer time is reduced to 5 min, so that no upstream can stop a fleet for years; [`at_most`](Self::at_most) sets
/// another maximum. For a client whose responses are not [`http::Response`]s, such as reqwest, [`read`](Self::read)
/// takes the status and the header fields:
///
/// ```
/// use reqwest::{Request, Response};
/// use tower_distributed::{Quota, RateLimitLayer, Store, TokenBucket, response::RetryAfter};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// let bucket = TokenBucket::new(&Store::in_memory(), "upstreams", Quota::per_second(10))?;
/// let per_host = RateLimitLayer::new(bucket, |request: &Request| request.url().host_str().map(str::to_owned))
///     .block_on_response(|response: &Response| RetryAfter::default().read(response.status(), response.headers()));
/// # let _ = per_host;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RetryAfter {
    longest: Duration,
    /// `None`: all from 400 to 599.
    statuses: Option<Statuses>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            longest: Block::LONGEST,
            statuses: None,
        }
    }
}

impl RetryAfter {
    /// Sets the maximum. Default: 5 min.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tower_distributed::response::RetryAfter;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("retry-after", "3600".parse().unwrap());
    /// let asked = RetryAfter::at_most(Duration::from_secs(60))?.read(StatusCode::TOO_MANY_REQUESTS, &headers);
    /// assert_eq!(asked.duration(), Some(Duration::from_secs(60)));
    /// assert!(RetryAfter::at_most(Duration::ZERO).is_err_and(|error| error.is_invalid()));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if it is not 1 s to 366 days.
    pub fn at_most(longest: Duration) -> Result<Self, Error> {
        Self::default().with_longest(longest)
    }

    pub(crate) fn with_longest(self, longest: Duration) -> Result<Self, Error> {
        Ok(Self {
            longest: Block::longest(longest)?,
            ..self
        })
    }

    /// Sets the statuses that count. Default: all from 400 to 599.
    ///
    /// ```
    /// use http::StatusCode;
    /// use tower_distributed::response::RetryAfter;
    ///
    /// let refusals = RetryAfter::default().statuses([StatusCode::TOO_MANY_REQUESTS, StatusCode::FORBIDDEN])?;
    /// assert!(RetryAfter::default().statuses([StatusCode::FOUND]).is_err_and(|error| error.is_invalid()));
    /// # let _ = refusals;
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if one of them is not 400 to 599.
    pub fn statuses(self, statuses: impl IntoIterator<Item = StatusCode>) -> Result<Self, Error> {
        Ok(Self {
            statuses: Some(Statuses::new(statuses)?),
            ..self
        })
    }

    /// Returns the time to wait that the response requests.
    #[must_use]
    pub fn read(&self, status: StatusCode, headers: &HeaderMap) -> Block {
        let mut block = Block::default();
        if !self.counts(status) {
            return block;
        }
        for (name, unit) in [
            ("retry-after-ms", 1_000_000),
            ("retry-after", 1_000_000_000),
        ] {
            if !headers.contains_key(name) {
                continue;
            }
            let origin = Origin::of(headers);
            for text in texts(headers, name) {
                let Some(wait) = text.and_then(|text| wait(text, unit, origin.made)) else {
                    block.ignored += 1;
                    continue;
                };
                // If there are several, the longest applies.
                let left = wait.saturating_sub(origin.age).min(self.longest);
                block.duration = block.duration.max(Some(left));
            }
            if block.duration.is_some() {
                block.ignored += origin.ignored;
                break;
            }
        }
        block
    }

    fn counts(&self, status: StatusCode) -> bool {
        match &self.statuses {
            Some(statuses) => statuses.have(status),
            None => Statuses::place(status).is_some(),
        }
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Whether a response with this status is a refusal even without the fields.
    pub(crate) fn is_refusal(&self, status: StatusCode) -> bool {
        match &self.statuses {
            Some(statuses) => statuses.have(status),
            // GitHub refuses with 403.
            None => matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN
            ),
        }
    }
}

/// Some of the statuses from 400 to 599, a bit for each.
#[derive(Clone, Copy, Debug)]
struct Statuses([u64; 4]);

impl Statuses {
    fn new(statuses: impl IntoIterator<Item = StatusCode>) -> Result<Self, Error> {
        let mut bits = [0; 4];
        for status in statuses {
            let place = Self::place(status).ok_or_else(|| {
                let status = status.as_u16();
                Error::invalid(format!(
                    "the status of a refusal must be 400 to 599, is {status}"
                ))
            })?;
            bits[place / 64] |= 1 << (place % 64);
        }
        Ok(Self(bits))
    }

    fn place(status: StatusCode) -> Option<usize> {
        usize::from(status.as_u16())
            .checked_sub(400)
            .filter(|place| *place < 200)
    }

    fn have(&self, status: StatusCode) -> bool {
        Self::place(status).is_some_and(|place| self.0[place / 64] & (1 << (place % 64)) != 0)
    }
}

impl<B> BlockOnResponse<Response<B>> for RetryAfter {
    fn block_on_response(&self, response: &Response<B>) -> Block {
        self.read(response.status(), response.headers())
    }
}
