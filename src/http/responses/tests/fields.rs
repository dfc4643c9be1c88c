//! Header fields of shared responses, and `Vary`.

use super::*;

async fn answer(
    asked: &[(&'static str, &'static str)],
    fields: &[(&'static str, &'static str)],
) -> Answer {
    let response = response(full(""), fields);
    let (_, answer) = capture_for(&Responses::default(), &request(asked), response).await;
    answer.unwrap()
}

#[tokio::test]
async fn fields_of_one_connection_or_exchange_are_not_shared() {
    let fields = [
        ("connection", "close, X-Hop"),
        ("connection", "x-Hop-2, not a name"),
        ("x-hop", "1"),
        ("x-hop-2", "1"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("proxy-authorization", "Basic"),
        ("te", "trailers"),
        ("trailer", "etag"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("ratelimit", "\"api\";r=0;t=1"),
        ("ratelimit-policy", "\"api\";q=10;w=1"),
        ("x-ratelimit-remaining", "0"),
        ("x-rate-limit-reset", "1"),
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("retry-after", "1"),
        ("age", "200"),
        ("server-timing", "db;dur=53"),
        ("x-request-id", "1"),
        ("idempotency-replayed", "?1"),
        ("link", "</a>"),
        ("link", "</b>"),
        ("etag", "\"7\""),
    ];
    let (own, shared) = capture(&Responses::default(), response(full(""), &fields)).await;
    assert_eq!(own.headers().len(), fields.len());
    let shared = shared.unwrap();
    let mut kept: Vec<_> = shared
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    kept.sort_by_key(|(name, _)| *name);
    assert_eq!(
        kept,
        [
            ("etag", &b"\"7\""[..]),
            ("link", b"</a>"),
            ("link", b"</b>")
        ]
    );
}

fn fields(text: &'static str) -> Vec<(&'static str, &'static str)> {
    text.split(" & ")
        .filter_map(|field| field.split_once(": "))
        .collect()
}

/// Without a value is not with an empty one. The order and the spelling of the fields in `Vary` do not matter.
#[tokio::test]
async fn an_answer_is_for_those_who_ask_alike() {
    // An answer's request and its `Vary`; another request, and the variant that is for it, if the answer is not. Fields are
    // separated by `&`, and so are the lines of a variant.
    let two = "vary: Accept , accept-language & vary: , accept";
    let like = "origin: https://a.example & accept: */*";
    let html = "accept: text/html & x-other: 1";
    for (asked, vary, other, expected) in [
        (html, "", "accept: text/plain", ""),
        (html, two, "x-other: 2 & accept: text/html", ""),
        (html, two, "", "accept & accept-language"),
        (
            html,
            two,
            "accept: text/plain",
            "accept:text/plain & accept-language",
        ),
        (
            html,
            two,
            "accept: text/html & accept: ",
            "accept:text/html & accept: & accept-language",
        ),
        (
            html,
            two,
            "accept-language: de & accept: text/html",
            "accept:text/html & accept-language:de",
        ),
        ("", "vary: accept", "accept: ", "accept:"),
        ("accept: ", "vary: accept", "", "accept"),
        (
            "",
            "vary: Origin, Accept",
            like,
            "accept:*/* & origin:https://a.example",
        ),
        (
            "",
            "vary: accept & vary: origin, accept",
            like,
            "accept:*/* & origin:https://a.example",
        ),
    ] {
        let answer = answer(&fields(asked), &fields(vary)).await;
        let lines = expected
            .split(" & ")
            .filter(|line| !line.is_empty())
            .map(|line| format!("{line}\n"));
        let expected = Some(lines.collect::<String>()).filter(|lines| !lines.is_empty());
        assert_eq!(
            variant(&request(&fields(other)), &answer),
            expected,
            "{vary} {other}"
        );
    }
}
