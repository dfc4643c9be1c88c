use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::UpstreamLimits;
use crate::learn::plan::Plan;
use crate::learn::{LearnFromResponse as _, Learned, Policy};

const DATE: &str = "Fri, 27 Nov 2026 00:00:00 GMT";
const MIDNIGHT: u64 = 1_795_737_600;

/// Parses one field per line.
fn headers(fields: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for field in fields
        .lines()
        .map(str::trim)
        .filter(|field| !field.is_empty())
    {
        let (name, value) = field.split_once(':').unwrap();
        headers.append(
            name.parse::<HeaderName>().unwrap(),
            value.trim().parse().unwrap(),
        );
    }
    headers
}

fn read(limits: UpstreamLimits, fields: &str) -> Learned {
    limits.read(StatusCode::OK, &headers(fields))
}

/// Returns each policy: name, limit/window, remaining, reset; 0: not reported, and `-` for the remaining requests.
/// Then, after `!`, the number of ignored fields.
fn told(learned: &Learned) -> String {
    let seconds = |span: Option<Duration>| span.unwrap_or_default().as_secs();
    let policies = learned.policies.iter().map(|policy| {
        let name = policy.name.as_deref().unwrap_or("");
        let remaining = policy
            .remaining
            .map_or("-".to_owned(), |remaining| remaining.to_string());
        let (limit, window) = (policy.limit.unwrap_or(0), seconds(policy.window));
        format!(
            "{name} {limit}/{window} {remaining} {}",
            seconds(policy.reset)
        )
    });
    let told = policies.collect::<Vec<_>>().join(", ");
    if learned.ignored() > 0 {
        format!("{told} !{}", learned.ignored())
    } else {
        told
    }
}

/// The limits that are learned with the default settings.
fn learned(fields: &str) -> Learned {
    read(UpstreamLimits::default(), fields)
}

fn default(fields: &str) -> String {
    told(&learned(fields))
}

#[test]
fn the_fields_of_the_draft() {
    let both = r#"ratelimit-policy: "default";q=100;w=60
        ratelimit: "default";r=50;t=30"#;
    assert_eq!(default(both), "default 100/60 50 30");
    // Several policies, on one line or on two, with a partition key and unknown parameters.
    let several = r#"ratelimit-policy: "burst";q=100;w=60;x=?1, "daily";q=1000;w=86400;pk=:YWJj:
        ratelimit-policy: "total";q=7
        ratelimit: "daily";r=9;t=5;pk=:YWJj:, "unknown";r=0"#;
    assert_eq!(
        default(several),
        "burst 100/60 - 0, daily 1000/86400 9 5, total 7/0 - 0"
    );
    let learned = learned(several);
    assert_eq!(
        learned.policies[1].partition.as_deref(),
        Some(b"abc" as &[u8])
    );
    // Policies of another unit are not used.
    let units = r#"ratelimit-policy: "a";q=1;w=1;qu="content-bytes", "b";q=2;w=1;qu="requests""#;
    assert_eq!(default(units), "b 2/1 - 0");
    assert_eq!(
        told(&read(
            UpstreamLimits::default().unit("content-bytes"),
            units
        )),
        "a 1/1 - 0"
    );
}

/// Names, and units, are strings or tokens.
#[test]
fn names_are_those_that_a_quota_can_have() {
    let tokens = r#"ratelimit-policy: a;q=1;w=1;qu=bytes, "b";q=2;w=1;qu="bytes"
        ratelimit: a;r=1"#;
    let learned = read(UpstreamLimits::default().unit("bytes"), tokens);
    assert_eq!(told(&learned), "a 1/1 1 0, b 2/1 - 0");
    let named = |name: &str| Policy::named(name).name.map(|name| name.to_string());
    assert_eq!(
        named(" a\"b\\c\u{7f}\u{1f}é d~ ").as_deref(),
        Some("abc d~")
    );
    assert_eq!(named(&"n".repeat(40)), Some("n".repeat(32)));
    assert_eq!((named(""), named(" \" ")), (None, None));
}

