//! The parts of a token, and its text.

#![allow(clippy::unwrap_used)]

mod percent;

use std::hash::{BuildHasher as _, RandomState};

use super::*;
use crate::lease::options::LeaseOptions;

const OWN: u64 = 0x0123_4567_89ab_cdef;

fn token(text: &str) -> Token {
    text.into()
}

fn permit(weight: u32, limit: u32) -> Ending {
    Ending::Permit { weight, limit }
}

/// The parts are read whatever the rest of the token is.
#[test]
fn a_token_is_read_in_parts() {
    let ids = [
        ("-1f.a", Some(31), Some(10)),
        ("-0.a~3e8@b", Some(0), Some(10)),
        ("-a", Some(10), None),
    ];
    let others = [
        ("-01.0a", Some(1), Some(10)),
        ("-1.8000000000000000", Some(1), None),
        ("", None, None),
    ];
    let known = ids.into_iter().chain(others);
    let known = known.map(|(way, id, ttl)| (format!("0123456789abcdef{way}"), id, ttl));
    let nonsense = [
        "",
        "a",
        "0123456789abcdef-",
        "äääääääääääää",
        "billing-service--1.5",
        "0123456789abcdef:1.5",
    ];
    for (way, id, ttl) in known.chain(nonsense.map(|text| (text.to_owned(), None, None))) {
        for (text, ending) in [
            ("", Ok(Ending::Nothing)),
            ("/2/5", Ok(permit(2, 5))),
            ("/r", Ok(Ending::Reader)),
            ("/w4", Ok(Ending::Writer { row: 4 })),
            ("/", Err("")),
            ("/b/c", Err("b/c")),
            ("/02/5", Err("02/5")),
            ("/2/5/..f4240", Err("2/5/..f4240")),
            ("/idle", Err("idle")),
            ("/rgroup", Err("rgroup")),
            ("/w04", Err("w04")),
        ] {
            let token = token(&format!("{way}{text}"));
            let says = (
                token.waiter().map(|(_, id)| id),
                token.ttl(),
                token.ending(),
            );
            assert_eq!(says, (id, ttl, ending), "{way}{text}");
        }
    }
    for (way, ms) in [
        ("-0.a~3e8@b~1/2/5", Some(1000)),
        ("-0~3e8", None),
        ("-0.a:0.a~3e8", None),
    ] {
        let text = format!("0123456789abcdef{way}");
        assert_eq!(
            Parsed::new(&text).and_then(|parsed| parsed.fence_ttl),
            ms,
            "{text}"
        );
    }
    // The value of a token is its name.
    for (text, expected) in [
        ("-1f.a~3e9@app/w4", None),
        ("-1f.a:host-7:a/b", Some("host-7:a/b")),
    ] {
        let text = format!("0123456789abcdef{text}");
        assert_eq!(
            (name(&text), token(&text).has_value()),
            (expected.unwrap_or(&text), expected.is_some())
        );
    }
}

/// For at least 8 days, or as long as the token contains, but never for less than the lease lasts, which Redis counts
/// in whole ms.
#[test]
fn a_fence_is_kept_as_its_token_says() {
    const DAY: i64 = 86_400_000_000;
    let kept =
        |marks: &str, lasts| token(&format!("0123456789abcdef-1{marks}")).kept_until(5 + lasts, 5);
    assert_eq!(
        [".a", "", ".a@app"].map(|marks| kept(marks, 10 * DAY)),
        [5 + 8 * DAY; 3]
    );
    for (lasts, until) in [
        (0, 10_000),
        (9000, 10_000),
        (9001, 11_000),
        (10_000, 11_000),
        (10_001, 12_000),
    ] {
        assert_eq!(kept(".a~a", lasts), 5 + until, "{lasts}");
    }
}

/// Asserts that a token equals that of a text.
#[track_caller]
fn assert_is(token: &Token, text: &str) {
    assert_eq!((token, &*token.text()), (&text.into(), text));
    assert_eq!(
        [format!("{token}"), format!("{token:?}")],
        [text.to_owned(), format!("{text:?}")]
    );
    let hasher = RandomState::new();
    assert_eq!(
        hasher.hash_one(token),
        hasher.hash_one(Token::from(text.to_owned())),
        "{text:?}"
    );
}

