use bytes::Bytes;
use http::Uri;
use http::header::{COOKIE, HOST};
use http_body_util::{Empty, Full};

use super::*;
use crate::extract::path_and_query;

fn checked() -> SharedGet {
    SharedGet::new(path_and_query())
}

fn keyed<B: Body>(by: &SharedGet, request: http::request::Builder, body: B) -> Option<Key> {
    by.extract(&request.body(body).unwrap()).now()
}

fn key(request: http::request::Builder) -> Option<Key> {
    keyed(&SharedGet::new(path_and_query()), request, Empty::<Bytes>::new())
}

#[test]
fn the_key_is_method_scheme_host_path_and_query() {
    let expected = Some(Key::from("GET https example.com:8443 /a/B?q=%20&Q"));
    assert_eq!(key(Request::get("https://Example.com:8443/a/B?q=%20&Q")), expected);
    assert_eq!(key(Request::get("/a?b").header("host", "Example.com")), Some("GET  example.com /a?b".into()));
    assert_eq!(key(Request::get("/")), Some("GET   /".into()));
    assert_eq!(key(Request::head("http://a")), Some("HEAD http a /".into()));

    let all = "http://a/ https://a/ http://b/ http://a/? http://a/?b http://a/b http://a/B /";
    let all: Vec<_> = all.split(' ').collect();
    let keys: std::collections::HashSet<_> = all.iter().map(|uri| key(Request::get(*uri)).unwrap()).collect();
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
fn several_hosts_make_no_key() {
    assert_eq!(key(Request::get("/").header("host", "a").header("host", "b")), None);
    assert_eq!(key(Request::get("http://a/").header("host", "b").header("host", "b")), None);
    assert_eq!(
        key(Request::get("http://a/").header("host", "B:8")),
        Some("GET http* a host:B:8\n\n/".into())
    );
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
    for field in
        "range if-match if-none-match if-modified-since if-unmodified-since if-range upgrade".split(' ')
    {
        assert_eq!(key(Request::get("/").header(field, "x")), None, "{field}");
    }
    let get = || Request::get("/");
    assert_eq!(keyed(&SharedGet::new(path_and_query()), get(), Full::new(Bytes::from_static(b"body"))), None);
    assert!(keyed(&SharedGet::new(path_and_query()), get(), String::new()).is_some());
    assert!(keyed(&SharedGet::new(path_and_query()), get(), axum::body::Body::empty()).is_some());
    assert!(keyed(&SharedGet::new(path_and_query()), get(), reqwest::Body::from("")).is_some());
}

#[test]
fn a_client_can_force_no_run() {
    let with = |value| Request::get("/").header("cache-control", value);
    assert_eq!(key(with("max-age=5, No-Store")), None, "the response must not be stored");
    for value in ["no-cache", "max-age=0, No-Cache", "max-age=0"] {
        assert_eq!(key(with(value)), key(Request::get("/")), "{value}");
    }
    let allowed = checked().allow_no_cache();
    assert_eq!(keyed(&allowed, with("max-age=0, No-Cache"), String::new()), None);
    assert!(keyed(&allowed, with("max-age=0"), String::new()).is_some());
}

#[test]
fn cookies_that_do_not_matter_are_ignored() {
    let by = checked().ignore_cookies(["_ga", "theme"]).unwrap();
    let with = |cookies: &[&str]| {
        let request =
            cookies.iter().fold(Request::get("/"), |request, cookie| request.header(COOKIE, *cookie));
        keyed(&by, request, String::new())
    };
    for cookies in [&[][..], &["_ga=1"], &["theme=dark; _ga=1.2"], &["_ga=1", " theme = x"], &["_ga"]] {
        assert_eq!(with(cookies), key(Request::get("/")), "{cookies:?}");
    }
    for cookies in
        [&["session=1"][..], &["_ga=1; session=1"], &["_ga=1", "sid=2"], &[""], &["_ga=1;"], &["_GA=1"]]
    {
        assert_eq!(with(cookies), None, "{cookies:?}");
    }
    for name in ["", "a b", "a=b", "é", "a;b"] {
        let error = checked().ignore_cookies(["_ga", name]).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(&format!("{name:?}")), "{error}");
    }
}

