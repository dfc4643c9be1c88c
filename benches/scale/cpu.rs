//! CPU time of the server per operation, and operations per second that follow from it, beside those of a server that
//! gets the same calls as fast as it takes them, per second of its CPU time.

use std::time::Duration;

use crate::common::Bench;
use crate::common::report::number;
use crate::common::stats::median;
use crate::common::table::Table;
use crate::drive::drive;
use crate::meter::Meter;
use crate::operations::{KINDS, Kind, patient};
use crate::replay::{Recorder, listen};
use support::eventually;

pub const CALLERS: u64 = 256;

/// Operations of a caller that is alone, and so many before it counts.
const ALONE: u64 = 5000;
const WARM_UP: u64 = 2000;

const SOON: Duration = Duration::from_secs(10);

pub fn run(bench: &Bench) {
    let columns = [
        "operation",
        "µs, 256",
        "calls/op",
        "µs, alone",
        "computed/s",
        "measured/s",
        "of a core",
    ];
    let title = "CPU time of the server per operation, 256 callers in each process, or one caller";
    let mut table = Table::new(title, columns);
    let wanted = |kind: &&Kind| {
        bench
            .settings
            .only()
            .is_none_or(|part| kind.title.contains(part))
    };
    for kind in KINDS.iter().filter(wanted) {
        let rounds: Vec<_> = (0..bench.settings.rounds)
            .map(|_| round(bench, kind))
            .collect();
        let of = |read: fn(&Round) -> f64| median(rounds.iter().map(read));
        table.row([
            kind.title.to_owned(),
            number(of(|round| round.crowd)),
            number(of(|round| round.calls)),
            number(of(|round| round.alone)),
            number((1e6 / of(|round| round.crowd)).round()),
            number(of(|round| round.replayed).round()),
            number(of(|round| round.share)),
        ]);
    }
    table.print();
}

struct Round {
    /// µs per operation, of 256 callers and of one.
    crowd: f64,
    alone: f64,
    /// Script calls per operation.
    calls: f64,
    /// Operations per second of a saturated server that has a core of its own; and the share of a core that it had: 1
    /// if nothing else runs on the machine.
    replayed: f64,
    share: f64,
}

fn round(bench: &Bench, kind: &Kind) -> Round {
    bench.server.empty();
    let url = &bench.server.url;
    let mut meter = Meter::new(&[url]);
    let stores = [(); 2].map(|()| patient().redis(url).unwrap());
    let operation = (kind.make)(&stores);
    drive(&bench.runtime, &operation, CALLERS, 0..WARM_UP);
    let mut next = WARM_UP;
    let mut measure = |callers, count| {
        let before = meter.read();
        drive(&bench.runtime, &operation, callers, next..next + count);
        next += count;
        (meter.read() - before, count as f64)
    };
    let (crowd, count) = measure(CALLERS, kind.count);
    let (alone, alone_count) = measure(1, ALONE);

    // The recording starts with an empty server, as the replay does.
    bench.server.empty();
    let recorder = Recorder::start(url);
    let recorded = kind.count / 2;
    drive(&bench.runtime, &operation, CALLERS, next..next + recorded);
    let calls = recorder.finish();
    // The processes would answer the messages. Somebody else gets them.
    let subscribed = || bench.server.query::<Vec<String>>(&["PUBSUB", "CHANNELS"]);
    let channels = subscribed();
    drop((operation, stores));
    bench.runtime.block_on(eventually(
        "the end of the subscriptions",
        SOON,
        async || subscribed().is_empty(),
    ));
    let _listener = listen(url, &channels);
    bench.server.empty();
    let before = meter.read();
    let took = calls.replay(url).as_secs_f64();
    let busy = (meter.read() - before).cpu / 1e6;
    Round {
        crowd: crowd.cpu / count,
        alone: alone.cpu / alone_count,
        calls: crowd.scripts / count,
        replayed: recorded as f64 / busy,
        share: busy / took,
    }
}
