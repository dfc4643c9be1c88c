//! What the primitives do, on every store: each test is written once and runs in process, on one Redis by a URL and
//! by a pool alone, on a Cluster of three masters and behind Sentinel.
#![cfg(all(feature = "cluster", feature = "sentinel", feature = "json", feature = "postcard"))]
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
mod several_holds;
mod stores;
#[allow(dead_code)]
#[path = "../faults/leases/taken.rs"]
mod taken;
mod turns;
mod wire_format;

/// Runs each test on each store.
macro_rules! on_every_store {
    ($($test:path as $name:ident),* $(,)?) => {
        on_every_store! { @ in_memory(true) $($test as $name),* }
        on_every_store! { @ redis(true) $($test as $name),* }
        on_every_store! { @ polling(true) $($test as $name),* }
        on_every_store! { @ cluster(support::program::since_7_0()) $($test as $name),* }
        on_every_store! { @ sentinel(support::program::since_7_0()) $($test as $name),* }
    };
    (@ $store:ident($can_run:expr) $($test:path as $name:ident),*) => {
        mod $store {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if !$can_run {
                        return;
                    }
                    let store = crate::stores::$store().await;
                    $test(&store, stringify!($name)).await;
                }
            )*
        }
    };
}

on_every_store! {
    crate::adaptive::all_processes_have_the_limit_that_one_has_lowered as all_processes_have_the_lowered_limit,
    crate::adaptive::a_limit_grows_while_it_is_used as a_limit_grows_while_it_is_used,
    crate::adaptive::an_operator_sees_the_limit as an_operator_sees_the_limit,
    crate::holds::what_is_held_is_free_after_the_capture as what_is_held_is_free_after_the_capture,
    crate::holds::a_hold_is_renewed_and_lost as a_hold_is_renewed_and_lost,
    crate::holds::a_dropped_hold_ends_as_it_says as a_dropped_hold_ends_as_it_says,
    crate::buckets::a_burst_is_admitted_and_the_rest_refused as a_burst_is_admitted_and_the_rest_refused,
    crate::buckets::all_quotas_are_charged_or_none as all_quotas_are_charged_or_none,
    crate::buckets::what_never_refills_stays_used_up as never_refilled_stays_used_up,
    crate::buckets::a_day_of_the_calendar_ends_at_midnight as calendar_days_end_at_midnight,
    crate::buckets::a_reservation_is_given_back as a_reservation_is_given_back,
    crate::buckets::waiting_takes_its_time as waiting_takes_its_time,
    crate::buckets::a_wait_that_is_dropped_is_given_back_before_the_next as a_wait_that_is_dropped_is_given_back_first,
    crate::buckets::a_block_holds_for_every_holder_of_the_name as a_block_holds_for_all,
    crate::buckets::other_quotas_per_call as other_quotas_per_call,
    crate::buckets::alternating_quotas_do_not_refill as alternating_quotas_do_not_refill,
    crate::buckets::a_change_of_quotas_carries_over_what_is_owed as a_change_of_quotas_carries_over,
    crate::jobs::a_short_job_keeps_its_lock as a_short_job_keeps_its_lock,
    crate::jobs::a_dropped_guard_keeps_its_lock as a_dropped_guard_keeps_its_lock,
    crate::jobs::a_tick_runs_once as a_tick_runs_once,
    crate::jobs::a_tick_runs_once_with_the_host_as_the_value as a_tick_runs_once_with_the_host_as_the_value,
    crate::jobs::work_ends_with_its_lock as work_ends_with_its_lock,
    crate::several::all_limits_are_charged_or_none as all_limits_are_charged_or_none,
    crate::several::a_crowd_on_several_limits_gets_the_least as a_crowd_on_several_limits_gets_the_least,
    crate::several::who_goes_away_is_charged_nowhere as who_goes_away_is_charged_nowhere,
    crate::several_holds::each_limit_has_its_own_cost as each_limit_has_its_own_cost,
    crate::several_holds::all_limits_are_held_or_none as all_limits_are_held_or_none,
    crate::several_holds::all_limits_are_extended_or_none as all_limits_are_extended_or_none,
    crate::several_holds::holds_of_several_limits_keep_to_each as holds_of_several_limits_keep_to_each,
    crate::several_holds::holds_of_several_limits_are_renewed_and_lost as holds_of_several_limits_are_renewed_and_lost,
    crate::several_holds::dropped_holds_of_several_limits_end_as_they_say as dropped_holds_of_several_limits_end_as_they_say,
    crate::several_holds::who_goes_away_holds_nothing as who_goes_away_holds_nothing,
    crate::callers::a_crowd_gets_each_burst as a_crowd_gets_each_burst,
    crate::callers::a_caller_that_goes_away_gives_back as a_caller_that_goes_away_gives_back,
    crate::callers::futures_that_are_not_polled_hold_nobody_up as unpolled_futures_hold_nobody_up,
    crate::filters::inserted_items_are_contained_until_they_are_cleared as filters_contain_what_was_inserted,
    crate::filters::one_of_many_callers_is_told_that_it_is_new as filters_one_of_many_callers_is_told_that_it_is_new,
    crate::filters::batches_answer_in_order as filters_batches_answer_in_order,
    crate::filters::another_configuration_is_an_error as filters_another_configuration_is_an_error,
    crate::filters::items_are_counted_about as filters_items_are_counted_about,
    crate::filters::what_is_old_is_forgotten as filters_what_is_old_is_forgotten,
    crate::claims::what_is_confirmed_is_a_duplicate as what_is_confirmed_is_a_duplicate,
    crate::claims::what_is_in_flight_is_refused as what_is_in_flight_is_refused,
    crate::claims::what_is_given_back_can_be_claimed_again as what_is_given_back_can_be_claimed_again,
    crate::claims::who_waits_hears_what_came_of_it as who_waits_hears_what_came_of_it,
    crate::claims::a_duplicate_can_be_claimed_anyway as a_duplicate_can_be_claimed_anyway,
    crate::claims::a_claim_that_ran_out_is_lost as a_claim_that_ran_out_is_lost,
    crate::claims::who_waits_hears_of_a_late_confirmation as who_waits_hears_of_a_late_confirmation,
    crate::claims::the_fences_of_claims_grow as the_fences_of_claims_grow,
    crate::claimed_filters::a_filter_of_another_configuration_is_told as a_filter_of_another_configuration_is_told,
    crate::claimed_filters::a_filter_that_is_replaced_meanwhile_is_told as a_filter_that_is_replaced_meanwhile_is_told,
    crate::claimed_filters::a_filter_over_several_keys as a_filter_over_several_keys,
    crate::claimed_filters::what_a_filter_forgets_is_new_again as what_a_filter_forgets_is_new_again,
    crate::claims::nothing_but_the_filter_stays as nothing_but_the_filter_stays,
    crate::exact_claims::no_new_item_is_taken_for_a_duplicate as exact_no_new_item_is_taken_for_a_duplicate,
    crate::exact_claims::what_is_old_is_new_again as exact_what_is_old_is_new_again,
    crate::exact_claims::every_key_has_a_time_to_live as exact_every_key_has_a_time_to_live,
    crate::exact_claims::other_settings_under_one_name_are_told as exact_other_settings_under_one_name_are_told,
    crate::keys::any_key_is_legal_and_apart_from_others as any_key_is_legal_and_apart_from_others,
    crate::leases::what_is_held_is_refused as what_is_held_is_refused,
    crate::leases::who_waits_is_served_in_the_order_of_arrival as who_waits_is_served_in_the_order_of_arrival,
    crate::leases::who_waits_and_goes_away_is_passed_over as who_waits_and_goes_away_is_passed_over,
    crate::leases::what_is_dropped_is_released as what_is_dropped_is_released,
    crate::leases::nobody_waits_longer_than_the_longest_wait as nobody_waits_longer_than_the_longest_wait,
    crate::leases::no_more_wait_than_the_longest_queue as no_more_wait_than_the_longest_queue,
    crate::leases::close_sends_away_who_waits as close_sends_away_who_waits,
    crate::leases::what_is_held_is_renewed as what_is_held_is_renewed,
    crate::leases::what_is_not_renewed_runs_out as what_is_not_renewed_runs_out,
    crate::leases::what_is_extended_lasts_anew as what_is_extended_lasts_anew,
    crate::leases::what_was_taken_away_is_lost as what_was_taken_away_is_lost,
    crate::leases::families_of_one_name_share as families_of_one_name_share,
    crate::leases::kinds_of_one_name_are_apart as kinds_of_one_name_are_apart,
    crate::permits::the_limit_is_never_exceeded as the_limit_is_never_exceeded,
    crate::permits::all_that_is_out_is_counted as all_that_is_out_is_counted,
    crate::permits::each_of_a_crowd_is_asked_for_on_its_own_terms as each_of_a_crowd_is_asked_for_on_its_own_terms,
    crate::permits::a_weight_that_never_fits_is_an_error as a_weight_that_never_fits_is_an_error,
    crate::permits::a_heavy_one_is_not_overtaken as a_heavy_one_is_not_overtaken,
    crate::permits::waits_until_none_is_left as waits_until_none_is_left,
    crate::permits::another_limit_per_call as another_limit_per_call,
    crate::turns::each_flow_has_its_turn as each_flow_has_its_turn,
    crate::turns::who_gives_up_costs_its_flow_nothing as who_gives_up_costs_its_flow_nothing,
    crate::turns::shares_and_weights_count as shares_and_weights_count,
    crate::turns::what_is_free_is_used_beside_a_heavy_one as what_is_free_is_used_beside_a_heavy_one,
    crate::turns::each_is_served_in_its_turn as each_is_served_in_its_turn,
    crate::turns::a_class_that_has_waited_goes_first as a_class_that_has_waited_goes_first,
    crate::turns::the_last_permits_are_for_the_class_above as the_last_permits_are_for_the_class_above,
    crate::turns::newest_first_begins_anew_with_each_queue as newest_first_begins_anew_with_each_queue,
    crate::turns::a_newer_one_does_not_wait_for_a_heavy_one as a_newer_one_does_not_wait_for_a_heavy_one,
    crate::turns::the_setting_of_the_last_built_counts as the_setting_of_the_last_built_counts,
    crate::turns::a_full_queue_takes_from_its_longest_line as a_full_queue_takes_from_its_longest_line,
    crate::turns::a_limit_that_is_changed_applies_to_those_who_wait as a_limit_that_is_changed_applies_to_those_who_wait,
    crate::turns::a_limit_of_0_refuses_those_who_wait as a_limit_of_0_refuses_those_who_wait,
    crate::turns::a_limit_below_the_reserve_leaves_a_share as a_limit_below_the_reserve_leaves_a_share,
    crate::mutexes::one_at_a_time_and_each_with_a_greater_fence as one_at_a_time_and_each_with_a_greater_fence,
    crate::mutexes::work_is_done_under_the_lock as work_is_done_under_the_lock,
    crate::mutexes::tries_end_in_a_refusal as tries_end_in_a_refusal,
    crate::mutexes::tries_go_on_until_it_is_free as tries_go_on_until_it_is_free,
    crate::mutexes::values_are_those_of_the_function as values_are_those_of_the_function,
    crate::mutexes::a_value_is_in_use_once_at_a_time as a_value_is_in_use_once_at_a_time,
    crate::mutexes::exact_names_are_shared_by_all_families as exact_names_are_shared_by_all_families,
    crate::mutexes::exact_names_exclude_locks_of_others as exact_names_exclude_locks_of_others,
    crate::all_locks::all_are_locked_or_none as several_locks_all_are_locked_or_none,
    crate::all_locks::all_are_locked_once_they_are_free as several_locks_all_are_locked_once_they_are_free,
    crate::all_locks::orders_that_cross_make_no_deadlock as several_locks_orders_that_cross_make_no_deadlock,
    crate::all_locks::who_goes_away_holds_none_of_them as several_locks_who_goes_away_holds_none_of_them,
    crate::all_locks::settings_are_those_of_each_lock as several_locks_settings_are_those_of_each_lock,
    crate::all_locks::keys_out_of_range_are_told as several_locks_keys_out_of_range_are_told,
    crate::operators::each_kind_is_listed_and_shown as each_kind_is_listed_and_shown,
    crate::operators::a_bucket_is_reset_and_answers_are_forgotten as a_bucket_is_reset_and_answers_are_forgotten,
    crate::revocations::what_is_revoked_goes_to_the_next_waiter as what_is_revoked_goes_to_the_next_waiter,
    crate::revocations::a_revoked_lease_is_lost_at_once as a_revoked_lease_is_lost_at_once,
    crate::operators::any_key_is_shown_and_found_again as any_key_is_shown_and_found_again,
    crate::fences::fences_rise_after_they_are_forgotten as fences_rise_after_they_are_forgotten,
    crate::fences::a_lock_that_is_held_keeps_its_fence as a_lock_that_is_held_keeps_its_fence,
    crate::fences::fences_rise_under_several_settings as fences_rise_under_several_settings,
    crate::fleet::every_process_follows as every_process_follows,
    crate::fleet::a_new_process_has_what_is_stored as a_new_process_has_what_is_stored,
    crate::fleet::no_operator_overwrites_another as no_operator_overwrites_another,
    crate::fleet::the_last_ten_versions_are_kept as the_last_ten_versions_are_kept,
    crate::fleet::a_change_does_not_refill_a_bucket as a_change_does_not_refill_a_bucket,
    crate::fleet::twenty_processes_decide_by_it as twenty_processes_decide_by_it,
    crate::fleet::limits_and_tables_follow as limits_and_tables_follow,
    crate::refused::refused_keys_are_counted_over_the_fleet as refused_keys_are_counted_over_the_fleet,
    crate::refused::the_key_of_the_limit_that_refused_is_counted as the_key_of_the_limit_that_refused_is_counted,
    crate::rw_locks::a_writer_is_never_beside_anybody as a_writer_is_never_beside_anybody,
    crate::rw_locks::readers_share_and_writers_do_not as readers_share_and_writers_do_not,
    crate::rw_locks::groups_of_readers_exclude_each_other as groups_of_readers_exclude_each_other,
    crate::rw_locks::writers_go_first as writers_go_first,
    crate::rw_locks::readers_go_first_where_they_are_preferred as readers_go_first_where_they_are_preferred,
    crate::rw_locks::no_more_writers_in_a_row_than_allowed as no_more_writers_in_a_row_than_allowed,
    crate::rw_locks::all_readers_that_wait_go_together as all_readers_that_wait_go_together,
    crate::rw_locks::an_intent_dies_with_its_writer as an_intent_dies_with_its_writer,
    crate::rw_locks::a_reader_that_runs_out_frees_itself_alone as a_reader_that_runs_out_frees_itself_alone,
    crate::rw_locks::waits_and_settings as waits_and_settings,
    crate::flights::shared::callers_everywhere_share_one_run as callers_everywhere_share_one_run,
    crate::flights::shared::an_answer_lives_for_its_life as an_answer_lives_for_its_life,
    crate::flights::shared::answers_without_life_are_for_one as answers_without_life_are_for_one,
    crate::flights::shared::errors_are_for_one_and_the_others_run_at_once as errors_are_for_one_and_the_others_run_at_once,
    crate::flights::shared::errors_are_shared_with_those_who_wait as errors_are_shared_with_those_who_wait,
    crate::flights::shared::those_who_run_at_once_are_bounded as those_who_run_at_once_are_bounded,
    crate::flights::shared::errors_that_are_shared_fail_all_alike as errors_that_are_shared_fail_all_alike,
    crate::flights::shared::what_is_forgotten_runs_anew as what_is_forgotten_runs_anew,
    crate::flights::shared::what_a_crowd_was_given_is_published_before_the_end as what_a_crowd_was_given_is_published_before_the_end,
    crate::flights::shared::what_was_found_is_forgotten_too as what_was_found_is_forgotten_too,
    crate::flights::shared::mutexes_of_one_name_are_apart as mutexes_of_one_name_are_apart,
    crate::flights::followers::nobody_follows_longer_than_the_longest_wait as nobody_follows_longer_than_the_longest_wait,
    crate::flights::followers::who_takes_over_follows_no_more as who_takes_over_follows_no_more,
    crate::flights::leaders::a_follower_takes_over_from_who_goes_away as a_follower_takes_over_from_who_goes_away,
    crate::flights::leaders::a_run_goes_on_for_those_who_are_left as a_run_goes_on_for_those_who_are_left,
    crate::flights::leaders::the_last_who_goes_away_ends_the_run as the_last_who_goes_away_ends_the_run,
    crate::flights::leaders::a_run_that_is_to_go_on_goes_on as a_run_that_is_to_go_on_goes_on,
    crate::flights::leaders::a_panic_goes_on_in_its_caller_and_one_takes_over as a_panic_goes_on_in_its_caller_and_one_takes_over,
    crate::flights::leaders::unpolled_callers_hold_nobody_up as unpolled_callers_hold_nobody_up,
    crate::flights::leaders::an_answer_is_published_though_its_caller_is_content as an_answer_is_published_though_its_caller_is_content,
    crate::flights::answers::what_cannot_be_published_is_shared_in_process_or_not as what_cannot_be_published_is_shared_in_process_or_not,
    crate::flights::answers::the_largest_answer_is_shared as the_largest_answer_is_shared,
    crate::flights::answers::answers_of_another_codec_or_version_are_not_read as answers_of_another_codec_or_version_are_not_read,
    crate::flights::answers::what_cannot_be_decoded_counts_as_none as what_cannot_be_decoded_counts_as_none,
    crate::flights::answers::what_goes_beyond_the_budget_is_for_those_who_wait as what_goes_beyond_the_budget_is_for_those_who_wait,
    crate::flights::answers::a_refresh_takes_the_place_of_what_is_stale as a_refresh_takes_the_place_of_what_is_stale,
    crate::flights::early::an_answer_is_made_anew_before_its_end as an_answer_is_made_anew_before_its_end,
    crate::flights::stale::what_is_stale_is_served_while_one_runs as what_is_stale_is_served_while_one_runs,
    crate::flights::stale::a_refresh_that_fails_changes_nothing as a_refresh_that_fails_changes_nothing,
    crate::flights::stale::what_is_stale_can_be_forgotten as what_is_stale_can_be_forgotten,
    crate::flights::stale::what_is_stale_may_be_unwanted as what_is_stale_may_be_unwanted,
}
