//! The arguments, checked.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use tower_distributed::Quota;

/// Loads a URL or a primitive of tower-distributed with several processes, and checks what was promised.
///
/// Exit status: 0 if every promise was kept, 1 if one was broken, a process died or nothing was answered, 2 for bad
/// arguments.
#[derive(Debug, Parser)]
#[command(name = "load", after_help = EXAMPLES)]
pub(crate) struct Load {
    #[command(subcommand)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) run: Run,
}

const EXAMPLES: &str = "Examples:
  load http http://127.0.0.1:3000/limited --processes 2 --rate 20 --quota 5/s --burst 10
  load token-bucket --redis redis://127.0.0.1/ --quota 100/s --burst 20 --keys 4 --processes 4 --svg load.svg
  load mutex --redis redis://127.0.0.1/ --processes 4 --seconds 5

All keys that a run leaves in Redis expire: buckets and leases within their ttl, filters and items of dedupe within a day,
fencing tokens after 8 days.";

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Target {
    /// Requests to a URL. Admitted: 2xx; refused: 429, and 503 with Retry-After; all other answers are errors
    Http(Http),
    /// TokenBucket::allow. With all processes together, no interval may have more than burst + rate * t
    TokenBucket(TokenBucket),
    /// WaitGroup::add: permits that are held for a while. Never more at once than the cap
    WaitGroup(WaitGroup),
    /// Mutex::lock. Never two holders at once, and fencing tokens that rise
    Mutex(Lock),
    /// RwLock::read and RwLock::write. A writer is alone, and fencing tokens rise
    RwLock(RwLock),
    /// SingleFlight::run. Never two runs for a key at once; counts the calls of the origin
    SingleFlight(SingleFlight),
    /// Dedupe::claim and confirm. Every process sends the same items: none may pass twice
    Dedupe(Dedupe),
}

/// How much load, and for how long.
#[derive(Clone, Debug, Args)]
pub(crate) struct Run {
    /// Processes that send at the same time: copies of this one
    #[arg(long, global = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) processes: u32,
    /// Calls in flight, for each process
    #[arg(long, global = true, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) tasks: u32,
    /// Calls per second of each process, on a fixed schedule (open loop). Without it, each task makes its next call
    /// when it has the answer to the last (closed loop)
    #[arg(long, global = true, value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// How long to send
    #[arg(long, global = true, default_value = "10", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// Draws admitted and refused calls over time, with the allowed line, into this file
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Where the state of a primitive is.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// The URL of Redis. Default: the variable REDIS_URL
    #[arg(long, value_name = "URL", conflicts_with = "in_memory")]
    pub(crate) redis: Option<String>,
    /// Keeps the state in the process, so there can be one process only
    #[arg(long)]
    pub(crate) in_memory: bool,
    /// The URL is that of a node of a Redis Cluster (needs the feature `cluster`)
    #[arg(long, conflicts_with = "in_memory")]
    pub(crate) cluster: bool,
    /// The namespace of the primitive. Default: a new one for each run. With a name, the run shares the state of whatever
    /// uses it: for example the locks of your service
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// What the calls of a primitive are about.
#[derive(Clone, Debug, Args)]
pub(crate) struct Keys {
    /// How many keys the calls are spread over
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) keys: u64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Http {
    /// Such as http://127.0.0.1:3000/limited
    #[arg(value_parser = url)]
    pub(crate) url: Url,
    /// A header field of every request, such as 'x-api-key: ann'. Can be repeated
    #[arg(long, value_name = "FIELD", value_parser = header)]
    pub(crate) header: Vec<(HeaderName, HeaderValue)>,
    /// The method of every request
    #[arg(long, default_value = "GET")]
    pub(crate) method: reqwest::Method,
    /// How long to wait for each answer
    #[arg(long, default_value = "10000", value_name = "MS", value_parser = millis)]
    pub(crate) timeout_ms: Duration,
    /// The limit that all requests of this run together are under, such as 5/s. Checked if it is given
    #[arg(long)]
    pub(crate) quota: Option<Quota>,
    /// The burst of the quota
    #[arg(long, requires = "quota", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: Option<u32>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TokenBucket {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// The quota of each key, such as 100/s or '100/min, burst 20'
    #[arg(long)]
    pub(crate) quota: Quota,
    /// The burst of the quota
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) burst: Option<u32>,
}

