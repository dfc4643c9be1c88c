//! [`token_budget`](fn@crate::grpc::token_budget), and the count of the messages in the body of a call.

use bytes::Bytes;
use http::Request;

use crate::grpc::{Refuse, refuse};
use crate::http::layers;
use crate::http::meter::MeterBody;
use crate::layers::budget::{BudgetLayer, Estimate};
use crate::layers::key::{Cost, KeyExtractor};
use crate::layers::rate_limit::keys::KeyExtractors;
use crate::token_bucket::TokenBucket;
use crate::token_bucket::hold::Usage;
use crate::token_bucket::limits::TokenBuckets;

/// A [`BudgetLayer`] for gRPC: like [`web::token_budget`](crate::web::token_budget), but refusals are statuses. The
/// handler gets the [`Usage`] as an extension.
///
/// ```
/// use tower_distributed::response::MeterBody;
/// use tower_distributed::{Quota, Store, TokenBucket, extract, grpc};
///
/// # fn main() -> Result<(), tower_distributed::Error> {
/// // 10 000 messages in a minute for each tenant; a stream holds 100, and is charged for the sent ones.
/// let messages = TokenBucket::new(&Store::in_memory(), "messages", Quota::per_minute(10_000))?;
/// let budget = grpc::token_budget(messages, extract::header("x-tenant")?, |_: &http::Request<tonic::body::Body>| 100)
///     .meter(MeterBody::default().frames(grpc::count_messages()));
/// let server = tonic::transport::Server::builder().layer(budget);
/// # Ok(()) }
/// ```
#[must_use]
pub fn token_budget<B>(
    bucket: TokenBucket,
    key: impl KeyExtractor<Request<B>> + Send + Sync + 'static,
    estimate: impl Cost<Request<B>> + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse> {
    layers::token_budget(bucket, key, estimate).reject_with(refuse())
}

/// Budgets of several limits for gRPC: a call holds tokens of all of them or of none, in one step. Like
/// [`web::token_budgets`](crate::web::token_budgets), but refusals are statuses.
#[must_use]
pub fn token_budgets<B, K, const N: usize>(
    limits: TokenBuckets<N>,
    keys: K,
    estimate: impl Fn(&Request<B>) -> [Estimate; N] + Send + Sync + 'static,
) -> BudgetLayer<Request<B>, MeterBody, Refuse>
where
    K: KeyExtractors<Request<B>, N>,
{
    layers::token_budgets(limits, keys, estimate).reject_with(refuse())
}

/// For [`MeterBody::frames`]: each gRPC message of a body counts 1 when its last byte is sent. A message that is not
/// sent completely, because the client left, counts nothing, and neither do the trailers in a body of gRPC-Web. From
/// the first frame on, only sent messages count: a stream that breaks off does not cost the estimate.
pub fn count_messages() -> impl FnMut(&Bytes, &Usage) + Clone + Send + Sync + 'static {
    let mut messages = Messages::default();
    move |data, usage| {
        usage.add(messages.ended_in(data));
    }
}

/// The part of the current message that was already sent: a flag, the length (4 bytes), and that number of bytes.
/// Source: *gRPC over HTTP2*, `Length-Prefixed-Message`,
/// <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.
#[derive(Clone, Default)]
struct Messages {
    prefix: [u8; 5],
    /// How many bytes of the prefix were sent.
    known: usize,
    /// How many bytes after the prefix remain.
    left: usize,
}

impl Messages {
    /// Returns how many messages end in this data.
    fn ended_in(&mut self, mut data: &[u8]) -> u32 {
        let mut count = 0_u32;
        while !data.is_empty() {
            let wanted = if self.known < 5 {
                5 - self.known
            } else {
                self.left
            };
            let (passed, rest) = data.split_at(wanted.min(data.len()));
            data = rest;
            if self.known < 5 {
                self.prefix[self.known..self.known + passed.len()].copy_from_slice(passed);
                self.known += passed.len();
                let [_, a, b, c, d] = self.prefix;
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
            } else {
                self.left -= passed.len();
            }
            if self.known == 5 && self.left == 0 {
                let is_message = self.prefix[0] & TRAILERS == 0;
                (self.known, count) = (0, count.saturating_add(is_message.into()));
            }
        }
        count
    }
}

/// The flag of trailers. Source: *gRPC Web*, <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md>.
const TRAILERS: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages with these lengths.
    fn body(lengths: &[u32]) -> Vec<u8> {
        let message = |length: &u32| {
            let prefix = [&[0][..], &length.to_be_bytes()].concat();
            [prefix, vec![0; *length as usize]].concat()
        };
        lengths.iter().flat_map(message).collect()
    }

    #[test]
    fn messages_count_however_they_are_cut() {
        let body = body(&[0, 1, 300, 0, 7]);
        for size in 1..body.len() + 1 {
            let mut messages = Messages::default();
            let counts: Vec<_> = body
                .chunks(size)
                .map(|chunk| messages.ended_in(chunk))
                .collect();
            assert_eq!(counts.iter().sum::<u32>(), 5, "in pieces of {size} bytes");
        }
    }

    #[test]
    fn trailers_of_grpc_web_are_no_message() {
        let mut count = count_messages();
        let usage = Usage::default();
        count(&Bytes::from_static(&[0, 0, 0]), &usage);
        assert_eq!(usage.get(), Some(0), "nothing has ended, but it is counted");
        count(
            &Bytes::from_static(&[0, 1, 7, 0x80, 0, 0, 0, 2, 1, 2]),
            &usage,
        );
        assert_eq!(usage.get(), Some(1));
    }

    #[test]
    fn a_message_counts_with_its_last_byte() {
        let mut messages = Messages::default();
        let body = body(&[3, 0]);
        let parts = [&body[..7], &body[7..8], &body[8..12], &body[12..]];
        assert_eq!(parts.map(|part| messages.ended_in(part)), [0, 1, 0, 1]);
        // The maximum length in the prefix.
        assert_eq!(messages.ended_in(&[0, 255, 255, 255, 255, 9]), 0);
        assert_eq!(messages.left, u32::MAX as usize - 1);
    }
}
