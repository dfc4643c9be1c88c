//! What the pages of the examples share: how their files are served, who may press their buttons and looks, and how events are sent.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::{Stream, StreamExt as _, stream};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

/// The time between two events.
pub(crate) const EVERY: Duration = Duration::from_millis(150);
/// A page loads nothing from elsewhere, and runs no text that is not in its files.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The files that all pages share.
const SHARED: [File; 3] = [
    ("/page/style.css", include_str!("style.css")),
    ("/page/dom.js", include_str!("dom.js")),
    ("/page/live.js", include_str!("live.js")),
];

/// A path and a text.
pub(crate) type File = (&'static str, &'static str);

/// Serves the files of a page, and those that all pages share.
pub(crate) fn files<S: Clone + Send + Sync + 'static>(own: &[File]) -> Router<S> {
    let serve = |router: Router<S>, &(path, text): &File| {
        let answer = move || std::future::ready(file(path, text));
        router.route(path, get(answer))
    };
    SHARED.iter().chain(own).fold(Router::new(), serve)
}

fn file(path: &str, text: &'static str) -> Response {
    let kind = match path.rsplit_once('.') {
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "js")) => "text/javascript; charset=utf-8",
        _ => "text/html; charset=utf-8",
    };
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

/// Refuses what other pages in the same browser send: they must not press the buttons of this page.
pub(crate) async fn of_no_other_site(request: Request, next: Next) -> Response {
    let site = request
        .headers()
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes);
    let is_of_other_site = matches!(site, Some(b"cross-site" | b"same-site"));
    if request.method() == Method::POST && is_of_other_site {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(request).await
}

/// Sends a state several times a second; the first one at once. A slow reader gets the state of now, not what it missed.
/// Ends when the process is interrupted: a page that is open must not keep the process from ending.
pub(crate) fn events(
    state: impl FnMut() -> Value + Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let states = stream::unfold((state, ticks), async |(mut state, mut ticks)| {
        ticks.tick().await;
        let event = Event::default().data(state().to_string());
        Some((Ok(event), (state, ticks)))
    });
    Sse::new(states.take_until(Box::pin(interrupted())))
}

/// Counts who looks at a page. Clones share the count.
#[derive(Clone, Default)]
pub(crate) struct Watchers(Arc<AtomicUsize>);

/// A watcher, for as long as the value lives.
pub(crate) struct Watching(Watchers);

impl Watchers {
    pub(crate) fn watch(&self) -> Watching {
        self.0.fetch_add(1, Ordering::Relaxed);
        Watching(self.clone())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The time of now, in ms since 1970: tells pages that are open that this is another process than before.
pub(crate) fn started_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or_default()
}

/// What a path says, if it is one of two words.
pub(crate) fn one_of(text: &str, yes: &str, no: &str) -> Result<bool, StatusCode> {
    if text == yes {
        return Ok(true);
    }
    if text == no {
        Ok(false)
    } else {
        Err(StatusCode::NOT_FOUND)
    }
}

pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a signal handler it runs until it is killed.
        std::future::pending::<()>().await;
    }
}