/// The settings determine which limits are read.
#[test]
fn limits_are_read_as_they_are_set() {
    let fields = r#"ratelimit-policy: "a";q=100;w=6000, "b";q=100;w=1;qu="bytes"
        retry-after: 700"#;
    let response = |limits: UpstreamLimits| {
        let mut response = http::Response::new(());
        (*response.status_mut(), *response.headers_mut()) =
            (StatusCode::TOO_MANY_REQUESTS, headers(fields));
        let learned = limits.learn(&response);
        let plan = Plan::of(&learned, None);
        let limit = plan.quotas.unwrap().limits()[0].clone();
        (
            limit.burst,
            (limit.interval() / 1e6).round() as i64,
            learned.retry_after().unwrap().as_secs(),
        )
    };
    let default = UpstreamLimits::default();
    assert_eq!(response(default), (2, 63, 300));
    assert_eq!(
        response(default.at_most(Duration::from_secs(10)).unwrap()),
        (2, 10, 10)
    );
    assert_eq!(response(default.burst_percent(90).unwrap()), (91, 300, 300));
    assert_eq!(response(default.burst_percent(0).unwrap()), (1, 62, 300));
    assert_eq!(response(default.unit("bytes")).0, 51);
    assert!(default.burst_percent(91).is_err());
    let closure = |ignored: &u64| Learned {
        ignored: *ignored,
        ..Learned::default()
    };
    assert_eq!(closure.learn(&7).ignored(), 7);
}

/// The name of a policy is shortened, but its remaining requests are still found.
#[test]
fn what_remains_of_a_policy_with_any_name_is_read() {
    for name in [&"n".repeat(40), " n ", "n\\\"n", ""] {
        let fields =
            format!("ratelimit-policy: \"{name}\";q=100;w=60\nratelimit: \"{name}\";r=5;t=30");
        let learned = learned(&fields);
        assert_eq!(
            learned
                .limits()
                .map(|(_, _, left)| left)
                .collect::<Vec<_>>(),
            [Some(5)],
            "{name}"
        );
    }
}

/// Near its end, the reset of a window is as near as that of a shorter window.
#[test]
fn a_guessed_window_is_never_shortened() {
    let read = |limit: &str, reset: &str| {
        let fields = format!(
            "x-ratelimit-limit: {limit}\nx-ratelimit-remaining: 1\nx-ratelimit-reset: {reset}"
        );
        learned(&fields)
    };
    let told = |limit, reset, known| Plan::of(&read(limit, reset), known).quotas.unwrap();
    let doubtful = |reset| read("60", reset).policies[0].is_doubtful;
    assert_eq!(
        ["0", "1", "10", "11", "60", "3600"].map(doubtful),
        [true, true, true, false, false, false]
    );
    let per_minute = told("60", "60", None);
    assert_ne!(told("60", "1", None), per_minute);
    for reset in ["0", "1", "9", "59"] {
        assert_eq!(told("60", reset, Some(&per_minute)), per_minute, "{reset}");
    }
    let per_hour = told("60", "3600", Some(&per_minute));
    assert_ne!(per_hour, per_minute);
    assert_eq!(told("60", "50", Some(&per_hour)), per_hour);
    // Another limit may have another window.
    assert_eq!(told("61", "1", Some(&per_hour)), told("61", "1", None));
}

#[test]
fn the_older_fields() {
    let at = |seconds: u64| (MIDNIGHT + seconds).to_string();
    let millis = format!("{}000", at(50));
    for until in [
        "50",
        "50.0",
        "50s",
        &at(50),
        &millis,
        "2026-11-27T00:00:50Z",
        "Fri, 27 Nov 2026 00:00:50 GMT",
    ] {
        for before in ["x-ratelimit", "x-rate-limit", "ratelimit"] {
            let fields = format!(
                "date: {DATE}\n{before}-limit: 20\n{before}-remaining: 7\n{before}-reset: {until}"
            );
            assert_eq!(default(&fields), "requests 20/60 7 50", "{before} {until}");
        }
    }
    let fields = "x-ratelimit-limit: 20\nx-ratelimit-remaining: 7";
    assert_eq!(default(fields), "requests 20/0 7 0");
    let per_minute = UpstreamLimits::default()
        .window(Duration::from_secs(60))
        .unwrap();
    assert_eq!(told(&read(per_minute, fields)), "requests 20/60 7 0");
}

