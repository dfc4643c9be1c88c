use http::{HeaderName, HeaderValue};

use super::super::*;

const NOW: u64 = 1_800_000_000;

/// The freshness from these fields, separated by bars. An `@` precedes the seconds from now to a date.
fn of(fields: &str) -> (Option<u64>, bool, u64) {
    let mut headers = HeaderMap::new();
    for (name, value) in fields.split('|').filter_map(|field| field.split_once(": ")) {
        let value = match value.strip_prefix('@') {
            Some(offset) => httpdate::fmt_http_date(at(offset.parse().unwrap())),
            None => value.to_owned(),
        };
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(&value).unwrap());
    }
    let Freshness { left, stale, age } = Freshness::of(&headers, at(0));
    (left.map(|left| left.as_secs()), stale, age.as_secs())
}

fn at(offset: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.checked_add_signed(offset).unwrap())
}

#[test]
fn by_directives_before_expires() {
    for (fields, left, stale) in [
        ("", None, true),
        ("cache-control: public, Max-Age=60", Some(60), true),
        ("cache-control: max-age=60, s-maxage=5", Some(5), false),
        ("cache-control: max-age=60|expires: @5", Some(60), true),
        ("date: @0|expires: @5", Some(5), true),
        ("expires: @-5", Some(0), true),
        ("cache-control: max-age=9, must-revalidate", Some(9), false),
        ("cache-control: max-age=9, proxy-revalidate", Some(9), false),
    ] {
        assert_eq!(of(fields), (left, stale, 0), "{fields}");
    }
}

#[test]
fn by_the_older_of_age_and_date() {
    for (fields, left, age) in [
        ("cache-control: max-age=60|age: 40", 20, 40),
        ("cache-control: max-age=60|date: @-50|age: 40", 10, 50),
        ("cache-control: max-age=60|date: @50", 60, 0),
        ("cache-control: max-age=60|age: 61", 0, 61),
        ("date: @-50|expires: @0", 0, 50),
    ] {
        assert_eq!(of(fields), (Some(left), true, age), "{fields}");
    }
}

#[test]
fn what_cannot_be_read_is_over() {
    for value in "|-1|1.5|60x|\"60|six|+6".split('|') {
        let field = format!("cache-control: max-age={value}");
        assert_eq!(of(&field), (Some(0), true, 0), "{value}");
    }
    for (field, left) in [
        ("cache-control: max-age", 0),
        ("expires: 0", 0),
        ("cache-control: max-age=\"60\"", 60),
        // The shortest counts.
        ("cache-control: max-age=60, max-age=5", 5),
        ("cache-control: max-age=99999999999999999999", 1 << 31),
        ("cache-control: max-age=60|age: old", 60),
    ] {
        assert_eq!(of(field), (Some(left), true, 0), "{field}");
    }
}
