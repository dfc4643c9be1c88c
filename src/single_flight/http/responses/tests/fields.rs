//! Header fields of shared responses, and `Vary`.

use super::*;

async fn answer(asked: &[(&'static str, &'static str)], fields: &[(&'static str, &'static str)]) -> Answer {
    capture(&Responses::default(), &request(asked), response(full(""), fields)).await.1.unwrap()
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
    let (own, shared) = capture(&Responses::default(), &get(), response(full(""), &fields)).await;
    assert_eq!(own.headers().len(), fields.len());
    let shared = shared.unwrap();
    let mut kept: Vec<_> =
        shared.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    kept.sort_by_key(|(name, _)| *name);
    assert_eq!(kept, [("etag", &b"\"7\""[..]), ("link", b"</a>"), ("link", b"</b>")]);
}

/// Without a value is not with an empty one. The order and the spelling of the fields in `Vary` do not matter.
#[tokio::test]
async fn an_answer_is_for_those_who_ask_alike() {
    type Fields<'a> = &'a [(&'static str, &'static str)];
    let html: Fields<'_> = &[("accept", "text/html"), ("x-other", "1")];
    let two: Fields<'_> = &[("vary", "Accept , accept-language"), ("vary", ", accept")];
    let one: Fields<'_> = &[("vary", "accept")];
    let like: Fields<'_> = &[("origin", "https://a.example"), ("accept", "*/*")];
    // An answer's request and its `Vary`; another request, and the variant that is for it, if the answer is not.
    let cases: [(Fields<'_>, Fields<'_>, Fields<'_>, Option<&str>); 10] = [
        (html, &[], &[("accept", "text/plain")], None),
        (html, two, &[("x-other", "2"), ("accept", "text/html")], None),
        (html, two, &[], Some("accept\naccept-language\n")),
        (html, two, &[("accept", "text/plain")], Some("accept:text/plain\naccept-language\n")),
        (
            html,
            two,
            &[("accept", "text/html"), ("accept", "")],
            Some("accept:text/html\naccept:\naccept-language\n"),
        ),
        (
            html,
            two,
            &[("accept-language", "de"), ("accept", "text/html")],
            Some("accept:text/html\naccept-language:de\n"),
        ),
        (&[], one, &[("accept", "")], Some("accept:\n")),
        (&[("accept", "")], one, &[], Some("accept\n")),
        (&[], &[("vary", "Origin, Accept")], like, Some("accept:*/*\norigin:https://a.example\n")),
        (
            &[],
            &[("vary", "accept"), ("vary", "origin, accept")],
            like,
            Some("accept:*/*\norigin:https://a.example\n"),
        ),
    ];
    for (asked, vary, other, expected) in cases {
        let answer = answer(asked, vary).await;
        assert_eq!(variant(&request(other), &answer).as_deref(), expected, "{vary:?} {other:?}");
    }
}

#[tokio::test]
async fn what_an_answer_varies_by_survives_the_codec() {
    use crate::response::AnswerCodec;
    use crate::single_flight::Codec as _;

    let answer = answer(&[("accept", "text/html")], &[("vary", "accept, origin")]).await;
    let decoded = AnswerCodec.decode(&AnswerCodec.encode(&answer).unwrap()).unwrap();
    assert_eq!(variant(&request(&[("accept", "text/html")]), &decoded), None);
    assert!(variant(&request(&[("accept", "text/html"), ("origin", "null")]), &decoded).is_some());
}