#[test]
fn the_fields_of_vendors() {
    let until = MIDNIGHT + 1800;
    for (resource, expected) in [
        ("core", "core 5000/3600 4999 1800"),
        ("search", "search 5000/60 4999 1800"),
    ] {
        let github = format!(
            "date: {DATE}
            x-ratelimit-limit: 5000
            x-ratelimit-remaining: 4999
            x-ratelimit-used: 1
            x-ratelimit-resource: {resource}
            x-ratelimit-reset: {until}"
        );
        assert_eq!(default(&github), expected);
    }

    let openai = "x-ratelimit-limit-requests: 60
        x-ratelimit-limit-tokens: 150000
        x-ratelimit-remaining-requests: 59
        x-ratelimit-remaining-tokens: 149984
        x-ratelimit-reset-requests: 1s
        x-ratelimit-reset-tokens: 6m0s";
    assert_eq!(default(openai), "requests 60/60 59 1");
    let tokens = read(UpstreamLimits::default().unit("tokens"), openai);
    assert_eq!(told(&tokens), "tokens 150000/86400 149984 360");
    assert_eq!(Plan::of(&tokens, None).quotas.unwrap().max_cost(), 150_000);
    // The boundary is the geometric mean of a minute and a day.
    for (unit, limit, remaining, reset, window) in [
        ("requests", 1, 0, "37m57s", 60),
        ("requests", 1, 0, "37m58s", 86_400),
        ("tokens", 100, 50, "30s", 60),
        ("tokens", 100, 100, "1s", 60),
    ] {
        let fields = format!(
            "x-ratelimit-limit-{unit}: {limit}
            x-ratelimit-remaining-{unit}: {remaining}
            x-ratelimit-reset-{unit}: {reset}"
        );
        let learned = told(&read(UpstreamLimits::default().unit(unit), &fields));
        assert!(
            learned.starts_with(&format!("{unit} {limit}/{window} {remaining} ")),
            "{reset}: {learned}"
        );
        assert!(!learned.contains('!'), "{reset}: {learned}");
    }

    let anthropic = format!(
        "date: {DATE}
        anthropic-ratelimit-requests-limit: 50
        anthropic-ratelimit-requests-remaining: 49
        anthropic-ratelimit-requests-reset: 2026-11-27T00:00:01Z
        anthropic-ratelimit-input-tokens-limit: 30000
        anthropic-ratelimit-input-tokens-remaining: 29000
        anthropic-ratelimit-input-tokens-reset: 2026-11-27T00:00:02Z"
    );
    assert_eq!(default(&anthropic), "requests 50/60 49 1");
    let tokens = read(UpstreamLimits::default().unit("input-tokens"), &anthropic);
    assert_eq!(told(&tokens), "input-tokens 30000/60 29000 2");
}

fn refused(status: u16, fields: &str) -> Learned {
    UpstreamLimits::default().read(StatusCode::from_u16(status).unwrap(), &headers(fields))
}

const USED_UP: &str = "x-ratelimit-limit: 5\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 40\n";

#[test]
fn refusals_say_how_long_to_wait() {
    let suffixed = "x-ratelimit-limit-requests: 5
        x-ratelimit-remaining-requests: 0
        x-ratelimit-reset-requests: 40s";
    for (status, fields, seconds) in [
        (429, "retry-after: 7", Some(7)),
        (503, "retry-after-ms: 2000\nretry-after: 7", Some(2)),
        (429, USED_UP, Some(40)),
        (403, USED_UP, Some(40)),
        (200, USED_UP, None),
        (403, "retry-after: 86400", Some(300)),
        // Tokens are left, or the reset is the time until all tokens are refilled.
        (
            429,
            "x-ratelimit-limit: 5\nx-ratelimit-remaining: 1\nx-ratelimit-reset: 40s",
            None,
        ),
        (429, suffixed, None),
        (429, "", None),
        (403, "", None),
    ] {
        let wait = refused(status, fields).retry_after();
        assert_eq!(wait, seconds.map(Duration::from_secs), "{status} {fields}");
    }
}