/// How long leases are waited for and held.
#[derive(Clone, Debug, Args)]
pub(crate) struct Holding {
    /// How long each permit or lock is held
    #[arg(long, default_value = "5", value_name = "MS", value_parser = millis)]
    pub(crate) hold_ms: Duration,
    /// How long a call waits before it is refused
    #[arg(long, default_value = "1000", value_name = "MS", value_parser = millis)]
    pub(crate) max_wait_ms: Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WaitGroup {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// The most permits of a key at once
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cap: u32,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Lock {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) keys: Keys,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RwLock {
    #[command(flatten)]
    pub(crate) lock: Lock,
    /// How many of 100 calls write
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) writes: u32,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SingleFlight {
    #[command(flatten)]
    pub(crate) place: Place,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// How long the origin takes
    #[arg(long, default_value = "50", value_name = "MS", value_parser = millis)]
    pub(crate) origin_ms: Duration,
    /// How long an answer is shared
    #[arg(long, default_value = "500", value_name = "MS", value_parser = millis)]
    pub(crate) ttl_ms: Duration,
    /// How long a call waits before it is refused
    #[arg(long, default_value = "5000", value_name = "MS", value_parser = millis)]
    pub(crate) max_wait_ms: Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Dedupe {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Remembers items exactly, without a filter
    #[arg(long)]
    pub(crate) exact: bool,
    /// How many items are expected
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) capacity: u64,
    /// The share of new items that a full filter takes for duplicates, such as 0.001
    #[arg(long, default_value_t = 0.000_001, conflicts_with = "exact")]
    pub(crate) false_positive_rate: f64,
    /// How often each process sends each item
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) repeat: u64,
}

impl Load {
    /// What clap cannot check: what depends on several arguments.
    pub(crate) fn check(mut self) -> Result<Self, String> {
        let processes = self.run.processes;
        if let Some(place) = self.target.place_mut() {
            if place.redis.is_none() && !place.in_memory {
                place.redis = std::env::var("REDIS_URL").ok();
            }
            if place.redis.is_none() && !place.in_memory {
                return Err("give --redis URL, the variable REDIS_URL, or --in-memory".into());
            }
            if place.in_memory && processes > 1 {
                return Err(format!(
                    "--in-memory allows --processes 1, not {processes}: state in memory is not shared"
                ));
            }
            if place.cluster && !cfg!(feature = "cluster") {
                return Err(
                    "--cluster needs the feature: cargo run --release --features operator,cluster --example load"
                        .into(),
                );
            }
        }
        Ok(self)
    }
}

impl Target {
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Http(_) => None,
            Self::TokenBucket(TokenBucket { place, .. })
            | Self::WaitGroup(WaitGroup { place, .. })
            | Self::Mutex(Lock { place, .. })
            | Self::RwLock(RwLock {
                lock: Lock { place, .. },
                ..
            })
            | Self::SingleFlight(SingleFlight { place, .. })
            | Self::Dedupe(Dedupe { place, .. }) => Some(place),
        }
    }

    /// Returns how many keys the calls are spread over.
    pub(crate) fn keys(&self) -> u64 {
        match self {
            Self::Http(_) | Self::Dedupe(_) => 1,
            Self::TokenBucket(TokenBucket { keys, .. })
            | Self::WaitGroup(WaitGroup { keys, .. })
            | Self::Mutex(Lock { keys, .. })
            | Self::RwLock(RwLock {
                lock: Lock { keys, .. },
                ..
            })
            | Self::SingleFlight(SingleFlight { keys, .. }) => keys.keys,
        }
    }

    fn place_mut(&mut self) -> Option<&mut Place> {
        match self {
            Self::Http(_) => None,
            Self::TokenBucket(TokenBucket { place, .. })
            | Self::WaitGroup(WaitGroup { place, .. })
            | Self::Mutex(Lock { place, .. })
            | Self::RwLock(RwLock {
                lock: Lock { place, .. },
                ..
            })
            | Self::SingleFlight(SingleFlight { place, .. })
            | Self::Dedupe(Dedupe { place, .. }) => Some(place),
        }
    }

    /// Returns how long a call can take from its beginning until its lease is released.
    pub(crate) fn longest_call(&self) -> Duration {
        // A call of the store has its own bounds: 3.5 s.
        const STORE: Duration = Duration::from_secs(10);
        let more = match self {
            Self::Http(http) => http.timeout_ms,
            Self::WaitGroup(WaitGroup { holding, .. })
            | Self::Mutex(Lock { holding, .. })
            | Self::RwLock(RwLock {
                lock: Lock { holding, .. },
                ..
            }) => holding.max_wait_ms + holding.hold_ms,
            Self::SingleFlight(flight) => flight.max_wait_ms + flight.origin_ms,
            Self::TokenBucket(_) | Self::Dedupe(_) => Duration::ZERO,
        };
        STORE + more
    }

    /// Returns the quota to check, with its burst.
    pub(crate) fn quota(&self) -> Option<Quota> {
        let (quota, burst) = match self {
            Self::Http(Http { quota, burst, .. }) => (quota.clone()?, *burst),
            Self::TokenBucket(TokenBucket { quota, burst, .. }) => (quota.clone(), *burst),
            _ => return None,
        };
        Some(match burst {
            Some(burst) => quota.burst(burst),
            None => quota,
        })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    number(
        text,
        0.001..=1_000_000.0,
        "0.001 to 1000000 calls per second",
    )
}

fn seconds(text: &str) -> Result<Duration, String> {
    number(text, 0.1..=3600.0, "0.1 to 3600 seconds").map(Duration::from_secs_f64)
}

fn millis(text: &str) -> Result<Duration, String> {
    number(text, 0.0..=600_000.0, "0 to 600000 milliseconds")
        .map(|millis| Duration::from_secs_f64(millis / 1e3))
}

fn number(text: &str, range: std::ops::RangeInclusive<f64>, allowed: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("must be {allowed}"))
}

fn url(text: &str) -> Result<Url, String> {
    let url =
        Url::parse(text).map_err(|error| format!("{error}; a URL is http://host:port/path"))?;
    match url.scheme() {
        "http" => Ok(url),
        "https" => Err(
            "https is not supported, this example is built without TLS: use an http:// URL".into(),
        ),
        other => Err(format!("the scheme must be http, is {other}")),
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header field is 'name: value'")?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("{name:?} is no name of a header field"))?;
    let value = value
        .trim()
        .parse()
        .map_err(|_| format!("{value:?} is no value of a header field"))?;
    Ok((name, value))
}
