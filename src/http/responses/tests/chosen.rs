//! Which callers get a response.

use std::time::Duration;

use super::*;

fn chosen(
    responses: &Responses,
    status: u16,
    fields: &[(&'static str, &'static str)],
) -> Share<()> {
    let mut response = response((), fields);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    choose(responses, &response.into_parts().0, false)
}

fn choose(responses: &Responses, parts: &response::Parts, tells_scheme: bool) -> Share<()> {
    responses.choose(
        parts,
        tells_scheme,
        &Freshness::of(&parts.headers, SystemTime::now()),
    )
}

fn stored(seconds: Option<u64>, stale: bool) -> Share<()> {
    Share::Stored {
        answer: (),
        at_most: seconds.map(Duration::from_secs),
        stale,
    }
}

#[test]
fn by_its_status_and_fields() {
    let responses = Responses::default();
    let of = |status, fields: &[(&'static str, &'static str)]| chosen(&responses, status, fields);
    assert_eq!(of(200, &[]), stored(None, true));
    assert_eq!(
        of(404, &[("cache-control", "max-age=7")]),
        stored(Some(7), true)
    );
    assert_eq!(
        of(200, &[("cache-control", "s-maxage=7, max-age=0")]),
        stored(Some(7), false)
    );
    assert_eq!(
        of(200, &[("cache-control", "max-age=0")]),
        stored(Some(0), true)
    );
    for status in [500, 502, 503, 504] {
        assert_eq!(of(status, &[]), Share::Waiting(()));
        for private in [
            ("set-cookie", "a=b"),
            ("cache-control", "no-store"),
            ("content-type", "text/event-stream"),
        ] {
            assert_eq!(of(status, &[private]), Share::Nobody);
        }
        assert_eq!(
            chosen(&Responses::default().share_failures(false), status, &[]),
            Share::Nobody
        );
    }
    for status in [400, 401, 403, 429] {
        assert_eq!(of(status, &[]), Share::Nobody);
    }
    for private in [
        ("set-cookie", "a=b"),
        ("cache-control", "private"),
        ("vary", "*"),
    ] {
        assert_eq!(of(200, &[private]), Share::Private);
    }
}

#[test]
fn redirects_elsewhere_only_where_the_scheme_is_known() {
    let responses = Responses::default();
    for (location, is_absolute) in [
        ("/a", false),
        ("?a", false),
        ("a:b", true),
        ("a/b:c", false),
        ("//b/", true),
        ("https://a.com/", true),
    ] {
        let mut response = response((), &[("location", location)]);
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        let (parts, ()) = response.into_parts();
        let shared = if is_absolute {
            Share::Private
        } else {
            stored(None, true)
        };
        assert_eq!(choose(&responses, &parts, false), shared, "{location}");
        assert_eq!(
            choose(&responses, &parts, true),
            stored(None, true),
            "{location}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_read_whole_is_for_nobody() {
    let of = async |responses: &Responses, status: u16, body: Stream, fields| {
        let mut response = response(body, fields);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        let context = Capture::<_, Response<Stream>, Infallible>::context(responses, &get());
        Capture::<Request<()>, _, Infallible>::capture(responses, context, response)
            .await
            .shared
            .map(|_| ())
    };
    let responses = Responses::default().largest_body(8);
    let large = || stream(vec![Ok(data("too long")), Ok(data("!"))]);
    assert_eq!(of(&responses, 200, large(), &[]).await, Share::Private);
    assert_eq!(
        of(&responses, 500, large(), &[]).await,
        Share::Nobody,
        "the next response may be shorter"
    );
    let broken = stream(vec![Ok(data("begun")), Err(io::Error::other("broken"))]);
    assert_eq!(of(&responses, 200, broken, &[]).await, Share::Nobody);
    assert_eq!(
        of(&responses, 200, stream(vec![]), &[("content-length", "4")]).await,
        Share::Nobody
    );
}

#[tokio::test]
async fn what_others_get_has_an_age() {
    let fields = [("age", "100"), ("cache-control", "max-age=1000")];
    let began = std::time::Instant::now();
    let (own, answer) = capture(&Responses::default(), response(full(""), &fields)).await;
    assert_eq!(own.headers()["age"], "100");
    let age = |answer: &Answer| -> u64 {
        restore(answer.clone()).headers()["age"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    // In whole seconds, some of which may pass during the test.
    let since = |age: u64| age..age + 2 + began.elapsed().as_secs();
    let mut answer = answer.unwrap();
    let told = age(&answer);
    assert!(since(100).contains(&told), "{told}");
    answer.made -= 500;
    let told = age(&answer);
    assert!(since(600).contains(&told), "{told}");
    answer.made = u64::MAX;
    assert_eq!(age(&answer), 0, "the clock of the origin is ahead");
}
