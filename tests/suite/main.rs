//! What a token bucket does, on every store: each test is written once and runs in process, on one Redis, on a
//! Cluster of three masters and behind Sentinel.
#![cfg(all(feature = "cluster", feature = "sentinel"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

mod buckets;
mod callers;
mod keys;
mod stores;

/// Runs each test on each store.
macro_rules! on_every_store {
    ($($test:path as $name:ident),* $(,)?) => {
        on_every_store! { @ in_process $($test as $name),* }
        on_every_store! { @ redis $($test as $name),* }
        on_every_store! { @ cluster $($test as $name),* }
        on_every_store! { @ sentinel $($test as $name),* }
    };
    (@ $store:ident $($test:path as $name:ident),*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let store = crate::stores::$store().await;
                    $test(&store, stringify!($name)).await;
                }
            )*
        }
    };
}

on_every_store! {
    crate::buckets::a_burst_is_admitted_and_the_rest_refused as a_burst_is_admitted_and_the_rest_refused,
    crate::buckets::all_quotas_are_charged_or_none as all_quotas_are_charged_or_none,
    crate::buckets::what_never_refills_stays_used_up as never_refilled_stays_used_up,
    crate::buckets::a_reservation_is_given_back as a_reservation_is_given_back,
    crate::buckets::waiting_takes_its_time as waiting_takes_its_time,
    crate::buckets::a_block_holds_for_every_holder_of_the_name as a_block_holds_for_all,
    crate::buckets::other_quotas_per_call as other_quotas_per_call,
    crate::callers::a_crowd_on_one_key_gets_the_burst as a_crowd_on_one_key_gets_the_burst,
    crate::callers::a_crowd_of_mixed_costs_gets_the_burst as a_crowd_of_mixed_costs_gets_the_burst,
    crate::callers::a_crowd_on_many_keys_gets_each_burst as a_crowd_on_many_keys_gets_each_burst,
    crate::callers::a_caller_that_goes_away_gives_back as a_caller_that_goes_away_gives_back,
    crate::callers::futures_that_are_not_polled_hold_nobody_up as unpolled_futures_hold_nobody_up,
    crate::keys::any_key_is_legal_and_apart_from_others as any_key_is_legal_and_apart_from_others,
}