/// Fields that change a request's scheme, host, path or method for a service are in the key.
#[test]
fn nobody_can_choose_what_others_get() {
    let with = |fields: &[(&'static str, &str)]| {
        let get = Request::get("/a").header(HOST, "a.com");
        key(fields.iter().fold(get, |request, (name, value)| request.header(*name, *value))).unwrap()
    };
    let plain = with(&[]);
    assert_eq!(plain, Key::from("GET  a.com /a"));
    for name in &REWRITES {
        assert_ne!(with(&[(*name, "evil")]), plain, "{name}");
        assert_ne!(with(&[(*name, "evil")]), with(&[(*name, "good")]), "{name}");
    }
    assert_eq!(with(&[("forwarded", "for=1.2.3.4;by=proxy"), ("x-forwarded-for", "1.2.3.4")]), plain);
    let https = with(&[("forwarded", "for=1.2.3.4; proto=https, For=5.6.7.8")]);
    assert_eq!(https, with(&[("forwarded", "for=8.8.8.8;proto=https")]));
    assert_ne!(https, plain);
    assert_eq!(
        with(&[("x-forwarded-proto", "https")]),
        Key::from("GET * a.com x-forwarded-proto:https\n\n/a")
    );
    let [proto, host] = [("x-forwarded-proto", "https"), ("x-forwarded-host", "b.com")];
    assert_eq!(with(&[proto, host]), with(&[host, proto]), "in any order");
}

#[test]
fn whose_scheme_is_told() {
    let tells = |request: http::request::Builder| tells_scheme(&request.body(()).unwrap());
    assert!(tells(Request::get("https://a.com/")));
    assert!(!tells(Request::get("/").header(HOST, "a.com").header("forwarded", "for=1.2.3.4")));
    for (name, value) in
        [("x-forwarded-proto", "https"), ("forwarded", "for=1; Proto=https"), ("x-forwarded-ssl", "on")]
    {
        assert!(tells(Request::get("/").header(name, value)), "{name}");
    }
}

/// The field names by which proxies and frameworks tell a service the user.
#[test]
fn fields_that_name_a_user_make_a_request_private() {
    let fields = "x-api-key x-auth-token x-auth-request-email x-forwarded-user x-forwarded-email \
         x-forwarded-access-token x-amzn-oidc-data x-goog-iap-jwt-assertion x-goog-authenticated-user-email \
         cf-access-jwt-assertion x-ms-client-principal x-ms-client-principal-name x-remote-user remote-user \
         x-authenticated-userid x-user-id ssl-client-subject-dn x-client-cert x-ssl-client-s-dn";
    for field in fields.split(' ') {
        assert_eq!(key(Request::get("/").header(field, "ann")), None, "{field}");
    }
    // Reported, and others: no list of such names has all of them.
    // At the end: the address of a user (RFC 9110, 10.1.2), and what a service passes on of one.
    let fields = "private-token x-vault-token x-goog-api-key ocp-apim-subscription-key x-rapidapi-key x-token \
         x-session-id dpop x-tenant-id x-shopify-access-token x-csrf-token signature-input \
         a-field-of-tomorrow from baggage";
    for field in fields.split(' ') {
        assert_eq!(key(Request::get("/").header(field, "ann")), None, "{field}");
    }
    let by = checked().ignore_field("X-Auth-Token").unwrap().ignore_field("x-user-agent").unwrap();
    let with = |field: &str| keyed(&by, Request::get("/").header(field, "7"), String::new());
    assert_eq!(
        (with("x-auth-token"), with("x-user-agent")),
        (key(Request::get("/")), key(Request::get("/")))
    );
    assert_eq!((with("x-auth-user"), with("x-api-key")), (None, None));
    for field in ["authorization", "cookie", "range", "host", "x-forwarded-host", "x auth"] {
        let error = checked().ignore_field(field).unwrap_err();
        assert!(error.is_invalid() && error.to_string().contains(&format!("{field:?}")), "{error}");
    }
    for field in ["x-request-id", "user-agent", "x-forwarded-for", "x-real-ip", "dnt"] {
        assert!(key(Request::get("/").header(field, "ann")).is_some(), "{field}");
    }
}

#[test]
fn named_fields_make_a_request_private() {
    let by = checked().private_if("X-Real-IP").unwrap().private_if("cf-ipcountry").unwrap();
    let with = |field: &str| keyed(&by, Request::get("/").header(field, "7"), String::new());
    assert_eq!(with("x-real-ip"), None);
    assert_eq!(with("cf-ipcountry"), None);
    assert!(with("x-forwarded-for").is_some());
    assert!(key(Request::get("/").header("x-real-ip", "7")).is_some(), "it is known to be harmless");

    let error = checked().private_if("x api key").unwrap_err();
    assert!(error.is_invalid() && error.to_string().contains("\"x api key\""), "{error}");
}

#[test]
fn the_host_is_as_it_was_sent() {
    for host in ["a.com:80", "a.com", "[::1]:3000", "[::1]"] {
        let expected = format!("GET  {host} /a");
        assert_eq!(key(Request::get("/a").header(HOST, host)), Some(expected.into()), "{host}");
    }
    assert_eq!(key(Request::get("http://a.com:8001/a")), Some("GET http a.com:8001 /a".into()));
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
    let by = SharedGet::new(crate::extract::path());
    let asked = |target: &str| by.extract(&Request::get(target).body(String::new()).unwrap()).now().unwrap();
    assert_ne!(asked("/me?token=ann"), asked("/me?token=bob"));
    let by = SharedGet::new(|_: &Request<String>| "");
    let asked = |target: &str| by.extract(&Request::get(target).body(String::new()).unwrap()).now().unwrap();
    assert_ne!(asked("/a"), asked("/b"));
}

/// The fields that browsers, clients and libraries send with a GET without credentials.
const CLIENTS: [(&str, &str); 12] = [
    (
        "Chrome, a navigation",
        "accept accept-encoding accept-language cache-control connection dnt host priority purpose referer sec-ch-ua \
         sec-ch-ua-arch sec-ch-ua-mobile sec-ch-ua-platform sec-ch-prefers-color-scheme sec-fetch-dest sec-fetch-mode \
         sec-fetch-site sec-fetch-user sec-purpose upgrade-insecure-requests user-agent",
    ),
    (
        "Chrome, fetch from another origin, with client hints",
        "accept accept-encoding accept-language content-type device-memory downlink dpr ect host origin pragma referer rtt \
         save-data sec-ch-ua sec-ch-ua-full-version-list sec-fetch-dest sec-fetch-mode sec-fetch-site sec-gpc user-agent \
         viewport-width width x-requested-with",
    ),
    (
        "Firefox",
        "accept accept-encoding accept-language alt-used connection host priority referer sec-fetch-dest sec-fetch-mode \
         sec-fetch-site te upgrade-insecure-requests user-agent x-moz",
    ),
    (
        "Safari",
        "accept accept-encoding accept-language connection host priority referer sec-fetch-dest user-agent",
    ),
    ("curl", "accept host user-agent"),
    ("wget", "accept accept-encoding connection host user-agent"),
    ("requests, httpx", "accept accept-encoding connection host user-agent"),
    ("Go", "accept-encoding host user-agent"),
    ("undici, axios", "accept accept-encoding accept-language connection host sec-fetch-mode user-agent"),
    ("OkHttp, Java", "accept accept-encoding connection host http2-settings user-agent"),
    ("Googlebot, without its address", "accept accept-encoding connection host user-agent"),
    (
        "an SDK of AWS, of Google",
        "amz-sdk-invocation-id amz-sdk-request host user-agent x-amz-user-agent x-goog-api-client",
    ),
];

/// What proxies, CDNs and tracing add.
const ADDED: [(&str, &str); 12] = [
    ("nothing", ""),
    ("nginx", "x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip x-request-id"),
    (
        "Envoy, Istio",
        "x-b3-traceid x-b3-spanid x-envoy-attempt-count x-envoy-external-address x-forwarded-proto x-request-id",
    ),
    ("HAProxy, Varnish", "via x-forwarded-for x-varnish"),
    (
        "Cloudflare",
        "cdn-loop cf-connecting-ip cf-ipcountry cf-ray cf-visitor cf-worker x-forwarded-for x-forwarded-proto",
    ),
    (
        "CloudFront",
        "cloudfront-is-mobile-viewer cloudfront-viewer-country via x-amz-cf-id x-amzn-trace-id x-forwarded-for",
    ),
    ("Fastly", "cdn-loop fastly-client fastly-client-ip fastly-ff fastly-ssl x-forwarded-server x-varnish"),
    ("Akamai", "akamai-origin-hop cdn-loop true-client-ip via x-akamai-edgescape x-forwarded-for"),
    (
        "load balancers of AWS, Google, Azure",
        "traceparent x-amzn-trace-id x-azure-clientip x-azure-ref x-cloud-trace-context",
    ),
    (
        "Vercel, Fly, Netlify",
        "fly-client-ip fly-region fly-request-id x-nf-client-connection-ip x-vercel-id x-vercel-ip-city",
    ),
    ("OpenTelemetry, Sentry", "b3 sentry-trace traceparent tracestate"),
    (
        "Datadog, New Relic, Elastic",
        "elastic-apm-traceparent newrelic uber-trace-id x-datadog-trace-id x-newrelic-id",
    ),
];

/// The price of the rule: none of these requests is handled alone.
#[test]
fn usual_requests_are_shared() {
    for (client, sent) in CLIENTS {
        for (proxy, added) in ADDED {
            let fields = sent.split_whitespace().chain(added.split_whitespace());
            let request = fields.fold(Request::get("/prices"), |request, field| request.header(field, "x"));
            assert!(key(request).is_some(), "{client}, {proxy}");
        }
    }
}
