//! How many new items a second go into a Bloom filter, beside its own script with one item per call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_distributed::{BloomFilter, Store};

use crate::callers::{self, Caller};
use crate::common::Bench;
use crate::one_script_each::Bare;

const NAME: &str = "bloom-vs-one-script-each";
const OURS: &str = "BloomFilter::insert";
const BARE: &str = "its script, one EVALSHA each";
const CAPACITY: u64 = 1_000_000;
const RATE: f64 = 0.01;

pub fn run(bench: &Bench) {
    if !bench.settings.wants(NAME) {
        return;
    }
    let filter = BloomFilter::new(
        &Store::redis(&bench.server.url).unwrap(),
        "bench",
        CAPACITY,
        RATE,
    );
    let filter = filter.unwrap();
    let bare = bench
        .runtime
        .block_on(Bare::connect(&bench.server.url, &filter));
    bench.runtime.block_on(same_filter(&filter, bare.clone()));

    let wanted = |title: &str| {
        bench
            .settings
            .only()
            .is_none_or(|part| title.contains(part))
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..bench.settings.rounds {
        // Who begins changes.
        for turn in [round % 2, (round + 1) % 2] {
            bench.server.empty();
            let next = Arc::new(AtomicU64::new(0));
            let length = bench.settings.length;
            if turn == 0 && wanted(OURS) {
                let inserter = |_| Inserter {
                    filter: filter.clone(),
                    next: next.clone(),
                };
                ours.push(callers::run(&bench.runtime, length, inserter));
            } else if turn == 1 && wanted(BARE) {
                let inserter = |_| Inserter {
                    filter: bare.clone(),
                    next: next.clone(),
                };
                theirs.push(callers::run(&bench.runtime, length, inserter));
            }
        }
    }
    let (callers, bits, hashes) = (callers::CALLERS, filter.size().bits, filter.size().hashes);
    let title = format!(
        "New items, {callers} callers, capacity {CAPACITY}, rate {RATE}: {bits} bits, {hashes} hashes"
    );
    callers::print(&title, &[(OURS, &ours), (BARE, &theirs)]);
    if bench.settings.only().is_none() {
        callers::versus(
            NAME,
            "new items/s in a Bloom filter, 256 callers",
            &ours,
            BARE,
            &theirs,
        );
    }
}

/// What one has inserted is known to the other.
async fn same_filter(filter: &BloomFilter, mut bare: Bare) {
    assert!(filter.insert("by us").await.unwrap());
    assert!(!bare.check_and_insert(b"by us").await);
    assert!(bare.check_and_insert(b"by the script").await);
    assert!(!filter.insert("by the script").await.unwrap());
}

/// Inserts an item that nobody has inserted before.
struct Inserter<F> {
    filter: F,
    next: Arc<AtomicU64>,
}

impl<F> Inserter<F> {
    fn item(&self) -> [u8; 8] {
        self.next.fetch_add(1, Ordering::Relaxed).to_le_bytes()
    }
}

impl Caller for Inserter<BloomFilter> {
    async fn call(&mut self) {
        let item = self.item();
        self.filter.insert(item).await.unwrap();
    }
}

impl Caller for Inserter<Bare> {
    async fn call(&mut self) {
        let item = self.item();
        self.filter.check_and_insert(&item).await;
    }
}
