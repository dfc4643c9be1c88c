//! The callers: each asks again as soon as it has its answer, or after a pause. Some go away before they have it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::report::number;
use crate::common::stats::percentile;
use crate::common::table::Table;
use crate::deploys::referee::Referee;
use crate::deploys::visit::{VISIT, Visit};
use crate::routes::Route;

/// One of so many requests is given up after this time, if there is no response yet.
const GIVES_UP: u64 = 500;
const PATIENCE: Duration = Duration::from_millis(1);

/// The ports of the gateways that serve now.
pub type Gateways = Arc<RwLock<Vec<u16>>>;

#[derive(Clone)]
pub struct Crowd {
    pub callers: u64,
    /// The longest pause of a caller between two requests, in ms.
    pub pause: u64,
    /// See [`Route::request`].
    pub spread: u64,
    pub gateways: Gateways,
    /// Requests that take longer failed.
    pub deadline: Duration,
    pub referee: Option<Arc<Referee>>,
}

#[derive(Default)]
pub struct Load {
    /// By route: how long its requests took, in µs.
    pub latencies: [Vec<u32>; Route::ALL.len()],
    /// By route and status.
    pub statuses: BTreeMap<(usize, u16), u64>,
    pub given_up: u64,
    /// What went wrong, and when.
    pub errors: Vec<(Instant, String)>,
}

impl Load {
    fn count(&mut self, route: Route, answered: Result<StatusCode, String>, took: Duration) {
        let mut failed = |error| {
            self.errors
                .push((Instant::now(), format!("{}: {error}", route.title())))
        };
        match answered {
            Ok(status) => {
                if !route.expects(status) {
                    failed(status.to_string());
                }
                self.latencies[route as usize]
                    .push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                *self
                    .statuses
                    .entry((route as usize, status.as_u16()))
                    .or_default() += 1;
            }
            Err(error) => failed(error),
        }
    }

    /// By route.
    pub fn print(&self, title: String) {
        let mut table = Table::new(
            title,
            [
                "route", "requests", "p50 ms", "p99 ms", "max ms", "statuses",
            ],
        );
        for route in Route::ALL {
            let latencies = &self.latencies[route as usize];
            let of = |share| percentile(latencies, share) / 1000.0;
            let statuses = self
                .statuses
                .range((route as usize, 0)..=(route as usize, u16::MAX));
            let statuses: Vec<_> = statuses
                .map(|((_, status), count)| format!("{status}: {count}"))
                .collect();
            let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| number(of(share)));
            table.row([
                route.title().to_owned(),
                number(latencies.len() as f64),
                p50,
                p99,
                longest,
                statuses.join(", "),
            ]);
        }
        table.print();
    }

    /// The routes without any response.
    pub fn silent(&self) -> impl Iterator<Item = String> {
        let silent = Route::ALL
            .iter()
            .filter(|&&route| self.latencies[route as usize].is_empty());
        silent.map(|route| format!("no response: {}", route.title()))
    }

    fn add(&mut self, other: Self) {
        for (all, own) in self.latencies.iter_mut().zip(other.latencies) {
            all.extend(own);
        }
        other
            .statuses
            .into_iter()
            .for_each(|(key, count)| *self.statuses.entry(key).or_default() += count);
        self.errors.extend(other.errors);
        self.given_up += other.given_up;
    }
}

type HttpClient = Client<HttpConnector, String>;

impl Crowd {
    /// All callers, for so long.
    pub async fn run(self, length: Duration) -> Load {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: HttpClient = Client::builder(TokioExecutor::new()).build(connector);
        let (numbers, end) = (Arc::<AtomicU64>::default(), Instant::now() + length);
        let mut callers = JoinSet::new();
        for caller in 0..self.callers {
            let (crowd, client, numbers) = (self.clone(), client.clone(), Arc::clone(&numbers));
            callers.spawn(async move { crowd.call(&client, &numbers, Random(caller), end).await });
        }
        let mut load = Load::default();
        while let Some(one) = callers.join_next().await {
            load.add(one.unwrap());
        }
        load.latencies
            .iter_mut()
            .for_each(|latencies| latencies.sort_unstable());
        load.errors.sort_unstable();
        load
    }

    async fn call(
        &self,
        client: &HttpClient,
        numbers: &AtomicU64,
        mut random: Random,
        end: Instant,
    ) -> Load {
        let mut load = Load::default();
        while Instant::now() < end {
            let route = Route::draw(&mut random);
            let mut request = route.request(
                numbers.fetch_add(1, Ordering::Relaxed),
                self.spread,
                &mut random,
            );
            let mut key = None;
            if let Some(referee) = &self.referee {
                let visit = Visit::draw(route, &request, referee.now(), &mut random);
                request.headers_mut().insert(VISIT, visit.header());
                key = Some(visit.key);
            }
            let began = Instant::now();
            let gives_up = self.referee.is_none() && random.below(GIVES_UP) == 0;
            let answer = self.ask(client, &request, &mut random);
            match timeout(if gives_up { PATIENCE } else { self.deadline }, answer).await {
                Ok(answered) => {
                    if let (Some(referee), Some(key), Ok(StatusCode::OK)) =
                        (&self.referee, key, &answered)
                        && matches!(route, Route::Webhook | Route::Event)
                    {
                        referee.book().confirm(referee.now(), route, &key);
                    }
                    load.count(route, answered, began.elapsed());
                }
                Err(_) if gives_up => load.given_up += 1,
                Err(_) => load.count(
                    route,
                    Err("no response in time".to_owned()),
                    began.elapsed(),
                ),
            }
            if self.pause > 0 {
                sleep(Duration::from_millis(random.below(self.pause))).await;
            }
        }
        load
    }

    /// Asks one of the gateways; another one if that has gone before it had the request.
    async fn ask(
        &self,
        client: &HttpClient,
        request: &Request<String>,
        random: &mut Random,
    ) -> Result<StatusCode, String> {
        loop {
            let port = {
                let gateways = self.gateways.read().unwrap();
                gateways[random.below(gateways.len() as u64) as usize]
            };
            let mut request = request.clone();
            let path = request.uri().path();
            *request.uri_mut() = format!("http://127.0.0.1:{port}{path}").parse().unwrap();
            let response = match client.request(request).await {
                Err(error)
                    if error.is_connect() && !self.gateways.read().unwrap().contains(&port) =>
                {
                    continue;
                }
                response => response.map_err(|error| format!("{error:?}"))?,
            };
            let status = response.status();
            // Permits and locks are held to the end of the body.
            response
                .into_body()
                .collect()
                .await
                .map_err(|error| format!("{error:?}"))?;
            return Ok(status);
        }
    }
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