/// A stored response reports past values.
#[test]
fn a_stored_response_tells_the_policy_only() {
    let until = MIDNIGHT + 50;
    for (more, expected, wait) in [
        ("", "100/60 0 50", 90),
        ("age: 0", "100/60 0 50", 90),
        ("age: 20", "100/60 - 30", 70),
        ("age: 200", "100/60 - 0", 0),
        ("x-cache: HIT", "100/60 - 50", 90),
    ] {
        let fields = format!(
            "ratelimit-policy: \"default\";q=100;w=60
            ratelimit: \"default\";r=0;t=50
            x-ratelimit-limit: 100
            x-ratelimit-remaining: 0
            x-ratelimit-reset: {until}
            date: {DATE}
            retry-after: 90
            {more}"
        );
        let learned = refused(429, &fields);
        let told = told(&learned);
        // Both policies, after their names.
        let told: Vec<_> = told
            .split(", ")
            .map(|policy| policy.split_once(' ').unwrap().1)
            .collect();
        assert_eq!(told, [expected; 2], "{more}");
        assert_eq!(
            learned.retry_after(),
            Some(Duration::from_secs(wait)),
            "{more}"
        );
    }
    // Without another sign, nothing remains until the reset, so the refusal means to wait until then.
    let wait = |more: &str| refused(403, &format!("{USED_UP}{more}")).retry_after();
    assert_eq!(
        (wait(""), wait("age: 20")),
        (Some(Duration::from_secs(40)), None)
    );
}

/// Each value that is read counts separately.
#[test]
fn what_cannot_be_read_of_a_refusal_is_counted() {
    let ignored = |fields| refused(429, fields).ignored();
    assert_eq!(ignored("retry-after: soon\nretry-after-ms: -1"), 2);
    assert_eq!(
        ignored("age: old\ndate: today"),
        0,
        "nothing is read that needs them"
    );
    assert_eq!(ignored("x-ratelimit-limit: 5\nage: old\ndate: today"), 2);
}

/// Each malformed field is ignored and counted, and the other fields are still read.
#[test]
fn what_is_broken_is_ignored_and_counted() {
    let long = "9".repeat(60_000);
    let many = "\"a\";q=1;w=1, ".repeat(4000);
    let both = "x-ratelimit-limit: 5\nx-ratelimit-reset: soon";
    assert_eq!(learned(both).ignored(), 1);
    let draft = "ratelimit-policy: \"a\";w=1, \"b\";q=5;w=0\nratelimit: \"a\";t=1, \"b\";r=1;t=-1";
    assert_eq!(learned(&format!("{both}\n{draft}")).ignored(), 5);
    // Of 20 policies, 16 are read; of more than 4096 bytes, none.
    let policies = (0..20)
        .map(|n| format!("\"{n}\";q=5;w=1"))
        .collect::<Vec<_>>()
        .join(", ");
    let most = learned(&format!("ratelimit-policy: {policies}"));
    assert_eq!((most.policies.len(), most.ignored()), (16, 4));
    for (bytes, lines, read_as) in [
        (3000, 1, (1, 0)),
        (3000, 2, (0, 1)),
        (4080, 1, (1, 0)),
        (4081, 1, (0, 1)),
    ] {
        let line = format!(
            "ratelimit-policy: \"a\";q=5;w=1;x=\"{}\"\n",
            "x".repeat(bytes)
        );
        let learned = learned(&line.repeat(lines));
        assert_eq!((learned.policies.len(), learned.ignored()), read_as);
    }
    for window in ["-1", "0", "1.5", "\"x\""] {
        let fields = format!("ratelimit-policy: \"a\";q=9;w={window}");
        assert_eq!(default(&fields), "a 9/0 - 0 !1", "{window}");
    }
    let reset = "ratelimit-policy: \"a\";q=9;w=1\nratelimit: \"a\";r=5;t=-1";
    assert_eq!(default(reset), "a 9/1 5 0 !1");
    let numbers = "-1|1000000000000000000000000000000|NaN|1e30||\"5\"|5, 6".split('|');
    for broken in numbers.chain([&*long]) {
        let fields = format!("x-ratelimit-limit: {broken}\nratelimit-policy: \"a\";q=5;w=1");
        assert_eq!(default(&fields), "a 5/1 - 0 !1", "{broken:.20}");
    }
    let policies =
        r#"limit=5, w|"a";q=1000000000000000000000;w=1|"a";w=1|5;q=1|("a");q=1|"a";q=-1"#
            .split('|');
    for broken in policies.chain([&*many]) {
        let fields = format!("ratelimit-policy: {broken}\nanthropic-ratelimit-requests-limit: 5");
        assert_eq!(default(&fields), "requests 5/60 - 0 !1", "{broken:.20}");
    }
    for (second, limit, ignored) in [("5", Some(5), 0), ("6", None, 1)] {
        let fields =
            format!("x-ratelimit-limit: 5\nx-ratelimit-limit: {second}\nx-ratelimit-remaining: 1");
        let learned = learned(&fields);
        assert_eq!(
            (learned.policies[0].limit, learned.ignored()),
            (limit, ignored)
        );
    }
    let mut bytes = HeaderMap::new();
    for name in ["x-ratelimit-limit", "ratelimit-policy"] {
        bytes.insert(name, HeaderValue::from_bytes(b"\xff\xfe5").unwrap());
    }
    let learned = UpstreamLimits::default().read(StatusCode::OK, &bytes);
    assert_eq!((learned.policies.len(), learned.ignored()), (0, 2));
}

