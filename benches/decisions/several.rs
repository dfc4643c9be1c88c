//! Three limits over different keys, charged in one step, beside three layers that ask one after the other.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use tower::util::BoxCloneSyncService;
use tower::{BoxError, Layer as _, Service, ServiceExt as _};
use tower_distributed::{Key, Quota, RateLimitLayer, Store, TokenBucket, TokenBuckets};

use crate::cell;
use crate::common::Bench;
use crate::common::report::{Better, Versus, number};
use crate::common::stats::median;
use crate::common::table::Table;
use crate::contestants::Contestant;
use crate::workload::Workload;

const NAME: &str = "multi-key-vs-one-script-each";
const CALLERS: usize = 256;
const NAMES: [&str; 3] = ["users", "tenants", "all"];

/// Answers at once.
#[derive(Clone, Copy)]
struct Inner;

impl Service<&'static str> for Inner {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: &'static str) -> Self::Future {
        ready(Ok(()))
    }
}

type Stack = BoxCloneSyncService<&'static str, (), BoxError>;

#[derive(Clone)]
struct Ours(Stack);

impl Contestant for Ours {
    async fn admits(&mut self, key: &'static str) -> bool {
        self.0.ready().await.unwrap().call(key).await.is_ok()
    }
}

fn user(request: &&'static str) -> Key {
    Key::from(*request)
}

/// One of ten.
fn tenant(request: &&'static str) -> Key {
    Key::from(&request[request.len() - 1..])
}

fn everybody(_: &&'static str) -> Key {
    Key::from("everybody")
}

fn buckets(bench: &Bench) -> [TokenBucket; 3] {
    bench.server.empty();
    let store = Store::redis(&bench.server.url).unwrap();
    // More than anybody asks for.
    NAMES.map(|name| TokenBucket::new(&store, name, Quota::per_second(1_000_000)).unwrap())
}

fn together(bench: &Bench) -> Ours {
    let limits = TokenBuckets::new(buckets(bench)).unwrap();
    let layer = RateLimitLayer::all_of(limits, (user, tenant, everybody));
    Ours(BoxCloneSyncService::new(layer.layer(Inner)))
}

fn one_script_each(bench: &Bench) -> Ours {
    let [users, tenants, all] = buckets(bench);
    let inner = RateLimitLayer::new(all, everybody).layer(Inner);
    let inner = RateLimitLayer::new(tenants, tenant).layer(inner);
    Ours(BoxCloneSyncService::new(
        RateLimitLayer::new(users, user).layer(inner),
    ))
}

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    let mut table = Table::new(
        format!("Three limits over different keys, {CALLERS} callers"),
        [
            "keys",
            "in one step/s",
            "p50 µs",
            "three layers/s",
            "p50 µs",
            "ratio",
        ],
    );
    for (of, workload) in [
        ("the same three keys", Workload::HotRefused),
        ("100 000 users, ten tenants", Workload::Many),
    ] {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..bench.settings.rounds {
            let run = |stack| {
                cell::run(
                    &bench.runtime,
                    stack,
                    workload,
                    CALLERS,
                    bench.settings.length,
                )
            };
            mine.push(run(together(bench)));
            theirs.push(run(one_script_each(bench)));
        }
        let per_second =
            |samples: &[cell::Sample]| median(samples.iter().map(|sample| sample.per_second));
        let p50 =
            |samples: &[cell::Sample]| median(samples.iter().map(|sample| sample.p50)) / 1000.0;
        let ratio = median(
            mine.iter()
                .zip(&theirs)
                .map(|(mine, theirs)| mine.per_second / theirs.per_second),
        );
        let (mine, theirs) = (
            (per_second(&mine), p50(&mine)),
            (per_second(&theirs), p50(&theirs)),
        );
        let cells = [mine.0.round(), mine.1, theirs.0.round(), theirs.1, ratio].map(number);
        let [mine_rate, mine_p50, theirs_rate, theirs_p50, by] = cells;
        table.row([
            of.to_owned(),
            mine_rate,
            mine_p50,
            theirs_rate,
            theirs_p50,
            by,
        ]);
        // Where each request has a bucket of its own to write, that is most of the work in both.
        if workload == Workload::HotRefused {
            Versus {
                name: NAME,
                measures: "decisions/s, three limits over the same three keys, 256 callers",
                ours: mine.0,
                peer: "our layer three times, one script each",
                theirs: theirs.0,
                ratio,
                better: Better::Higher,
            }
            .tell();
        }
    }
    table.print();
}
