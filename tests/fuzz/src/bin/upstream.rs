//! What an upstream says of its limit.
#![no_main]

use http::StatusCode;
use tower_distributed::response::{RetryAfter, UpstreamLimits};
use tower_distributed_fuzz::fields;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let headers = fields(data);
    for status in [
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::FORBIDDEN,
    ] {
        let _ = UpstreamLimits::default().read(status, &headers);
        let _ = RetryAfter::default().read(status, &headers);
    }
    let _ = tower_distributed::grpc::RetryInfo::default().read(&headers);
});
