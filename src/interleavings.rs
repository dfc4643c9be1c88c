//! Tests of concurrent code in all interleavings, run by loom: `cargo run -p tower-distributed-interleavings`. They are
//! beside the code that they test, and listed here.

/// Lists the tests of modules with their names.
macro_rules! tests {
    ($($module:path: $($name:ident)*;)*) => {
        /// All tests.
        pub const TESTS: &[(&str, fn())] = &[$($({ use $module as tests; (stringify!($name), tests::$name) },)*)*];
    };
}

tests! {
    crate::single_flight::tests::interleavings:
        a_follower_gets_the_outcome
        the_follower_that_stays_leads
        a_run_that_others_wait_for_becomes_a_task
    ;
    crate::store::redis::interleavings:
        a_breaker_is_open_if_it_says_so
        one_call_is_the_probe
        a_budget_is_not_exceeded
        a_reply_wakes_the_task_that_polled_last
        a_reply_without_a_caller_is_taken_back_once
        an_operation_on_a_runtime_that_ends_fails
        a_connection_on_a_runtime_that_ends_fails
    ;
    crate::token_bucket::local::interleavings:
        a_prefetched_token_is_used_once
        tokens_keep_the_deadline_of_their_batch
        as_many_requests_ask_as_there_are_tokens
        an_answered_request_counts_once
        a_refusal_does_not_outlive_the_return_of_tokens
        a_first_refusal_does_not_outlive_a_return_or_reset
        of_two_answers_the_later_is_kept
        a_full_window_is_not_taken_for_the_next
        tokens_of_a_forgotten_entry_are_not_used
        a_return_under_way_is_seen
    ;
    crate::store::memory::sweeper::interleavings:
        a_namespace_with_a_cell_is_listed
        a_namespace_is_listed_once
        a_full_store_takes_no_other_key
        an_ended_cell_is_given_back_once
    ;
    crate::store::interleavings:
        the_end_of_what_is_owed_is_told
        pushes_that_were_missed_are_known_when_they_arrive_again
    ;
}
