//! The header fields that are known to tell nothing of a user that a response could depend on, apart from what the response
//! says in `Vary`.

/// What browsers, clients of HTTP, proxies, CDNs and tracing send with any request.
#[rustfmt::skip]
const FIELDS: [&str; 149] = [
    "accept", "accept-charset", "accept-encoding", "accept-language", "access-control-request-headers",
    "access-control-request-method", "akamai-origin-hop", "alt-used", "amp-cache-transform",
    "amz-sdk-invocation-id", "amz-sdk-request", "b3", "cdn-loop", "cf-connecting-ip",
    "cf-connecting-ipv6", "cf-ew-via", "cf-ipcity", "cf-ipcontinent", "cf-ipcountry", "cf-iplatitude",
    "cf-iplongitude", "cf-metro-code", "cf-postal-code", "cf-pseudo-ipv4", "cf-ray", "cf-region",
    "cf-region-code", "cf-timezone", "cf-warp-tag-id", "cf-worker", "client-ip", "connection",
    "content-encoding", "content-language", "content-length", "content-type", "correlation-id", "date",
    "device-memory", "dnt", "downlink", "dpr", "early-data", "ect", "elastic-apm-traceparent", "expect",
    "fastly-client", "fastly-client-ip", "fastly-ff", "fastly-orig-accept-encoding", "fastly-temp-xff",
    "fly-client-ip", "fly-region", "fly-request-id", "grpc-accept-encoding", "grpc-encoding",
    "grpc-timeout", "grpc-trace-bin", "http2-settings", "keep-alive", "max-forwards", "newrelic", "origin",
    "pragma", "priority", "proxy-connection", "purpose", "referer", "request-id", "rtt", "save-data",
    "sec-gpc", "sec-purpose", "sentry-trace", "te", "trace-id", "traceparent", "tracestate", "trailer",
    "transfer-encoding", "true-client-ip", "uber-trace-id", "upgrade-insecure-requests", "user-agent",
    "via", "viewport-width", "want-content-digest", "want-digest", "want-repr-digest", "width",
    "x-akamai-edgescape", "x-amz-cf-id", "x-amz-user-agent", "x-amzn-trace-id", "x-appengine-city",
    "x-appengine-citylatlong", "x-appengine-country", "x-appengine-region", "x-appengine-request-log-id",
    "x-arr-log-id", "x-azure-clientip", "x-azure-fdid", "x-azure-ref", "x-azure-requestchain",
    "x-azure-socketip", "x-bluecoat-via", "x-client-ip", "x-cloud-trace-context", "x-cluster-client-ip",
    "x-correlation-id", "x-dns-prefetch-control", "x-do-connecting-ip", "x-envoy-attempt-count",
    "x-envoy-decorator-operation", "x-envoy-expected-rq-timeout-ms", "x-envoy-external-address",
    "x-envoy-internal", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id", "x-forwarded",
    "x-forwarded-by", "x-forwarded-for", "x-goog-api-client", "x-grpc-web", "x-moz", "x-newrelic-id",
    "x-newrelic-transaction", "x-nf-client-connection-ip", "x-nf-request-id", "x-original-forwarded-for",
    "x-ot-span-context", "x-purpose", "x-queue-start", "x-real-ip", "x-render-origin-server",
    "x-request-id", "x-request-start", "x-requested-with", "x-trace-id", "x-varnish",
    "x-vercel-deployment-url", "x-vercel-id", "x-vercel-ip-city", "x-vercel-ip-country",
    "x-vercel-ip-country-region", "x-vercel-ip-latitude", "x-vercel-ip-longitude", "x-vercel-ip-timezone",
    "x-wap-profile",
];

/// The beginnings of the names of such fields.
const PREFIXES: [&str; 6] = [
    "cloudfront-is-",
    "cloudfront-viewer-",
    "sec-ch-",
    "sec-fetch-",
    "x-b3-",
    "x-datadog-",
];

/// Whether a field is in the list.
pub(super) fn is_harmless(name: &str) -> bool {
    FIELDS.binary_search(&name).is_ok() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_fields_are_sorted() {
        assert!(super::FIELDS.is_sorted(), "they are searched");
    }
}
