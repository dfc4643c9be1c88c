use std::time::SystemTime;

use http::header::RETRY_AFTER;

use super::*;

const DATE: &str = "date: Fri, 27 Nov 2026 00:00:00 GMT";

/// The block for a response with these fields, one per line.
fn read(status: u16, fields: &str) -> Block {
    let mut response = Response::builder().status(status);
    for (name, value) in fields.lines().map(|field| field.split_once(": ").unwrap()) {
        response = response.header(name, value);
    }
    let limit = RetryAfter::at_most(Duration::from_secs(100)).unwrap();
    limit.block_on_response(&response.body(()).unwrap())
}

/// The time to wait, in ms.
fn observed(status: u16, told: &str) -> Option<u128> {
    let block = read(status, &format!("{DATE}\nretry-after: {told}"));
    assert_eq!(
        block.ignored(),
        u64::from(block.duration().is_none() && (400..600).contains(&status)),
        "{told}"
    );
    block.duration().map(|wait| wait.as_millis())
}

#[test]
fn seconds_spans_and_dates_are_understood_and_capped() {
    for (text, millis) in [
        ("7", 7000),
        ("0", 0),
        ("700", 100_000),
        ("99999999999999999999999", 100_000),
        ("99999999999999999999999.5", 100_000),
        ("29.997", 29_997),
        ("2.0", 2000),
        ("0.30000000000000004", 300),
        ("7s", 7000),
        ("1m5s", 65_000),
        (" 7 ", 7000),
        ("Fri, 27 Nov 2026 00:00:50 GMT", 50_000),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("2026-11-27T00:00:50Z", 50_000),
        ("2026-11-27T01:00:50.250+01:00", 50_250),
    ] {
        assert_eq!(observed(429, text), Some(millis), "{text}");
    }
    let longer = "9".repeat(65);
    let broken = "-7||soon|1e3|2.|.5|7,5|NaN|2026-11-27".split('|');
    for text in broken.chain([&*longer]) {
        assert_eq!(observed(429, text), None, "{text}");
    }
    // By the clock of this machine.
    let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(50));
    let read = read(429, &format!("{RETRY_AFTER}: {soon}"));
    assert!(
        read.duration()
            .is_some_and(|after| after > Duration::from_secs(40)),
        "{read:?}"
    );
}

#[test]
fn milliseconds_come_first_and_of_copies_the_longest() {
    for (fields, micros, ignored) in [
        ("retry-after: 7\nretry-after-ms: 6100", Some(6_100_000), 0),
        ("retry-after-ms: 30000.5", Some(30_000_500), 0),
        ("retry-after: 7\nretry-after-ms: later", Some(7_000_000), 1),
        ("retry-after: 7\nretry-after: 9", Some(9_000_000), 0),
        ("retry-after: x\nretry-after: 9", Some(9_000_000), 1),
        ("retry-after: x\nretry-after-ms: x", None, 2),
        ("", None, 0),
    ] {
        let block = read(429, fields);
        let read = block.duration().map(|wait| wait.as_micros());
        assert_eq!((read, block.ignored()), (micros, ignored), "{fields}");
    }
}

#[test]
fn any_refusal_counts_and_nothing_else() {
    for status in 100..=999 {
        let is_refusal = (400..600).contains(&status);
        assert_eq!(
            observed(status, "7"),
            is_refusal.then_some(7000),
            "{status}"
        );
    }
    let statuses = [429, 503, 400, 599].map(|status| StatusCode::from_u16(status).unwrap());
    let set = RetryAfter::default().statuses(statuses).unwrap();
    let counting: Vec<_> = (100..=999)
        .filter(|status| set.counts(StatusCode::from_u16(*status).unwrap()))
        .collect();
    assert_eq!(counting, [400, 429, 503, 599]);
    for status in [
        StatusCode::OK,
        StatusCode::FOUND,
        StatusCode::from_u16(600).unwrap(),
    ] {
        let error = RetryAfter::default().statuses([status]).unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains(status.as_str()),
            "{error}"
        );
    }
}

#[test]
fn a_stored_refusal_has_lost_its_age() {
    let wait = |told: &str, age: &str| {
        let block = read(429, &format!("{DATE}\nretry-after: {told}\nage: {age}"));
        block.duration().map(|wait| wait.as_secs())
    };
    assert_eq!(
        (wait("90", "20"), wait("90", "90"), wait("90", "200")),
        (Some(70), Some(0), Some(0))
    );
    assert_eq!(wait("Fri, 27 Nov 2026 00:01:30 GMT", "20"), Some(70));
    // The age is subtracted before the maximum is applied.
    assert_eq!(wait("150", "100"), Some(50));
    let broken = read(429, "retry-after: 90\nage: old");
    assert_eq!(
        (broken.duration(), broken.ignored()),
        (Some(Duration::from_secs(90)), 1)
    );
}

#[test]
fn what_is_believed_is_a_second_or_more() {
    for longest in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
        let error = RetryAfter::at_most(longest).unwrap_err().to_string();
        assert!(
            error.contains("1 s to 366 days") && error.contains(&format!("{longest:?}")),
            "{error}"
        );
    }
}
