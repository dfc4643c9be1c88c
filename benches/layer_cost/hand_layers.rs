//! The same jobs as users write them: middleware with scripts of their own, on one shared connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{self, RedisResult, Value};

use crate::by_hand;
use crate::services::Job;

#[derive(Clone)]
struct Hand {
    job: Job,
    connection: MultiplexedConnection,
    /// The scripts of the two steps; a rate limit has one.
    before: Arc<str>,
    after: Option<Arc<str>>,
    tokens: Arc<AtomicU64>,
}

pub async fn layered(job: Job, app: Router, url: &str) -> Router {
    let mut connection = by_hand::connect(url).await;
    let (before, after) = match job {
        Job::Rate => (by_hand::TAKE, None),
        Job::Permit => (by_hand::ENTER, Some(by_hand::LEAVE)),
        Job::Mutex => (by_hand::LOCK, Some(by_hand::UNLOCK)),
        Job::Dedupe => (by_hand::CLAIM, Some(by_hand::CONFIRM)),
        Job::Flight => (by_hand::LEAD, Some(by_hand::PUBLISH)),
        Job::RwLock | Job::Five | Job::Empty | Job::FiveEmpty => {
            unreachable!("there is none by hand")
        }
    };
    // As many as the layer lets in.
    let before = before.replace(">= 16", ">= 1000");
    let mut load = async |script: &str| -> Arc<str> {
        let name: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await
            .unwrap();
        name.into()
    };
    let before = load(&before).await;
    let after = match after {
        Some(after) => Some(load(after).await),
        None => None,
    };
    let hand = Hand {
        job,
        connection,
        before,
        after,
        tokens: Arc::default(),
    };
    app.layer(from_fn_with_state(hand, run))
}

async fn run(State(mut hand): State<Hand>, request: Request, next: Next) -> Response {
    let key = match hand.job {
        Job::Permit => "all".to_owned(),
        Job::Flight => request.uri().to_string(),
        _ => request.headers()["webhook-id"].to_str().unwrap().to_owned(),
    };
    let (first, second) = (
        format!("{{hand:{key}}}:lock"),
        format!("{{hand:{key}}}:mark"),
    );
    let token = format!(
        "0123456789abcdef-{:08x}",
        hand.tokens.fetch_add(1, Ordering::Relaxed)
    );
    let before = Arc::clone(&hand.before);
    let admitted = match hand.job {
        Job::Rate => hand.call(&before, &[&first], &[b"1", b"1000000"]).await,
        _ => {
            hand.call(&before, &[&first, &second], &[token.as_bytes()])
                .await
        }
    };
    if !matches!(admitted, Ok(Value::Int(1..))) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let response = next.run(request).await;
    let Some(after) = hand.after.clone() else {
        return response;
    };
    if hand.job != Job::Flight {
        return match hand
            .call(&after, &[&first, &second], &[token.as_bytes()])
            .await
        {
            Ok(_) => response,
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        };
    }
    let (head, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    // The answer does not wait for its publication.
    let (answer, keys) = (body.clone(), [first, second]);
    tokio::spawn(async move {
        hand.call(&after, &[&keys[0], &keys[1]], &[token.as_bytes(), &answer])
            .await
            .unwrap();
    });
    Response::from_parts(head, Body::from(body))
}

impl Hand {
    async fn call(
        &mut self,
        script: &str,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> RedisResult<Value> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(script).arg(keys.len()).arg(keys).arg(arguments);
        call.query_async(&mut self.connection).await
    }
}
