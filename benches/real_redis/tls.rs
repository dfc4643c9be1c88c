//! Decisions over TLS, beside the same over a plain connection to the same server.

use tower_distributed::{Quota, Store, TokenBucket};

use crate::certificates::{Authority, TlsServer};
use crate::common::Bench;
use crate::common::report::{Better, Versus};
use crate::common::stats::median;
use crate::drive::per_second;

const NAME: &str = "tls-hot-key-share";
const CALLERS: u64 = 256;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    let authority = Authority::new("bench");
    let identity = authority.server(&["127.0.0.1"]);
    let server = bench.runtime.block_on(TlsServer::start(
        &authority,
        &identity,
        "tls-auth-clients no",
    ));
    let over_tls = Store::builder().root_certificates(authority.pem());
    let stores = [
        Store::redis(&server.server.url()),
        over_tls.redis(&server.url()),
    ];
    let quota = Quota::per_second(1_000_000).burst(1_000_000);
    let buckets =
        stores.map(|store| TokenBucket::new(&store.unwrap(), "bench", quota.clone()).unwrap());
    let round = |_| {
        let [plain, tls] = buckets.each_ref().map(|bucket| {
            let bucket = bucket.clone();
            per_second(&bench.runtime, CALLERS, bench.settings.length, move |_| {
                let bucket = bucket.clone();
                async move { assert!(bucket.allow("hot").await.is_ok()) }
            })
        });
        eprintln!("{NAME}: plain {plain:.0}/s, TLS {tls:.0}/s");
        (tls, plain)
    };
    let rounds: Vec<_> = (0..bench.settings.rounds).map(round).collect();
    Versus {
        name: NAME,
        measures: "decisions/s over TLS, one key, 256 callers",
        ours: median(rounds.iter().map(|round| round.0)),
        peer: "our bucket without TLS",
        theirs: median(rounds.iter().map(|round| round.1)),
        ratio: median(rounds.iter().map(|(tls, plain)| tls / plain)),
        better: Better::Higher,
    }
    .tell();
}
