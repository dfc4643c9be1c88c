//! The callers: each asks again as soon as it has its answer. Some go away before they have it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::routes::Route;

const CALLERS: u64 = 128;

/// One of so many requests is given up after this time, if there is no response yet.
const GIVES_UP: u64 = 500;
const PATIENCE: Duration = Duration::from_millis(1);

/// Requests that take longer failed.
const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct Load {
    /// By route: how long its requests took, in µs.
    pub latencies: [Vec<u32>; Route::ALL.len()],
    /// By route and status.
    pub statuses: BTreeMap<(usize, u16), u64>,
    pub given_up: u64,
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

impl Load {
    fn count(&mut self, route: Route, answered: Result<StatusCode, String>, took: Duration) {
        match answered {
            Ok(status) => {
                self.latencies[route as usize].push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                *self.statuses.entry((route as usize, status.as_u16())).or_default() += 1;
                if !route.expects(status) {
                    *self.errors.entry(format!("{}: {status}", route.title())).or_default() += 1;
                }
            }
            Err(error) => *self.errors.entry(format!("{}: {error}", route.title())).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) {
        for (all, own) in self.latencies.iter_mut().zip(other.latencies) {
            all.extend(own);
        }
        other.statuses.into_iter().for_each(|(key, count)| *self.statuses.entry(key).or_default() += count);
        other.errors.into_iter().for_each(|(key, count)| *self.errors.entry(key).or_default() += count);
        self.given_up += other.given_up;
    }
}

type HttpClient = Client<HttpConnector, String>;

/// All callers, for so long.
pub async fn run(port: u16, length: Duration) -> Load {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: HttpClient = Client::builder(TokioExecutor::new()).build(connector);
    let (base, numbers) = (format!("http://127.0.0.1:{port}"), Arc::<AtomicU64>::default());
    let end = Instant::now() + length;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        callers.spawn(call(client.clone(), base.clone(), Arc::clone(&numbers), Random(caller), end));
    }
    let mut load = Load::default();
    while let Some(one) = callers.join_next().await {
        load.add(one.unwrap());
    }
    load.latencies.iter_mut().for_each(|latencies| latencies.sort_unstable());
    load
}

async fn call(
    client: HttpClient,
    base: String,
    numbers: Arc<AtomicU64>,
    mut random: Random,
    end: Instant,
) -> Load {
    let mut load = Load::default();
    while Instant::now() < end {
        let route = Route::draw(&mut random);
        let request = route.request(&base, numbers.fetch_add(1, Ordering::Relaxed), &mut random);
        let began = Instant::now();
        let answer = async {
            let response = client.request(request).await.map_err(|error| format!("{error:?}"))?;
            let status = response.status();
            // Permits and locks are held to the end of the body.
            response.into_body().collect().await.map_err(|error| format!("{error:?}"))?;
            Ok(status)
        };
        let gives_up = random.below(GIVES_UP) == 0;
        match timeout(if gives_up { PATIENCE } else { DEADLINE }, answer).await {
            Ok(answered) => load.count(route, answered, began.elapsed()),
            Err(_) if gives_up => load.given_up += 1,
            Err(_) => load.count(route, Err("no response in time".to_owned()), began.elapsed()),
        }
    }
    load
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}
