use std::net::{IpAddr, SocketAddr};

use http::Request;

use super::*;
use crate::error::Error;
use crate::key::Key;
use crate::layers::extract::{by, look_up};
use crate::layers::key::{Extracted, KeyExtractor};

/// A request with these fields, one a line.
fn request(fields: &str) -> Request<()> {
    let get = Request::get("/search?q=tea&q=cake&tenant=acme%20inc");
    let fields = fields.lines().map(|field| field.split_once(": ").unwrap());
    fields
        .fold(get, |request, (name, value)| request.header(name, value))
        .body(())
        .unwrap()
}

fn key(by: &impl KeyExtractor<Request<()>>, fields: &str) -> Option<Key> {
    by.extract(&request(fields)).now()
}

#[test]
fn credentials_do_not_become_names() {
    let by = header("x-api-key").unwrap();
    let hashed = key(&by, "x-api-key: secret").unwrap();
    assert!(
        !String::from_utf8_lossy(hashed.as_bytes()).contains("secret")
            && hashed.as_bytes().len() == 24
    );
    assert_eq!(key(&by, "X-API-Key: secret"), Some(hashed.clone()));
    assert_ne!(key(&by, "x-api-key: other"), Some(hashed.clone()));
    assert_eq!(key(&by.plain(), "x-api-key: secret"), Some("secret".into()));
    assert_eq!(
        key(&cookie("id").unwrap(), "cookie: a=b; id=secret"),
        Some(hashed)
    );
}

/// A service reads one of them; a key of its own for each would be a limit of its own for each.
#[test]
fn repeated_values_are_a_bad_request() {
    let api_key = || header("x-api-key").unwrap();
    let rows: [(&dyn KeyExtractor<Request<()>>, &str); 6] = [
        (&api_key(), "x-api-key: ann\nx-api-key: bob"),
        (
            &api_key().plain().or(method()),
            "x-api-key: ann\nx-api-key: ann",
        ),
        (&cookie("id").unwrap(), "cookie: id=ann; id=bob"),
        (&cookie("id").unwrap(), "cookie: id=ann\ncookie: id=bob"),
        (&query("q"), ""),
        (
            &bearer(|token: &str| token.to_owned()),
            "authorization: Bearer abc\nauthorization: Basic def",
        ),
    ];
    for (by, fields) in rows {
        let extracted = by.extract(&request(fields));
        assert!(
            matches!(&extracted, Extracted::Ready(Err(error)) if error.is_bad_request()),
            "{extracted:?}"
        );
    }
    assert_eq!(key(&query("tenant").plain(), ""), Some("acme inc".into()));
}

#[test]
fn spellings_of_a_cookie_have_one_key() {
    let by = cookie("id").unwrap().plain();
    for spelled in
        "id=abc|a=b; id=abc;c=d|id = abc|id=\"abc\"|id=%61b%63| id= \"%61bc\" ".split('|')
    {
        assert_eq!(
            key(&by, &format!("cookie: {spelled}")),
            Some("abc".into()),
            "{spelled}"
        );
    }
    assert_eq!(missing(&by, "cookie: ID=abc"), "the cookie id is missing");
}

