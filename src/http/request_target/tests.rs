use http_body_util::{Empty, Full};

use super::*;
use bytes::Bytes;

fn keyed<B: Body>(by: &RequestTarget, request: http::request::Builder, body: B) -> Option<Key> {
    by.extract(&request.body(body).unwrap())
}

fn key(request: http::request::Builder) -> Option<Key> {
    keyed(&request_target(), request, Empty::<Bytes>::new())
}

#[test]
fn the_key_is_method_scheme_host_path_and_query() {
    let expected = Some(Key::from("GET https example.com:8443 /a/B?q=%20&Q"));
    assert_eq!(key(Request::get("https://Example.com:8443/a/B?q=%20&Q")), expected);
    assert_eq!(key(Request::get("/a?b").header("host", "Example.com")), Some("GET  example.com /a?b".into()));
    assert_eq!(key(Request::get("/")), Some("GET   /".into()));
    assert_eq!(key(Request::head("http://a")), Some("HEAD http a /".into()));

    let all = [
        "http://a/",
        "https://a/",
        "http://b/",
        "http://a/?",
        "http://a/?b",
        "http://a/b",
        "http://a/B",
        "/",
    ];
    let keys: std::collections::HashSet<_> = all.iter().map(|uri| key(Request::get(*uri)).unwrap()).collect();
    assert_eq!(keys.len(), all.len());
}

#[test]
fn a_host_cannot_pose_as_another_target() {
    let asked = |host: &str, path: &str| key(Request::get(path).header("host", host)).unwrap();
    assert_ne!(asked("a/b", "/c"), asked("a", "/b/c"));
    assert_ne!(asked("a /b", "/c"), asked("a", "/b/c"));
    assert_ne!(asked("http a", "/"), key(Request::get("http://a/")).unwrap());
    assert_ne!(asked(" a", "/"), asked("a", "/"));
}

#[test]
fn several_hosts_make_no_key() {
    assert_eq!(key(Request::get("/").header("host", "a").header("host", "b")), None);
    assert_eq!(key(Request::get("http://a/").header("host", "b")), None);
    assert_eq!(key(Request::get("http://a/").header("host", "A")), Some("GET http a /".into()));
}

#[test]
fn only_get_and_head_have_keys() {
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "get"] {
        assert_eq!(key(Request::builder().method(method).uri("/")), None, "{method}");
    }
}

#[test]
fn what_may_be_private_has_no_key() {
    for field in ["authorization", "proxy-authorization", "cookie"] {
        assert_eq!(key(Request::get("/").header(field, "")), None, "{field}");
    }
    assert_eq!(key(Request::get("http://ann:secret@a/")), None);
}

#[test]
fn what_asks_for_something_of_its_own_has_no_key() {
    for field in [
        "range",
        "if-match",
        "if-none-match",
        "if-modified-since",
        "if-unmodified-since",
        "if-range",
        "upgrade",
    ] {
        assert_eq!(key(Request::get("/").header(field, "x")), None, "{field}");
    }
    let get = || Request::get("/");
    assert_eq!(keyed(&request_target(), get(), Full::new(Bytes::from_static(b"body"))), None);
    assert!(keyed(&request_target(), get(), String::new()).is_some());
    assert!(keyed(&request_target(), get(), axum::body::Body::empty()).is_some());
    assert!(keyed(&request_target(), get(), reqwest::Body::from("")).is_some());
}

#[test]
fn a_client_can_ask_not_to_share() {
    for value in ["no-store", "no-cache", "max-age=0, No-Cache"] {
        assert_eq!(key(Request::get("/").header("cache-control", value)), None, "{value}");
    }
    assert!(key(Request::get("/").header("cache-control", "max-age=0")).is_some());
}

#[test]
fn named_fields_make_a_request_private() {
    let by = request_target().private_if("X-Api-Key").unwrap().private_if("x-user").unwrap();
    let with = |field: &str| keyed(&by, Request::get("/").header(field, "7"), String::new());
    assert_eq!(with("x-api-key"), None);
    assert_eq!(with("x-user"), None);
    assert!(with("x-other").is_some());
    assert!(key(Request::get("/").header("x-api-key", "7")).is_some(), "it is not known to be private");

    let error = request_target().private_if("x api key").unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("\"x api key\""), "{error}");
}

#[test]
fn a_port_makes_a_difference_to_clients_only() {
    let key_of = |host: &str| key(Request::get("/a").header(HOST, host)).unwrap();
    for (host, name) in [("a.com:80", "a.com"), ("[::1]:3000", "[::1]"), ("[::1]", "[::1]"), ("a:b", "a:b")] {
        assert_eq!(key_of(host), Key::from(format!("GET  {name} /a")), "{host}");
    }
    assert_eq!(key(Request::get("http://a.com:8001/a")), Some("GET http a.com:8001 /a".into()));
}

#[test]
fn the_uri_can_be_one_that_was_put_aside() {
    #[derive(Clone)]
    struct Whole(Uri);

    let by = request_target().uri(|whole: &Whole| &whole.0);
    let keyed = |request| keyed(&by, request, String::new()).unwrap();
    let whole = Request::get("/prices").extension(Whole(Uri::from_static("/v1/prices?of=tea")));
    assert_eq!(keyed(whole), "GET   /v1/prices?of=tea".into());
    assert_eq!(keyed(Request::get("/prices")), "GET   /prices".into());
}
