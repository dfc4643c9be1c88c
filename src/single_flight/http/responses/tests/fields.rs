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

#[tokio::test]
async fn without_vary_an_answer_is_for_all() {
    let answer = answer(&[("accept", "text/html")], &[]).await;
    assert_eq!(variant(&request(&[("accept", "text/plain")]), &answer), None);
}

#[tokio::test]
async fn an_answer_is_for_those_who_ask_alike() {
    let fields = [("vary", "Accept , accept-language"), ("vary", ", accept")];
    let answer = answer(&[("accept", "text/html"), ("x-other", "1")], &fields).await;
    assert_eq!(variant(&request(&[("x-other", "2"), ("accept", "text/html")]), &answer), None);

    assert_eq!(variant(&get(), &answer).unwrap(), "accept\naccept-language\n");
    assert_eq!(
        variant(&request(&[("accept", "text/plain")]), &answer).unwrap(),
        "accept:text/plain\naccept-language\n"
    );
    assert_eq!(
        variant(&request(&[("accept", "text/html"), ("accept", "")]), &answer).unwrap(),
        "accept:text/html\naccept:\naccept-language\n"
    );
    assert_eq!(
        variant(&request(&[("accept-language", "de"), ("accept", "text/html")]), &answer).unwrap(),
        "accept:text/html\naccept-language:de\n"
    );
}

#[tokio::test]
async fn no_value_is_not_an_empty_value() {
    let of_none = answer(&[], &[("vary", "accept")]).await;
    assert_eq!(variant(&request(&[("accept", "")]), &of_none).unwrap(), "accept:\n");
    let of_empty = answer(&[("accept", "")], &[("vary", "accept")]).await;
    assert_eq!(variant(&get(), &of_empty).unwrap(), "accept\n");
}

/// The order and the spelling of the fields in `Vary` do not matter.
#[tokio::test]
async fn like_requests_have_one_variant() {
    let one = answer(&[], &[("vary", "Origin, Accept")]).await;
    let other = answer(&[], &[("vary", "accept"), ("vary", "origin, accept")]).await;
    let asked = request(&[("origin", "https://a.example"), ("accept", "*/*")]);
    assert_eq!(variant(&asked, &one).unwrap(), "accept:*/*\norigin:https://a.example\n");
    assert_eq!(variant(&asked, &one), variant(&asked, &other));
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
