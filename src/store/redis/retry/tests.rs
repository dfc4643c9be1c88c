//! Which calls are sent again.

use tokio::time::Instant;

use super::*;

/// A thread can be suspended between passing a call to the connection and checking for the reply. Meanwhile the call
/// runs and the connection ends, and then the first poll finds the error.
#[test]
fn what_may_run_once_is_not_sent_again_whatever_the_first_poll_says() {
    for (written, was_idle) in [(false, false), (false, true), (true, false), (true, true)] {
        let outage = errors::of(Cause::Disconnected, "the connection has ended");
        let sent = Some(Instant::now());
        let failed = Failed {
            outage,
            sent,
            written,
            answers: false,
            redirect: None,
        };
        assert!(
            !failed.is_repeated(Repeat::Never, was_idle),
            "{written} {was_idle}"
        );
        assert_eq!(
            failed.is_repeated(Repeat::Safe, was_idle),
            !written || was_idle
        );
    }
}

/// Otherwise operations of the first copy would never be undone.
#[test]
fn that_the_last_copy_was_not_sent_says_nothing_of_the_one_before() {
    for cause in [Cause::NotSent, Cause::BreakerOpen] {
        let error = Error::unavailable(cause, "no connection");
        assert!(error.is_not_sent() && !error.clone().of_last_copy().is_not_sent());
        assert_eq!(error.to_string(), error.of_last_copy().to_string());
    }
    assert!(
        Error::unavailable(Cause::TimedOut, "x")
            .of_last_copy()
            .is_timeout()
    );
}

/// A script may have run in part when it finds that its slot is being moved.
#[test]
fn a_call_that_was_refused_is_sent_again_if_it_cannot_have_run_or_may_run_twice() {
    for (cause, never, safe) in [
        (Cause::Moving, true, true),
        (Cause::MovedMidway, false, true),
        (Cause::TimedOut, false, false),
        (Cause::NotServing, false, false),
    ] {
        let outage = errors::of(cause, "x");
        let failed = Failed {
            outage,
            sent: None,
            written: false,
            answers: false,
            redirect: None,
        };
        let is_repeated = |repeat| failed.is_repeated(repeat, true);
        assert_eq!(
            [Repeat::Never, Repeat::Safe].map(is_repeated),
            [never, safe],
            "{cause:?}"
        );
    }
}
