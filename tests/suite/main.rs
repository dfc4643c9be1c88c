//! What the primitives do, on every store: each test is written once and runs in process, on one Redis by a URL and
//! by a pool alone, on a Cluster of three masters and behind Sentinel.
#![cfg(all(
    feature = "cluster",
    feature = "sentinel",
    feature = "json",
    feature = "postcard"
))]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adaptive;
mod all_locks;
mod buckets;
mod callers;
mod claimed_filters;
mod claims;
mod contestants;
mod exact_claims;
mod fences;
mod filter_keys;
mod filters;
mod fleet;
mod flights;
mod holds;
mod jobs;
mod keys;
mod kinds;
mod leases;
mod line;
mod mixed_fleets;
mod mutexes;
mod operators;
mod permits;
mod refused;
mod revocations;
mod rw_locks;
mod several;
mod stores;
mod turns;
mod wire_format;

use flights::{answers, followers, leaders, shared, stale};

/// Runs each test of a module on each store.
macro_rules! on_every_store {
    ($($module:ident($($test:ident),* $(,)?))*) => {
        on_every_store! { @ in_memory(true) $($module($($test),*))* }
        on_every_store! { @ redis(true) $($module($($test),*))* }
        on_every_store! { @ polling(true) $($module($($test),*))* }
        on_every_store! { @ cluster(support::program::since_7_0()) $($module($($test),*))* }
        on_every_store! { @ sentinel(support::program::since_7_0()) $($module($($test),*))* }
    };
    (@ $store:ident($can_run:expr) $($module:ident($($test:ident),*))*) => {
        mod $store {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if !$can_run {
                        return;
                    }
                    let store = crate::stores::$store().await;
                    crate::$module::$test(&store, stringify!($test)).await;
                }
            )*)*
        }
    };
}

on_every_store! {
    adaptive(all_processes_have_the_limit_that_one_has_lowered)
    holds(a_hold_is_renewed_and_lost)
    buckets(
        a_burst_is_admitted_and_the_rest_refused, what_never_refills_stays_used_up, waiting_takes_its_time,
        a_block_holds_for_every_holder_of_the_name
    )
    jobs(a_short_job_keeps_its_lock, a_tick_runs_once, work_ends_with_its_lock)
    several(each_limit_has_its_own_cost, all_limits_are_held_or_none)
    callers(
        a_caller_that_goes_away_gives_back,
        futures_that_are_not_polled_hold_nobody_up
    )
    filters(
        what_is_inserted_is_contained_until_cleared, batches_answer_in_order,
        another_configuration_is_an_error, items_are_counted_about
    )
    claims(
        what_is_confirmed_is_a_duplicate, what_is_in_flight_is_refused, who_waits_hears_what_came_of_it,
        a_duplicate_can_be_claimed_anyway, a_claim_that_ran_out_is_lost
    )
    claimed_filters(
        a_filter_of_another_configuration_is_told, a_filter_that_is_replaced_meanwhile_is_told,
        a_filter_over_several_keys, what_a_filter_forgets_is_new_again
    )
    exact_claims(
        no_new_item_is_taken_for_a_duplicate, what_is_old_is_new_again,
        other_settings_under_one_name_are_told
    )
    keys(any_key_is_legal_and_apart_from_others)
    leases(
        what_is_held_is_refused, who_waits_is_served_in_the_order_of_arrival,
        nobody_waits_longer_than_the_longest_wait, no_more_wait_than_the_longest_queue,
        close_sends_away_who_waits, what_is_not_renewed_runs_out, what_was_taken_away_is_lost,
        kinds_of_one_name_are_apart
    )
    permits(all_that_is_out_is_counted, a_heavy_one_is_not_overtaken, waits_until_none_is_left)
    turns(
        each_is_served_in_its_turn, a_full_queue_takes_from_its_longest_line,
        a_limit_that_is_changed_applies_to_those_who_wait, a_limit_of_0_refuses_those_who_wait,
        the_last_permits_are_for_the_class_above
    )
    mutexes(
        one_at_a_time_and_each_with_a_greater_fence, tries_go_on_until_it_is_free,
        values_are_those_of_the_function, exact_names_are_shared_by_all_families,
        exact_names_exclude_locks_of_others
    )
    all_locks(
        all_are_locked_or_none, who_goes_away_holds_none_of_them,
        keys_out_of_range_are_told
    )
    operators(each_kind_is_listed_and_shown, each_is_reset_or_forgotten)
    revocations(
        what_is_revoked_goes_to_the_next_waiter, a_revoked_lease_is_lost_at_once,
        a_permit_that_another_process_releases_goes_to_its_waiter
    )
    fences(fences_rise_after_they_are_forgotten, fences_rise_under_several_settings)
    fleet(
        every_process_follows, no_operator_overwrites_another, the_last_ten_versions_are_kept, tables_follow
    )
    refused(refused_keys_are_counted_over_the_fleet, the_key_of_the_limit_that_refused_is_counted)
    rw_locks(
        readers_share_and_writers_do_not, groups_of_readers_exclude_each_other,
        readers_and_writers_take_turns
    )
    shared(
        callers_everywhere_share_one_run, an_answer_lives_for_its_life, what_is_not_shared_is_for_one,
        errors_are_shared_with_those_who_wait, those_who_run_at_once_are_bounded,
        what_is_forgotten_runs_anew, what_a_crowd_was_given_is_published_before_the_end,
        what_was_found_is_forgotten_too
    )
    followers(nobody_follows_longer_than_the_longest_wait, who_takes_over_follows_no_more)
    leaders(
        a_panic_goes_on_in_its_caller_and_one_takes_over, a_run_goes_on_for_those_who_are_left,
        unpolled_callers_hold_nobody_up, an_answer_is_published_though_its_caller_is_content
    )
    answers(
        what_cannot_be_published_is_shared_in_process_or_not, the_largest_answer_is_shared,
        answers_of_another_codec_or_version_are_not_read, what_cannot_be_decoded_counts_as_none,
        what_goes_beyond_the_budget_is_for_those_who_wait
    )
    stale(
        what_is_stale_is_served_while_one_runs, a_refresh_that_fails_changes_nothing,
        what_is_stale_can_be_forgotten, what_is_stale_may_be_unwanted, an_answer_is_made_anew_before_its_end
    )
}
