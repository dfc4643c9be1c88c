//! Key extractors over any requests: a request whose key has a part that is always there has a key, or is refused.
#![no_main]

use std::net::IpAddr;

use tower_distributed::extract::{
    bearer, client_ip, cookie, grpc_method, grpc_service, header, host, path, path_and_query,
    query, shared_get,
};
use tower_distributed::{Extracted, KeyExtractor};
use tower_distributed_fuzz::request;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(mut request) = request(data) else {
        return;
    };
    request
        .extensions_mut()
        .insert(IpAddr::from([192, 0, 2, 7]));
    let _ = shared_get().extract(&request);
    let _ = bearer(|token: &str| token.to_owned()).extract(&request);
    let _ = (
        grpc_service().extract(&request),
        grpc_method().extract(&request),
        host().extract(&request),
    );
    let _ = (
        path_and_query().extract(&request),
        query("q").extract(&request),
    );
    let (Ok(tenant), Ok(session)) = (header("x-tenant"), cookie("session")) else {
        return;
    };
    let _ = (
        tenant.clone().plain().extract(&request),
        session.or(tenant.clone()).extract(&request),
    );
    // A part of the key is always there: a request has a key, or is refused.
    let Extracted::Ready(key) = tenant
        .optional()
        .and(path())
        .and(client_ip())
        .extract(&request)
    else {
        return;
    };
    assert!(!matches!(key, Ok(None)), "{request:?}");
});
