use http::HeaderValue;

use super::super::*;

const NOW: u64 = 1_800_000_000;

fn of(fields: &[(&'static str, String)]) -> (Option<u64>, bool, u64) {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let Freshness { left, stale, age } = Freshness::of(&headers, at(0));
    (left.map(|left| left.as_secs()), stale, age.as_secs())
}

fn at(offset: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.checked_add_signed(offset).unwrap())
}

fn date(name: &'static str, offset: i64) -> (&'static str, String) {
    (name, httpdate::fmt_http_date(at(offset)))
}

fn control(value: &str) -> (&'static str, String) {
    ("cache-control", value.into())
}

#[test]
fn by_directives_before_expires() {
    assert_eq!(of(&[]), (None, true, 0));
    assert_eq!(of(&[control("public, Max-Age=60")]), (Some(60), true, 0));
    assert_eq!(
        of(&[control("max-age=60, s-maxage=5")]),
        (Some(5), false, 0)
    );
    assert_eq!(
        of(&[control("max-age=60"), date("expires", 5)]),
        (Some(60), true, 0)
    );
    assert_eq!(
        of(&[date("date", 0), date("expires", 5)]),
        (Some(5), true, 0)
    );
    assert_eq!(of(&[date("expires", -5)]), (Some(0), true, 0));
    for revalidate in ["must-revalidate", "proxy-revalidate"] {
        assert_eq!(
            of(&[control(&format!("max-age=9, {revalidate}"))]),
            (Some(9), false, 0)
        );
    }
}

#[test]
fn by_the_older_of_age_and_date() {
    let max_age = || control("max-age=60");
    assert_eq!(of(&[max_age(), ("age", "40".into())]), (Some(20), true, 40));
    assert_eq!(
        of(&[max_age(), date("date", -50), ("age", "40".into())]),
        (Some(10), true, 50)
    );
    assert_eq!(of(&[max_age(), date("date", 50)]), (Some(60), true, 0));
    assert_eq!(of(&[max_age(), ("age", "61".into())]), (Some(0), true, 61));
    assert_eq!(
        of(&[date("date", -50), date("expires", 0)]),
        (Some(0), true, 50)
    );
}

#[test]
fn what_cannot_be_read_is_over() {
    for value in ["", "-1", "1.5", "60x", "\"60", "six", "+6"] {
        assert_eq!(
            of(&[control(&format!("max-age={value}"))]),
            (Some(0), true, 0),
            "{value}"
        );
    }
    assert_eq!(of(&[control("max-age")]), (Some(0), true, 0));
    assert_eq!(of(&[("expires", "0".into())]), (Some(0), true, 0));
    assert_eq!(of(&[control("max-age=\"60\"")]), (Some(60), true, 0));
    assert_eq!(
        of(&[control("max-age=60, max-age=5")]),
        (Some(5), true, 0),
        "the shortest counts"
    );
    assert_eq!(
        of(&[control("max-age=99999999999999999999")]),
        (Some(1 << 31), true, 0)
    );
    assert_eq!(
        of(&[control("max-age=60"), ("age", "old".into())]),
        (Some(60), true, 0)
    );
}
