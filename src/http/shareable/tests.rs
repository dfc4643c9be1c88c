use http::Response;

use super::*;

mod freshness;

fn shareable(status: u16, fields: &[(&'static str, &'static str)]) -> bool {
    let (mut parts, ()) = Response::new(()).into_parts();
    parts.status = StatusCode::from_u16(status).unwrap();
    for (name, value) in fields {
        parts.headers.append(*name, HeaderValue::from_static(value));
    }
    is_shareable(&parts)
}

#[test]
fn statuses_that_tell_of_the_resource_are_shared() {
    for status in [
        200, 201, 202, 203, 204, 300, 301, 302, 303, 307, 308, 404, 410,
    ] {
        assert!(shareable(status, &[]), "{status}");
    }
    for status in [
        101, 206, 226, 304, 400, 401, 403, 405, 407, 408, 412, 416, 425, 429, 431, 451, 500, 503,
        700,
    ] {
        assert!(!shareable(status, &[]), "{status}");
    }
}

#[test]
fn what_is_for_one_client_is_not_shared() {
    let fields = "set-cookie www-authenticate authentication-info proxy-authenticate proxy-authentication-info";
    for field in fields.split(' ') {
        assert!(!shareable(200, &[(field, "x")]), "{field}");
    }
}

#[test]
fn the_origin_can_forbid_it() {
    for value in "private|no-store|No-Store|max-age=0,private|private=\"x-user\"|public , no-cache"
        .split('|')
    {
        assert!(!shareable(200, &[("cache-control", value)]), "{value}");
    }
    assert!(
        !shareable(
            200,
            &[("cache-control", "max-age=9"), ("cache-control", "private")]
        ),
        "the second line"
    );
    for value in "public|max-age=0, must-revalidate|x-private, no-store-but-not-quite|".split('|') {
        assert!(shareable(200, &[("cache-control", value)]), "{value}");
    }
    assert!(!shareable(200, &[("vary", "*")]));
    assert!(!shareable(
        200,
        &[("vary", "accept"), ("vary", "origin, *")]
    ));
    assert!(shareable(200, &[("vary", "accept, origin")]));
}

#[test]
fn streams_are_not_shared() {
    let streams = "text/event-stream|Text/Event-Stream; charset=utf-8|application/grpc|application/grpc+proto|\
         application/gRPC-web|multipart/x-mixed-replace; boundary=frame|application/x-ndjson";
    for value in streams.split('|') {
        assert!(!shareable(200, &[("content-type", value)]), "{value}");
    }
    for value in
        "text/html|application/json; profile=application/grpc|multipart/form-data; boundary=x"
            .split('|')
    {
        assert!(shareable(200, &[("content-type", value)]), "{value}");
    }
}
