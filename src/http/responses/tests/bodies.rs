//! Bodies of shared and unshared responses.

use super::*;

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("\"7\""))])
}

#[tokio::test]
async fn all_get_status_fields_and_body() {
    let mut response = response(
        stream(vec![Ok(data("one, ")), Ok(data("")), Ok(data("two"))]),
        &[("x-a", "7")],
    );
    *response.status_mut() = StatusCode::NOT_FOUND;
    response.extensions_mut().insert("extension");
    let (own, answer) = capture(&Responses::default(), response).await;
    assert_eq!(own.extensions().get::<&str>(), Some(&"extension"));
    let restored = restore(answer.unwrap());
    assert_eq!(
        [own.status(), restored.status()],
        [StatusCode::NOT_FOUND; 2]
    );
    assert_eq!(
        [&own.headers()["x-a"], &restored.headers()["x-a"]],
        ["7"; 2]
    );
    assert_eq!([text(own).await, text(restored).await], ["one, two"; 2]);
}

#[tokio::test]
async fn what_is_not_shared_is_not_read() {
    let unread = || Unread(SizeHint::new());
    let cookie = response(unread(), &[("set-cookie", "a=b")]);
    let (own, answer) = capture(&Responses::default(), cookie).await;
    assert!(answer.is_none() && own.headers().contains_key("set-cookie"));

    let never = Responses::default().share_when(|_| false);
    assert!(capture(&never, response(unread(), &[])).await.1.is_none());

    let known = Unread(SizeHint::with_exact(9));
    let (own, answer) = capture(&Responses::default().largest_body(8), response(known, &[])).await;
    assert_eq!((own.body().size_hint().exact(), answer), (Some(9), None));

    Capture::<Request<()>, _, Infallible>::pass(&Responses::default(), response(unread(), &[]));
}

#[tokio::test]
async fn the_closure_has_the_last_word() {
    let cookies = Responses::default().share_when(|parts| parts.status.is_success());
    let theme = response(full("body"), &[("set-cookie", "theme=dark")]);
    let (_, answer) = capture(&cookies, theme).await;
    assert_eq!(answer.unwrap().headers()["set-cookie"], "theme=dark");
}

/// A body beyond the budget is passed on as it arrives, and is not shared.
#[tokio::test]
async fn no_more_is_read_at_a_time_than_there_is_room_for() {
    let responses = Responses::default().max_buffered(10);
    let (chunks, body) = futures::channel::mpsc::unbounded::<Result<Frame<Bytes>, Infallible>>();
    let (slow, clone) = (
        response(http_body_util::StreamBody::new(body), &[]),
        responses.clone(),
    );
    let slow = tokio::spawn(async move { capture(&clone, slow).await.1 });
    chunks.unbounded_send(Ok(data("sixsix"))).unwrap();
    tokio::task::yield_now().await;
    let other = || response(stream(vec![Ok(data("five")), Ok(data("5"))]), &[]);
    let (own, answer) = capture(&responses, other()).await;
    assert!(answer.is_none());
    assert_eq!(text(own).await, "five5");
    drop(chunks);
    assert_eq!(slow.await.unwrap().unwrap().body(), "sixsix");
    let (_, answer) = capture(&responses, other()).await;
    assert_eq!(answer.unwrap().body(), "five5");
}

/// The caller gets the data that were read, even if the rest never arrives.
#[tokio::test]
async fn a_body_that_is_too_large_streams_on() {
    use futures::StreamExt as _;

    let endless = stream::iter([Ok::<_, io::Error>(data("four")), Ok(data("five!"))])
        .chain(stream::pending());
    let responses = Responses::default().largest_body(8);
    let (own, answer) = capture(&responses, response(StreamBody::new(endless), &[])).await;
    assert!(answer.is_none());
    let mut body = own.into_body();
    for data in ["four", "five!"] {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), data);
    }
    // A body of the maximum length is shared, and a chunked body then has a length.
    let largest = stream(vec![Ok(data("four")), Ok(data("five"))]);
    let (own, answer) = capture(&responses, response(largest, &[])).await;
    let restored = restore(answer.unwrap());
    assert_eq!(
        [
            own.body().size_hint().exact(),
            restored.body().size_hint().exact()
        ],
        [Some(8); 2]
    );
    assert_eq!([text(own).await, text(restored).await], ["fourfive"; 2]);
    let none = Responses::default().largest_body(0);
    let (_, answer) = capture(&none, response(full(""), &[])).await;
    assert_eq!(answer.unwrap().body(), "");
}

#[tokio::test]
async fn trailers_are_shared_with_the_body() {
    let frames = vec![Ok(data("body")), Ok(Frame::trailers(trailers()))];
    let response = response(stream(frames), &[("trailer", "etag")]);
    let (own, answer) = capture(&Responses::default(), response).await;
    assert_eq!(own.headers()["trailer"], "etag");
    assert_eq!(
        own.into_body().collect().await.unwrap().trailers(),
        Some(&trailers())
    );

    let restored = restore(answer.unwrap());
    assert_eq!(restored.headers()["trailer"], "etag");
    assert_eq!(restored.body().size_hint().exact(), None);
    assert_eq!(
        restored.into_body().collect().await.unwrap().trailers(),
        Some(&trailers())
    );
}

#[tokio::test]
async fn what_is_not_as_long_as_it_says_is_not_shared() {
    let told = |length, body| response(full(body), &[("content-length", length)]);
    let responses = Responses::default();
    assert!(capture(&responses, told("4", "body")).await.1.is_some());
    for (length, body) in [("5", "body"), ("4", ""), ("four", "body"), ("-4", "body")] {
        let (own, answer) = capture(&responses, told(length, body)).await;
        assert!(answer.is_none());
        assert_eq!(text(own).await, body);
    }
}

#[tokio::test]
async fn head_keeps_its_content_length() {
    let head = Request::head("/").body(()).unwrap();
    let response = response(full(""), &[("content-length", "1234")]);
    let (own, answer) = capture_for(&Responses::default(), &head, response).await;
    let restored = restore(answer.unwrap());
    assert_eq!(
        [own.headers(), restored.headers()].map(|headers| &headers["content-length"]),
        ["1234"; 2]
    );
    assert_eq!([text(own).await, text(restored).await], [""; 2]);
}
