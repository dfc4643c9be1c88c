use bytes::Bytes;
use http::Uri;
use http_body_util::{Empty, Full};

use super::*;

#[test]
fn the_fields_are_sorted() {
    assert!(HARMLESS.is_sorted(), "they are searched");
}

fn checked() -> SharedGet {
    SharedGet::new(path_and_query())
}

fn keyed<B: Body>(by: &SharedGet, request: http::request::Builder, body: B) -> Option<Key> {
    by.extract(&request.body(body).unwrap()).now()
}

fn key(request: http::request::Builder) -> Option<Key> {
    keyed(&checked(), request, Empty::<Bytes>::new())
}

/// A GET of a target with these fields, one a line.
fn get(target: &str, fields: &str) -> http::request::Builder {
    let fields = fields.lines().map(|field| field.split_once(": ").unwrap());
    fields.fold(Request::get(target), |request, (name, value)| {
        request.header(name, value)
    })
}

#[test]
fn the_key_is_method_scheme_host_path_and_query() {
    for (target, fields, expected) in [
        (
            "https://Example.com:8443/a/B?q=%20&Q",
            "",
            "GET https example.com:8443 /a/B?q=%20&Q",
        ),
        ("/a?b", "host: Example.com", "GET  example.com /a?b"),
        ("/", "", "GET   /"),
        // The host is as it was sent.
        ("/a", "host: a.com:80", "GET  a.com:80 /a"),
        ("/a", "host: a.com", "GET  a.com /a"),
        ("/a", "host: [::1]:3000", "GET  [::1]:3000 /a"),
        ("/a", "host: [::1]", "GET  [::1] /a"),
        ("http://a.com:8001/a", "", "GET http a.com:8001 /a"),
        // Also if there are two.
        ("http://a/", "host: B:8", "GET http* a host:B:8\n\n/"),
        ("http://a/", "host: A", "GET http a /"),
    ] {
        let key = key(get(target, fields));
        assert_eq!(key, Some(expected.into()), "{target} {fields}");
    }
    assert_eq!(key(Request::head("http://a")), Some("HEAD http a /".into()));

    let all = "http://a/ https://a/ http://b/ http://a/? http://a/?b http://a/b http://a/B /";
    let all: Vec<_> = all.split(' ').collect();
    let keys: std::collections::HashSet<_> = all
        .iter()
        .map(|uri| key(Request::get(*uri)).unwrap())
        .collect();
    assert_eq!(keys.len(), all.len());
}

#[test]
fn a_host_cannot_pose_as_another_target() {
    let asked = |host: &str, path: &str| key(Request::get(path).header("host", host));
    assert_ne!(asked("a/b", "/c"), asked("a", "/b/c"));
    for host in ["a /b", "http a", " a", "ann@a"] {
        assert_eq!(asked(host, "/"), None, "{host}");
    }
}

#[test]
fn what_is_private_or_asks_for_something_of_its_own_has_no_key() {
    for method in "POST PUT PATCH DELETE OPTIONS TRACE CONNECT QUERY get".split(' ') {
        let request = Request::builder().method(method).uri("/");
        assert_eq!(key(request), None, "{method}");
    }
    let fields = "authorization proxy-authorization cookie range if-match if-none-match if-modified-since \
         if-unmodified-since if-range upgrade";
    for field in fields.split(' ') {
        for value in ["", "x"] {
            assert_eq!(key(Request::get("/").header(field, value)), None, "{field}");
        }
    }
    assert_eq!(key(Request::get("http://ann:secret@a/")), None);
    for (target, several) in [("/", "host: a\nhost: b"), ("http://a/", "host: b\nhost: b")] {
        assert_eq!(key(get(target, several)), None, "{target}");
    }
    let (by, get) = (checked(), || Request::get("/"));
    let body = Full::new(Bytes::from_static(b"body"));
    assert_eq!(keyed(&by, get(), body), None);
    assert!(keyed(&by, get(), String::new()).is_some());
    assert!(keyed(&by, get(), axum::body::Body::empty()).is_some());
    assert!(keyed(&by, get(), reqwest::Body::from("")).is_some());
}

#[test]
fn a_client_can_force_no_run() {
    let with = |value| Request::get("/").header("cache-control", value);
    // The response must not be stored.
    assert_eq!(key(with("max-age=5, No-Store")), None);
    for value in ["no-cache", "max-age=0, No-Cache", "max-age=0"] {
        assert_eq!(key(with(value)), key(Request::get("/")), "{value}");
    }
    let by = checked().allow_no_cache();
    let allowed = |value| keyed(&by, with(value), String::new());
    assert_eq!(allowed("max-age=0, No-Cache"), None);
    assert!(allowed("max-age=0").is_some());
}