#[test]
fn a_usual_token_is_numbers() {
    let processes = [
        ("0123456789abcdef", OWN),
        ("0000000000000000", 0),
        ("ffffffffffffffff", u64::MAX),
    ];
    let ids = [("0", 0), ("1f", 0x1f), ("ffffffffffffffff", u64::MAX)];
    let ttls = [
        ("0", 0),
        ("1c9c380", 30_000_000),
        ("7fffffffffffffff", i64::MAX),
    ];
    let most = u32::MAX;
    let endings = [
        ("", Ending::Nothing),
        ("/2/5", permit(2, 5)),
        ("/0/0", permit(0, 0)),
        ("/4294967295/4294967295", permit(most, most)),
        ("/r", Ending::Reader),
        ("/w4", Ending::Writer { row: 4 }),
        ("/w0", Ending::Writer { row: 0 }),
        ("/w4294967295", Ending::Writer { row: most }),
    ];
    for (process, id) in processes
        .into_iter()
        .flat_map(|process| ids.map(|id| (process, id)))
    {
        for (ttl, ending) in ttls
            .into_iter()
            .flat_map(|ttl| endings.map(|ending| (ttl, ending)))
        {
            let text = format!("{}-{}.{}{}", process.0, id.0, ttl.0, ending.0);
            let read = token(&text);
            assert!(matches!(read, Token::Numbers { .. }), "{text}");
            assert_is(&read, &text);
            let says = (read.waiter(), read.ttl(), read.ending());
            assert_eq!(
                says,
                (Some((process.1, id.1)), Some(ttl.1), Ok(ending.1)),
                "{text}"
            );
            assert!(
                !Token::written(process.1, id.1, ttl.1 as u64, ending.1).spilled(),
                "{text}"
            );
        }
    }
}

#[test]
fn what_numbers_would_write_in_another_way_is_text() {
    let usual = "0123456789abcdef-1f.1c9c380";
    let rest = "~3e8 ~3e8/r @app @app/2/5 ~3e8@app/w4 :host-7 :a/r /r:host-7 /2/5/..f4240 /2/5/ /idle /rgroup /R \
        /r/ / // //5 /2 /2/ /w /W4 /02/5 /2/05 /w04 /+2/5 /2/+5 /w+4 /-2/5 /2/-5 /w-4 /4294967296/5 \
        /2/4294967296 /w4294967296 /a/5 /wa \n \0 é + . - g";
    let of_process = "- -1f -1f/r -1f. -1f./r -.1c9c380 .1c9c380 -1F.1c9c380 -1f.1C9C380 -01f.1c9c380 -00.1c9c380 \
        -1f.01c9c380 -1f.00 -+1f.1c9c380 -1f.+1c9c380 -1f.8000000000000000 -1f.ffffffffffffffff \
        -1f.10000000000000000 -10000000000000000.1c9c380";
    let processes =
        "0123456789ABCDEF 123456789abcdef 00123456789abcdef +123456789abcdef é123456789abcde é g";
    let rest = rest.split(' ').map(|rest| format!("{usual}{rest}"));
    let of_process = of_process
        .split(' ')
        .map(|rest| format!("0123456789abcdef{rest}"));
    let of_others = processes
        .split(' ')
        .map(|process| format!("{process}-1f.1c9c380"));
    let others = [
        "",
        "a",
        "a/r",
        "/r",
        "0123456789abcdef",
        &format!(" {usual}"),
    ]
    .map(str::to_owned);
    for text in rest.chain(of_process).chain(of_others).chain(others) {
        let read = token(&text);
        assert!(matches!(read, Token::Text(_)), "{text:?}");
        assert_is(&read, &text);
        assert_ne!(read, token(usual), "{text:?}");
    }
}

#[test]
fn a_new_token_is_that_of_its_text() {
    let endings = [
        ("", Ending::Nothing),
        ("/2/5", permit(2, 5)),
        ("/r", Ending::Reader),
        ("/w4", Ending::Writer { row: 4 }),
    ];
    let texts = [
        "",
        "/2/5",
        "/r",
        "/w4",
        ":host-7",
        ":r",
        "/2/5/..f4240",
        "/idle",
        "/rgroup",
    ];
    // Also values of unusual length.
    let texts: Vec<_> = texts
        .map(str::to_owned)
        .into_iter()
        .chain((90..130).map(|n| "x".repeat(n)))
        .collect();
    let marks = [
        ("", None, ""),
        ("~3e8", Some(1_000_000), ""),
        ("@app", None, "@app"),
    ];
    for (mark, micros, signature) in
        marks
            .into_iter()
            .chain([("~3e9@app", Some(1_000_500), "@app")])
    {
        let options = LeaseOptions {
            fence_ttl: micros.map(Duration::from_micros),
            signature: signature.into(),
            ..LeaseOptions::default()
        };
        let marks = options.marks();
        let endings = endings.map(|(text, ending)| (text, Suffix::from(ending)));
        let suffixes = endings
            .into_iter()
            .chain(texts.iter().map(|text| (&**text, text.clone().into())));
        for (text, suffix) in suffixes {
            assert_eq!(suffix.to_string(), text);
            for (process, id) in [(OWN, 0xf), (OWN, 0x10), (0, 0), (u64::MAX, u64::MAX)] {
                let written = format!("{process:016x}-{id:x}.1c9c380{mark}{text}");
                assert_is(&Token::new(process, id, &marks, &suffix), &written);
            }
        }
    }
}