const VALID: &str = r#"ratelimit-policy: "burst";q=100;w=60, "daily";q=1000;w=86400;qu="requests";pk=:YWJj:
    ratelimit: "burst";r=50;t=30, "daily";r=9;t=5;pk=:YWJj:
    x-ratelimit-limit: 5000
    x-ratelimit-remaining: 4999
    x-ratelimit-reset: 1795737650
    x-ratelimit-resource: core
    x-ratelimit-limit-requests: 60
    x-ratelimit-remaining-requests: 59
    x-ratelimit-reset-requests: 6m0.5s
    anthropic-ratelimit-requests-limit: 50
    anthropic-ratelimit-requests-reset: 2026-11-27T00:00:01.5+02:00
    date: Fri, 27 Nov 2026 00:00:00 GMT
    retry-after: 7
    retry-after-ms: 1500"#;

/// Whatever an upstream sends: no panic, and the learned quotas are in range.
#[test]
fn random_and_mutated_fields_do_no_harm() {
    let mut rng = StdRng::seed_from_u64(support::seed());
    for round in 0..20_000 {
        let mut headers = HeaderMap::new();
        for (name, value) in &self::headers(VALID) {
            let mut bytes = value.as_bytes().to_vec();
            for _ in 0..rng.random_range(0..4) {
                let (at, byte) = (rng.random_range(0..=bytes.len()), rng.random::<u8>());
                match rng.random_range(0..5) {
                    0 => bytes.insert(at, byte),
                    1 if at < bytes.len() => bytes[at] = byte,
                    2 => bytes.truncate(at),
                    3 => bytes.extend_from_within(..at),
                    _ => bytes.insert(at, b"-+.,;\"=0159eTZ:"[rng.random_range(0..15)]),
                }
            }
            if round % 4 == 0 {
                bytes = (0..rng.random_range(0..40)).map(|_| rng.random()).collect();
            }
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                headers.append(name, value);
            }
        }
        let limits = UpstreamLimits::default().unit(["requests", "tokens"][round % 2]);
        let status = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS][round / 2 % 2];
        let learned = limits.read(status, &headers);
        assert!(
            learned.retry_after() <= Some(Duration::from_secs(300)),
            "{headers:?}"
        );
        let plan = Plan::of(&learned, None);
        let Some(quotas) = plan.quotas else { continue };
        assert_eq!(
            quotas
                .to_string()
                .parse::<crate::bucket::quotas::Quotas>()
                .unwrap(),
            quotas,
            "{headers:?}"
        );
        assert_eq!(quotas.limits().len(), plan.most_left.len());
        // No upstream stops its clients for longer than 5 min.
        for (limit, most) in quotas.limits().iter().zip(plan.most_left) {
            let owed = -most.unwrap_or(0).min(0) as f64 * limit.interval();
            assert!(owed <= 301e6 + limit.interval(), "{headers:?}: {owed} µs");
        }
    }
}
