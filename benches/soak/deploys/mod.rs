//! Gateways on a Cluster whose servers are restarted, fail over and pass on slots, while gateways are killed and
//! replaced. A referee in this process, whom the handlers tell when they begin and end, judges every promise.
//!
//! ```text
//! cargo bench -p tower-distributed-soak --features cluster --bench soak -- deploys    60 s, an event every 10 s
//! SECONDS=7200 EVERY=60 cargo bench … -- deploys                                      2 hours, an event every minute
//! FORGE=1 cargo bench … -- deploys                                                    must fail: the referee finds breaches
//! ```
//!
//! * The Cluster has three masters with a replica each, which write each call to a file before they answer; calls count
//!   once a replica has them. So nothing is lost, and each promise is judged at all times.
//! * One gateway lives all the time. Its memory, descriptors and threads, and the connections, channels and keys of the
//!   servers, must not grow from the first third of the time to the last.
//! * Requests may fail for some time after an event: see [`Event::bound`](events::Event::bound).

mod book;
mod events;
mod fleet;
pub mod forged;
pub mod presence;
pub mod referee;
mod report;
mod samples;
pub mod terms;
pub mod visit;

use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use self::events::Event;
use self::fleet::Fleet;
use self::referee::Referee;
use self::report::Report;
use self::samples::Sample;
use crate::common::settings::seconds;
use crate::load::Crowd;
use support::keys::keys_without_ttl;
use support::replicated::ReplicatedCluster;

/// What is written to a file outlasts the process, without an fsync, which a busy disk holds up.
const CONFIG: &str = "appendonly yes\nappendfsync no\nmin-replicas-to-write 1";

/// Between two events, in seconds.
const EVERY: f64 = 10.0;

const CALLERS: u64 = 40;
/// The longest pause of a caller, ms.
const PAUSE: u64 = 400;
/// Of a request: a lock may be waited for during several works.
const DEADLINE: Duration = Duration::from_secs(75);

/// Whether all bounds hold. Prints what was measured.
pub fn soak(runtime: &Runtime, length: Duration) -> bool {
    let every = seconds("EVERY", EVERY).unwrap();
    let cluster = runtime.block_on(ReplicatedCluster::start(CONFIG));
    let referee = runtime.block_on(Referee::start());
    let mut fleet = Fleet::start(&cluster, &referee);
    let crowd = Crowd {
        callers: CALLERS,
        pause: PAUSE,
        spread: 1,
        gateways: fleet.ports.clone(),
        deadline: DEADLINE,
        referee: Some(referee.clone()),
    };
    let (began, load) = (Instant::now(), runtime.spawn(crowd.run(length)));
    let (mut events, mut samples) = (Vec::new(), Vec::new());
    let (mut next, mut calm) = (every, every / 2);
    while began.elapsed() < length {
        if began.elapsed() >= next && began.elapsed() + every <= length {
            let event = Event::ALL[events.len() % Event::ALL.len()];
            events.push((event, Instant::now()));
            event.strike(
                runtime,
                &cluster,
                &mut fleet,
                events.len() / Event::ALL.len(),
            );
            next = (next + every).max(began.elapsed());
            calm = began.elapsed() + every / 2;
        } else if began.elapsed() >= calm {
            samples.push(Sample::take(began.elapsed(), fleet.lasting(), &cluster));
        }
        sleep(every / 20);
    }
    let load = runtime.block_on(load).unwrap();
    fleet.end();
    let lasting = cluster
        .masters()
        .into_iter()
        .flat_map(keys_without_ttl)
        .collect();
    referee.book().finish(referee.now());
    let book = &referee.book();
    let report = Report {
        length,
        began,
        referee_began: referee.began,
        load,
        events,
        samples,
        book,
        lasting,
    };
    report.print();
    let problems = [report.problems(), fleet.problems].concat();
    problems
        .iter()
        .for_each(|problem| eprintln!("deploys: {problem}"));
    problems.is_empty()
}