#[test]
fn cookies_that_do_not_matter_are_ignored() {
    let by = checked().ignore_cookies(["_ga", "theme"]).unwrap();
    let with = |cookies| keyed(&by, get("/", cookies), String::new());
    let ignored =
        "|cookie: _ga=1|cookie: theme=dark; _ga=1.2|cookie: _ga=1\ncookie:  theme = x|cookie: _ga";
    for cookies in ignored.split('|') {
        assert_eq!(with(cookies), key(Request::get("/")), "{cookies}");
    }
    let others = "cookie: session=1|cookie: _ga=1; session=1|cookie: _ga=1\ncookie: sid=2|cookie: |\
         cookie: _ga=1;|cookie: _GA=1";
    for cookies in others.split('|') {
        assert_eq!(with(cookies), None, "{cookies}");
    }
    for name in ["", "a b", "a=b", "é", "a;b"] {
        let error = checked().ignore_cookies(["_ga", name]).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{name:?}")),
            "{error}"
        );
    }
}

/// Fields that change a request's scheme, host, path or method for a service are in the key.
#[test]
fn nobody_can_choose_what_others_get() {
    let with = |fields: &str| key(get("/a", &format!("host: a.com\n{fields}"))).unwrap();
    let plain = with("");
    assert_eq!(plain, Key::from("GET  a.com /a"));
    for name in &REWRITES {
        let [evil, good] = ["evil", "good"].map(|value| with(&format!("{name}: {value}")));
        assert!(evil != plain && evil != good, "{name}");
    }
    assert_eq!(
        with("forwarded: for=1.2.3.4;by=proxy\nx-forwarded-for: 1.2.3.4"),
        plain
    );
    let https = with("forwarded: for=1.2.3.4; proto=https, For=5.6.7.8");
    assert_eq!(https, with("forwarded: for=8.8.8.8;proto=https"));
    assert_ne!(https, plain);
    let proto = "x-forwarded-proto: https";
    assert_eq!(
        with(proto),
        Key::from("GET * a.com x-forwarded-proto:https\n\n/a")
    );
    let host = "x-forwarded-host: b.com";
    let both = with(&format!("{proto}\n{host}"));
    assert_eq!(both, with(&format!("{host}\n{proto}")), "in any order");
}

#[test]
fn whose_scheme_is_told() {
    let tells = |request: http::request::Builder| tells_scheme(&request.body(()).unwrap());
    assert!(tells(Request::get("https://a.com/")));
    assert!(!tells(get("/", "host: a.com\nforwarded: for=1.2.3.4")));
    for field in
        "x-forwarded-proto: https|forwarded: for=1; Proto=https|x-forwarded-ssl: on".split('|')
    {
        assert!(tells(get("/", field)), "{field}");
    }
}

/// The field names with which proxies and frameworks pass the user to a service.
#[test]
fn fields_that_name_a_user_make_a_request_private() {
    let fields = "x-api-key x-auth-token x-auth-request-email x-forwarded-user x-forwarded-email \
         x-forwarded-access-token x-amzn-oidc-data x-goog-iap-jwt-assertion x-goog-authenticated-user-email \
         cf-access-jwt-assertion x-ms-client-principal x-ms-client-principal-name x-remote-user remote-user \
         x-authenticated-userid x-user-id ssl-client-subject-dn x-client-cert x-ssl-client-s-dn";
    // Reported fields, and others: no list of such names is complete. At the end: the address of a user (RFC 9110,
    // 10.1.2), and fields with which a service passes on data of a user.
    let others = "private-token x-vault-token x-goog-api-key ocp-apim-subscription-key x-rapidapi-key x-token \
         x-session-id dpop x-tenant-id x-shopify-access-token x-csrf-token signature-input \
         a-field-of-tomorrow from baggage";
    for field in fields.split(' ').chain(others.split(' ')) {
        assert_eq!(key(Request::get("/").header(field, "ann")), None, "{field}");
    }
    let by = checked()
        .ignore_field("X-Auth-Token")
        .unwrap()
        .ignore_field("x-user-agent")
        .unwrap();
    let with = |field: &str| keyed(&by, Request::get("/").header(field, "7"), String::new());
    for field in ["x-auth-token", "x-user-agent"] {
        assert_eq!(with(field), key(Request::get("/")), "{field}");
    }
    assert_eq!(["x-auth-user", "x-api-key"].map(with), [None, None]);
    for field in "authorization|cookie|range|host|x-forwarded-host|x auth".split('|') {
        let error = checked().ignore_field(field).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(&format!("{field:?}")),
            "{error}"
        );
    }
    for field in "x-request-id user-agent x-forwarded-for x-real-ip dnt".split(' ') {
        let request = Request::get("/").header(field, "ann");
        assert!(key(request).is_some(), "{field}");
    }
}

