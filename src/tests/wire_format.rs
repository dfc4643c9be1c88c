//! Tests that the page lists every part of a key, and the channels. Its statements about them are tested in
//! `suite::wire_format`.

#![allow(clippy::unwrap_used)]

use crate::bucket::chosen::QuotaTable;
use crate::bucket::quotas::Quotas;
use crate::dedupe::exact::ExactClaims;
use crate::dedupe::filter::FilterClaims;
use crate::fleet::value::Sealed as _;
use crate::lease::holders::Exclusive;
use crate::lease::kind::Kind;
use crate::rw_lock::holders::ReadWrite;
use crate::single_flight::answer::Flight;
use crate::store::Store;
use crate::store::notifier::ALL;
use crate::wait_group::permits::Permits;

const PAGE: &str = include_str!("../docs/wire_format.md");

/// The parts in the rows of a primitive.
fn parts_of(primitive: &str) -> Vec<String> {
    let table = PAGE
        .lines()
        .skip_while(|line| !line.starts_with("| primitive |"))
        .skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let (mut parts, mut current) = (Vec::new(), "");
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        if !cells[0].is_empty() {
            current = cells[0];
        }
        if current.trim_matches('`') == primitive {
            parts.extend(cells[1].split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    parts
}

fn check(primitive: &str, parts: &[&str]) {
    let mut used: Vec<_> = parts
        .iter()
        .map(|part| part.trim_start_matches('@').to_owned())
        .collect();
    let mut stated = parts_of(primitive);
    used.sort();
    stated.sort();
    assert_eq!(stated, used, "{primitive}");
}

#[test]
fn the_page_has_the_parts_of_each_kind() {
    check("WaitGroup", &[Permits::PARTS, &["permits:limit"]].concat());
    check("Mutex", Exclusive::PARTS);
    check("RwLock", ReadWrite::PARTS);
    check("SingleFlight", Flight::PARTS);
    let (of_the_filter, of_the_claim): (Vec<_>, Vec<_>) = FilterClaims::PARTS
        .iter()
        .partition(|part| part.starts_with('@'));
    check("BloomFilter", &of_the_filter);
    check("Dedupe` on a filter", &of_the_claim);
    check("exact `Dedupe", &[ExactClaims::PARTS, &["layout"]].concat());
    check("TokenBucket", &["tat"]);
    check("FleetQuotas", Quotas::PARTS);
    check("FleetTable", QuotaTable::PARTS);
    check("FleetLimit", u32::PARTS);
    check(
        "[`CountedShare`](crate::StoreFailure::CountedShare)",
        &["members"],
    );
    check("[`RefusedKeys`](crate::fleet::RefusedKeys)", &["refused"]);
}

#[test]
fn the_page_has_the_channels() {
    let store = Store::builder()
        .prefix("prefix")
        .redis("redis://127.0.0.1/")
        .unwrap();
    for channel in ["process", ALL] {
        let name = format!("`{}{channel}`", store.channels());
        assert!(PAGE.contains(&name), "{name}");
    }
}
