//! What measured pictures need: a server, copies of this process with roles, and the line that names the machine.

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::canvas::Done;
use support::program::program;
use support::redis_server::RedisServer;
use support::supervised::Supervised;

const ROLE: &str = "TOWER_DISTRIBUTED_PICTURE_ROLE";
/// Enough for all copies to start and connect.
const HEAD_START: f64 = 1.0;

/// Whether there is a server program.
pub(crate) fn has_server() -> bool {
    let mut version = Command::new(program());
    version
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// Runs a measurement on a server of its own.
pub(crate) fn on_server(run: impl AsyncFnOnce(&RedisServer) -> Done<String>) -> Done<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async { run(&RedisServer::start().await).await })
}

/// Names the machine and the day.
pub(crate) fn note(server: &RedisServer) -> Done<String> {
    let info: String = server.query(&["INFO", "server"])?;
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap_or("?");
    let cores = std::thread::available_parallelism()?;
    let build = if cfg!(debug_assertions) {
        "debug build, "
    } else {
        ""
    };
    Ok(format!(
        "measured: {build}{cores} virtual cores, Redis {}, {}",
        version.trim(),
        date(unix_time())
    ))
}

fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// The day in UTC (the algorithm `civil_from_days` of Howard Hinnant).
fn date(unix: f64) -> String {
    let days = (unix / 86_400.0) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_based = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_based + 2) / 5 + 1;
    let month = if march_based < 10 {
        march_based + 3
    } else {
        march_based - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// What a copy of this process has to do.
pub(crate) struct Role {
    pub(crate) name: String,
    /// From 0.
    pub(crate) process: usize,
    pub(crate) url: String,
    start: f64,
}

impl Role {
    /// Returns the role of this process, if it is a copy.
    pub(crate) fn of_this_process() -> Option<Self> {
        let role = std::env::var(ROLE).ok()?;
        let mut words = role.split(' ');
        Some(Self {
            name: words.next()?.to_owned(),
            process: words.next()?.parse().ok()?,
            url: words.next()?.to_owned(),
            start: words.next()?.parse().ok()?,
        })
    }

    /// Seconds since the start of the picture.
    pub(crate) fn now(&self) -> f64 {
        unix_time() - self.start
    }

    pub(crate) async fn until(&self, at: f64) {
        tokio::time::sleep(Duration::from_secs_f64((at - self.now()).max(0.0))).await;
    }

    /// Tells the parent that something happened now.
    pub(crate) fn tell(&self, what: &str, number: u64) {
        println!("{what} {:.6} {number}", self.now());
    }
}

/// What a copy of this process has told.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) process: usize,
    pub(crate) what: String,
    pub(crate) at: f64,
    pub(crate) number: u64,
}

/// Copies of this process that play one role.
pub(crate) struct Fleet {
    processes: Vec<Supervised>,
    readers: Vec<JoinHandle<()>>,
    events: Arc<Mutex<Vec<Event>>>,
    start: f64,
}

impl Fleet {
    pub(crate) fn start(role: &str, url: &str, count: usize) -> Done<Self> {
        let events = Arc::new(Mutex::new(Vec::new()));
        let start = unix_time() + HEAD_START;
        let mut fleet = Self {
            processes: Vec::new(),
            readers: Vec::new(),
            events,
            start,
        };
        for process in 0..count {
            let mut command = Supervised::command(std::env::current_exe()?, None);
            command
                .env(ROLE, format!("{role} {process} {url} {start}"))
                .stdout(Stdio::piped());
            let mut copy = Supervised::spawn(command);
            let stdout = copy.take_stdout().ok_or("no stdout")?;
            let events = Arc::clone(&fleet.events);
            fleet
                .readers
                .push(std::thread::spawn(move || read(process, stdout, &events)));
            fleet.processes.push(copy);
        }
        Ok(fleet)
    }

    pub(crate) fn now(&self) -> f64 {
        unix_time() - self.start
    }

    pub(crate) fn process(&mut self, process: usize) -> &mut Supervised {
        &mut self.processes[process]
    }

    /// What has been told so far, in the order of time.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events = self
            .events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        events.sort_by(|one, other| one.at.total_cmp(&other.at));
        events
    }

    /// Waits until all copies have ended.
    pub(crate) async fn finish(mut self) -> Vec<Event> {
        let readers = std::mem::take(&mut self.readers);
        let joined = tokio::task::spawn_blocking(move || {
            readers.into_iter().for_each(|reader| drop(reader.join()))
        });
        drop(joined.await);
        self.events()
    }
}

fn read(process: usize, stdout: ChildStdout, events: &Mutex<Vec<Event>>) {
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        let mut words = line.split(' ');
        let event = (
            words.next(),
            words.next().and_then(|at| at.parse().ok()),
            words.next().map(str::parse),
        );
        if let (Some(what), Some(at), Some(Ok(number))) = event {
            let event = Event {
                process,
                what: what.to_owned(),
                at,
                number,
            };
            events
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(event);
        }
    }
}

/// Returns the number of events of one kind over time.
pub(crate) fn counted(
    events: &[Event],
    is_one: impl Fn(&Event) -> bool,
    end: f64,
) -> Vec<(f64, f64)> {
    let mut points = vec![(0.0, 0.0)];
    let mut count = 0.0;
    for event in events.iter().filter(|event| is_one(event)) {
        count += 1.0;
        points.push((event.at, count));
    }
    points.push((end, count));
    points
}