#[test]
fn named_fields_make_a_request_private() {
    let by = checked()
        .private_if("X-Real-IP")
        .unwrap()
        .private_if("cf-ipcountry")
        .unwrap();
    let with = |field: &str| keyed(&by, Request::get("/").header(field, "7"), String::new());
    assert_eq!(with("x-real-ip"), None);
    assert_eq!(with("cf-ipcountry"), None);
    assert!(with("x-forwarded-for").is_some());
    assert!(
        key(Request::get("/").header("x-real-ip", "7")).is_some(),
        "it is known to be harmless"
    );

    let error = checked().private_if("x api key").unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("\"x api key\""),
        "{error}"
    );
}

#[test]
fn the_uri_can_be_one_that_was_put_aside() {
    #[derive(Clone)]
    struct Whole(Uri);

    let by = SharedGet::new(path_and_query().uri(|whole: &Whole| &whole.0));
    let keyed = |request| keyed(&by, request, String::new()).unwrap();
    let whole = Request::get("/prices").extension(Whole(Uri::from_static("/v1/prices?of=tea")));
    assert_eq!(keyed(whole), "GET   /prices /v1/prices?of=tea".into());
    assert_eq!(keyed(Request::get("/prices")), "GET   /prices".into());
}

/// Different targets have different keys, even if the inner extractor ignores the target.
#[test]
fn the_target_is_in_every_key() {
    let by = SharedGet::new(|_: &Request<String>| "");
    let asked = |target: &str| {
        by.extract(&Request::get(target).body(String::new()).unwrap())
            .now()
            .unwrap()
    };
    assert_ne!(asked("/a"), asked("/b"));
    assert_ne!(asked("/me?token=ann"), asked("/me?token=bob"));
}

/// The fields that Chrome, Firefox, Safari, curl, wget, requests, httpx, Go, undici, axios, OkHttp, Java, Googlebot and the
/// SDKs of AWS and Google send with a GET without credentials.
const CLIENTS: &str = "\
     accept accept-encoding accept-language cache-control connection dnt host priority purpose referer \
     sec-ch-ua sec-ch-ua-arch sec-ch-ua-mobile sec-ch-ua-platform sec-ch-prefers-color-scheme \
     sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user sec-purpose upgrade-insecure-requests \
     user-agent content-type device-memory downlink dpr ect origin pragma rtt save-data \
     sec-ch-ua-full-version-list sec-gpc viewport-width width x-requested-with alt-used te x-moz \
     http2-settings amz-sdk-invocation-id amz-sdk-request x-amz-user-agent x-goog-api-client";

/// The fields that nginx, Envoy, HAProxy, Varnish, CDNs, load balancers of clouds and tracing add.
const ADDED: &str = "\
     x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip x-request-id x-b3-traceid x-b3-spanid \
     x-envoy-attempt-count x-envoy-external-address via x-varnish cdn-loop cf-connecting-ip \
     cf-ipcountry cf-ray cf-visitor cf-worker cloudfront-is-mobile-viewer cloudfront-viewer-country \
     x-amz-cf-id x-amzn-trace-id fastly-client fastly-client-ip fastly-ff fastly-ssl x-forwarded-server \
     akamai-origin-hop true-client-ip x-akamai-edgescape traceparent x-azure-clientip x-azure-ref \
     x-cloud-trace-context fly-client-ip fly-region fly-request-id x-nf-client-connection-ip \
     x-vercel-id x-vercel-ip-city b3 sentry-trace tracestate elastic-apm-traceparent newrelic \
     uber-trace-id x-datadog-trace-id x-newrelic-id";

/// The price of the rule: none of these requests is handled alone.
#[test]
fn usual_requests_are_shared() {
    let all = |fields: &str| {
        let get = Request::get("/prices");
        key(fields
            .split(' ')
            .fold(get, |request, field| request.header(field, "x")))
    };
    for fields in CLIENTS
        .split(' ')
        .chain(ADDED.split(' '))
        .chain([CLIENTS, ADDED])
    {
        assert!(all(fields).is_some(), "{fields}");
    }
}