/// The error of a request that lacks a part of its key.
#[track_caller]
fn missing(by: &impl KeyExtractor<Request<()>>, fields: &str) -> String {
    match by.extract(&request(fields)) {
        Extracted::Ready(Err(error)) if error.is_missing_part() => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_part_is_an_error_that_names_it() {
    assert_eq!(
        missing(&header("X-API-Key").unwrap(), ""),
        "the header field x-api-key is missing"
    );
    let cookies = "cookie: idx=1; xid=2; id";
    assert_eq!(
        missing(&cookie("id").unwrap(), cookies),
        "the cookie id is missing"
    );
    assert_eq!(
        missing(&query("nobody"), ""),
        "the query parameter nobody is missing"
    );
    assert_eq!(missing(&host(), ""), "the request has no host");
    assert_eq!(
        missing(&grpc_method(), ""),
        "the path is not that of a gRPC call"
    );
    assert_eq!(missing(&grpc_service(), ""), missing(&grpc_method(), ""));
    let by = bearer(|token: &str| token.to_owned());
    for fields in
        "|authorization: Basic abc|authorization: Bearer|authorization: bearertoken".split('|')
    {
        assert!(missing(&by, fields).contains("bearer token"), "{fields}");
    }
    assert_eq!(key(&by, "authorization: bEARER abc"), Some("abc".into()));
}

#[test]
fn combinators_keep_the_error_of_a_missing_part() {
    let tenant = || header("x-tenant").unwrap();
    for error in [
        missing(&method().and(tenant()), ""),
        missing(&tenant().and(method()), ""),
        missing(&(method(), tenant()), ""),
        missing(&tenant().prefixed("v1"), ""),
        missing(&tenant().map(|_: Key| None::<Key>), ""),
        missing(&tenant().skip_if(|_: &Request<()>| false), ""),
        missing(&query("nobody").or(tenant()), ""),
    ] {
        assert_eq!(error, "the header field x-tenant is missing");
    }
    // A request passes if a closure returns `None`.
    assert_eq!(
        key(&by(|_: &Request<()>| None::<Key>).and(tenant()), ""),
        None
    );
    assert_eq!(key(&tenant().skip_if(|_: &Request<()>| true), ""), None);
}

#[test]
fn an_alternative_is_used_where_a_part_is_missing() {
    let token = || bearer(|_: &str| None::<Key>).or(method());
    for key in [
        key(&header("a").unwrap().or(method()), ""),
        key(&cookie("a").unwrap().or(method()), ""),
        key(&query("a").or(method()), ""),
        key(&host().or(method()), ""),
        key(&grpc_method().or(method()), ""),
        key(&extension(|user: &u64| *user).or(method()), ""),
        key(&token(), ""),
        key(&token(), "authorization: Bearer abc"),
        key(&header("a").unwrap().and(method()).or(method()), ""),
    ] {
        assert_eq!(key, Some(Key::of(["or 2", "GET"])));
    }
    // If the server does not insert the address, no other value replaces it.
    let extracted = client_ip()
        .or(method())
        .extract(&request("x-forwarded-for: 1.1.1.1"));
    let Extracted::Ready(Err(error)) = extracted else {
        panic!("{extracted:?}")
    };
    let told = "into_make_service_with_connect_info";
    assert!(
        error.is_invalid() && error.to_string().contains(told),
        "{error}"
    );
}

/// For users who are not logged in, as in the documentation of [`extension`].
#[test]
fn the_address_is_used_where_there_is_no_user() {
    let by = extension(|user: &u64| *user).or(client_ip());
    let mut request = request("");
    request
        .extensions_mut()
        .insert(IpAddr::from([192, 0, 2, 7]));
    assert_eq!(by.extract(&request), Some(Key::of(["or 2", "192.0.2.7"])));
    request.extensions_mut().insert(7_u64);
    assert_eq!(by.extract(&request), Some(Key::of(["or 1", "7"])));
}

/// No value that a client sends has the key of the clients that send nothing.
#[test]
fn optional_parts_have_a_value_of_their_own() {
    let part = || header("a").unwrap().plain().optional();
    let sent = [None, Some(""), Some("-"), Some("1:x"), Some("x")];
    for by in [
        &part() as &dyn KeyExtractor<Request<()>>,
        &method().and(part()),
        &part().and(method()),
        &(part(), part()),
        &part().prefixed("x"),
    ] {
        let of = |value: &Option<&str>| {
            let field = value.map_or_else(String::new, |value| format!("a: {value}"));
            by.extract(&request(&field)).now().unwrap()
        };
        let keys: std::collections::HashSet<_> = sent.iter().map(of).collect();
        assert_eq!(keys.len(), sent.len());
    }
    assert_eq!(
        key(&extension(|user: &u64| *user).optional(), ""),
        Some("-".into())
    );
    let by = header("a")
        .unwrap()
        .plain()
        .optional()
        .and(header("b").unwrap().plain().optional());
    assert_ne!(key(&by, "a: x"), key(&by, "b: x"));
}

#[test]
fn names_are_checked() {
    let headers = ["x api key", "", "x:y"].map(|name| (name, header(name).map(drop)));
    let cookies = ["a b", "", "a=b", "a;b"].map(|name| (name, cookie(name).map(drop)));
    for (name, made) in headers.into_iter().chain(cookies) {
        let error = made.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{name:?}")),
            "{error}"
        );
    }
}

/// Whatever a client sends in a header, it does not get the key of an address, and the other way round.
#[test]
fn the_alternatives_of_or_have_different_keys() {
    let by = header("user")
        .unwrap()
        .plain()
        .or(header("session").unwrap().plain())
        .or(method());
    let keys = [
        key(&by, "user: GET"),
        key(&by, "session: GET"),
        key(&by, ""),
        key(&by, "user: 1"),
    ];
    for (n, one) in keys.iter().enumerate() {
        assert!(
            one.is_some() && keys[n + 1..].iter().all(|other| one != other),
            "{keys:?}"
        );
    }
    assert_eq!(key(&by, "user: ann\nsession: s1"), key(&by, "user: ann"));
}

#[test]
fn parts_of_and_do_not_run_together() {
    let by = header("a")
        .unwrap()
        .plain()
        .and(header("b").unwrap().plain());
    assert_ne!(key(&by, "a: xy\nb: z"), key(&by, "a: x\nb: yz"));
    assert_eq!(missing(&by, "a: x"), "the header field b is missing");
    assert_eq!(missing(&by, "b: x"), "the header field a is missing");
    let prefixed = |prefix| header("a").unwrap().plain().prefixed(prefix);
    assert_ne!(key(&prefixed("x"), "a: y"), key(&prefixed(""), "a: xy"));
}

#[test]
fn keys_are_changed_and_skipped() {
    let short = header("a")
        .unwrap()
        .plain()
        .map(|key: Key| key.as_bytes().len());
    assert_eq!(key(&short, "a: four"), Some("4".into()));
    let none = header("a").unwrap().map(|_: Key| None::<Key>);
    assert_eq!(key(&none, "a: four"), None);
    let skipping =
        method().skip_if(|request: &Request<()>| request.headers().contains_key("internal"));
    assert_eq!(
        (key(&skipping, ""), key(&skipping, "internal: 1")),
        (Some("GET".into()), None)
    );
}

#[tokio::test]
async fn keys_that_are_looked_up_combine_with_others() {
    let customer = |request: &Request<()>| {
        let session = request
            .headers()
            .get("session")
            .map(|session| session.as_bytes().to_vec());
        async move {
            tokio::task::yield_now().await;
            match session.as_deref() {
                Some(b"broken") => Err(Error::bad_request("the session is broken")),
                session => Ok(session.map(<[u8]>::to_vec)),
            }
        }
    };
    let by = look_up(customer).or(method()).and(query("tenant"));
    let extract = async |fields: &str| by.extract(&request(fields)).await;
    let ann = extract("session: ann").await.unwrap();
    let nobody = extract("").await.unwrap();
    assert!(ann.is_some() && nobody.is_some() && ann != nobody);
    let broken = extract("session: broken").await.unwrap_err();
    assert!(broken.is_bad_request(), "{broken}");
    // Like a key that is not looked up.
    let at_once = header("session")
        .unwrap()
        .plain()
        .or(method())
        .and(query("tenant"));
    assert_eq!(key(&at_once, "session: ann"), ann);
    let mapped = look_up(customer)
        .prefixed("x")
        .map(|key: Key| key.as_bytes().to_vec());
    let expected = key(
        &header("session").unwrap().plain().prefixed("x"),
        "session: ann",
    );
    assert_eq!(
        mapped.extract(&request("session: ann")).await.unwrap(),
        expected
    );
}

#[test]
fn the_peer_is_where_servers_put_it() {
    let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
    let with = |insert: &dyn Fn(&mut http::Extensions)| {
        let mut request = request("");
        insert(request.extensions_mut());
        client_ip().extract(&request).now()
    };
    let expected = Some(Key::from("192.0.2.7"));
    assert_eq!(with(&|extensions| _ = extensions.insert(peer)), expected);
    assert_eq!(
        with(&|extensions| _ = extensions.insert(peer.ip())),
        expected
    );
    #[cfg(feature = "axum")]
    assert_eq!(
        with(&|extensions| _ = extensions.insert(axum::extract::ConnectInfo(peer))),
        expected
    );
    let network: IpAddr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
    assert_eq!(
        with(&|extensions| _ = extensions.insert(network)),
        Some("2001:db8:1:2::".into())
    );
}

#[cfg(feature = "axum")]
#[test]
fn the_path_is_the_whole_one_in_nested_routers() {
    let mut request = request("");
    let whole = http::Uri::from_static("/v1/search?q=tea");
    request
        .extensions_mut()
        .insert(axum::extract::OriginalUri(whole));
    assert_eq!(path().extract(&request), Some("/v1/search".into()));
    let whole = path_and_query().extract(&request);
    assert_eq!(whole, Some("/v1/search?q=tea".into()));
    let matched = matched_path().extract(&request);
    assert_eq!(matched, Some("".into()), "no route: not without a limit");
}

/// A client gets no second bucket by another protocol, or by another spelling of the host.
#[test]
fn a_host_has_one_key_however_it_is_asked() {
    let over_http1 = |host: &str| host_key(Request::get("/").header("host", host));
    let over_http2 = |authority: &str| host_key(Request::get(format!("https://{authority}/")));
    for (asked, wanted) in [
        ("example.com", "example.com"),
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        ("example.com:443", "example.com"),
        ("example.com.:80", "example.com"),
        ("example.com:0443", "example.com"),
        ("example.com:", "example.com"),
        ("Example.com:8443", "example.com:8443"),
        ("192.0.2.7:80", "192.0.2.7"),
        ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ("[2001:db8::0001]:443", "[2001:db8::1]"),
        ("[::1]:3000", "[::1]:3000"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
    ] {
        let wanted = Ok(Some(wanted.into()));
        assert_eq!(over_http1(asked), wanted, "{asked} over HTTP/1");
        assert_eq!(over_http2(asked), wanted, "{asked} over HTTP/2");
    }
    assert_eq!(
        over_http2("ann:secret@example.com"),
        Ok(Some("example.com".into()))
    );
    // The host of the URI counts, as of a request to a proxy.
    let both = Request::get("http://a.example/").header("host", "b.example");
    assert_eq!(host_key(both), Ok(Some("a.example".into())));
    assert_eq!(
        over_http1("b\u{fc}cher.example"),
        Ok(Some("b\u{fc}cher.example".into())),
        "as it was sent"
    );
}

#[test]
fn a_malformed_host_is_a_bad_request() {
    for host in "a b|ann@a|a/b|a,b|.|:80|a:b|a:99999|a:1:2|[::1|::1|[::1]x|a?b|a#b".split('|') {
        let refused = host_key(Request::get("/").header("host", host)).unwrap_err();
        assert_eq!(refused, "the host of the request is malformed", "{host:?}");
    }
    let several = Request::get("/").header("host", "a").header("host", "a");
    assert_eq!(
        host_key(several).unwrap_err(),
        "the header field host is sent several times"
    );
    for none in [Request::get("/"), Request::get("/").header("host", " ")] {
        assert_eq!(host_key(none).unwrap_err(), "the request has no host");
    }
}

/// The key of `host`, or the text of its error.
fn host_key(request: http::request::Builder) -> Result<Option<Key>, String> {
    match host().extract(&request.body(()).unwrap()) {
        Extracted::Ready(key) => key.map_err(|error| {
            assert!(error.is_bad_request());
            error.to_string()
        }),
        Extracted::Pending(_) => panic!("it takes no waiting"),
    }
}
