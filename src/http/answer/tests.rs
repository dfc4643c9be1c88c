use super::*;

fn answer() -> Answer {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("content-type", &b"text/plain"[..]),
        ("link", b"</a>; rel=next"),
        ("x-empty", b""),
        ("link", b"</b>; rel=prev"),
        ("x-latin-1", b"caf\xe9\t\xff"),
    ] {
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
    }
    let vary = vec![
        (
            http::header::ACCEPT,
            vec!["text/plain".parse().unwrap(), "text/*".parse().unwrap()],
        ),
        (http::header::ACCEPT_LANGUAGE, vec![]),
    ];
    let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("\"7\""))]);
    Answer {
        headers,
        trailers,
        vary,
        made: 1_800_000_000,
        body: Bytes::from_static(b"caf\xc3\xa9 and \x00"),
        ..empty()
    }
}

fn empty() -> Answer {
    Answer {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        trailers: HeaderMap::new(),
        vary: vec![],
        made: 0,
        is_head: false,
        body: Bytes::new(),
    }
}

fn decode(bytes: &[u8]) -> Result<Answer, String> {
    AnswerCodec.decode(bytes).map_err(|error| error.to_string())
}

fn encode(answer: &Answer) -> Vec<u8> {
    AnswerCodec.encode(answer).unwrap()
}

fn assert_round_trip(answer: &Answer) {
    assert_eq!(&decode(&encode(answer)).unwrap(), answer);
}

#[test]
fn an_answer_comes_back_as_it_was() {
    assert_round_trip(&answer());
    assert_round_trip(&empty());
    assert_round_trip(&Answer {
        body: vec![7; 300_000].into(),
        ..answer()
    });

    for code in 200..=999 {
        assert_round_trip(&Answer {
            status: StatusCode::from_u16(code).unwrap(),
            ..empty()
        });
    }
}

/// Other versions of this crate write and read this format. A change of the format needs a new name.
#[test]
fn the_format_is_fixed() {
    let mut small = Answer {
        vary: vec![(http::header::TE, vec!["x".parse().unwrap()])],
        ..empty()
    };
    small.headers.insert("a", "bc".parse().unwrap());
    small.trailers.insert("d", "e".parse().unwrap());
    small.body = Bytes::from_static(b"body");
    let expected = b"\x00\xc8\0\0\0\0\0\0\0\0\0\0\x00\x01\x00\x01a\x00\x00\x00\x02bc\x00\x01\x00\x02te\x00\x01\x00\x00\x00\x01x\x00\x01\x00\x01d\x00\x00\x00\x01e\x00\x00\x00\x04body";
    assert_eq!(encode(&small), expected);
    assert_eq!(Codec::<Answer>::name(&AnswerCodec), "http/3");
}

#[test]
fn what_is_cut_short_or_has_more_is_refused() {
    let bytes = encode(&answer());
    for end in 0..bytes.len() {
        let error = decode(&bytes[..end]).unwrap_err();
        assert!(error.starts_with("cut short"), "{end}: {error}");
    }
    let error = decode(&[&bytes[..], b"xy"].concat()).unwrap_err();
    assert_eq!(error, "2 bytes are left after the answer");
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    assert_eq!(
        decode(b"\x00\xc8\0\0\0\0\0\0\0\0\0\0\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff")
            .unwrap_err(),
        "cut short: 4294967295 bytes were expected, 0 are left"
    );
    assert!(
        decode(b"\x00\xc8\0\0\0\0\0\0\0\0\0\0\xff\xff")
            .unwrap_err()
            .starts_with("cut short")
    );

    // The largest possible number of fields is more than a `HeaderMap` holds.
    let mut many = b"\x00\xc8\0\0\0\0\0\0\0\0\0\0\xff\xff".to_vec();
    for number in 0..0xffff {
        let name = format!("x-{number}");
        many.extend_from_slice(&u16::try_from(name.len()).unwrap().to_be_bytes());
        many.extend_from_slice(name.as_bytes());
        many.extend_from_slice(&[0; 4]);
    }
    many.extend_from_slice(&[0; 8]);
    assert!(decode(&many).is_err());
}

/// Returns the bytes of an answer with a status, and `rest` after `status`, `made` and `head`.
fn bytes(status: u16, rest: &[u8]) -> Vec<u8> {
    [&status.to_be_bytes()[..], &[0; 10], rest].concat()
}

#[test]
fn what_http_does_not_allow_is_refused() {
    let none = [0; 10];
    assert!(decode(&bytes(200, &none)).is_ok());
    for status in [99, 100, 101, 199, 1000] {
        assert!(decode(&bytes(status, &none)).is_err(), "status {status}");
    }
    for (wrong, fields) in [
        ("no name", &b"\x00\x01\x00\x00\x00\x00\x00\x00"[..]),
        ("upper case", b"\x00\x01\x00\x01A\x00\x00\x00\x00"),
        ("line feed", b"\x00\x01\x00\x01a\x00\x00\x00\x01\n"),
    ] {
        assert!(
            decode(&bytes(200, &[fields, &[0; 8]].concat())).is_err(),
            "{wrong}"
        );
    }
}

/// A client that can write to Redis cannot cause request smuggling, where one message is read as two.
#[test]
fn what_concerns_a_connection_or_has_another_length_is_not_read() {
    let with = |fields: &[(&'static str, &'static str)]| {
        let mut forged = answer();
        for (name, value) in fields {
            forged
                .headers
                .insert(*name, HeaderValue::from_static(value));
        }
        forged
    };
    let forged = with(&[
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("transfer-encoding", "chunked"),
    ]);
    assert_eq!(decode(&encode(&forged)).unwrap(), answer());
    for length in ["9", "12", "0", "-11", "ten", "11, 11"] {
        assert!(
            decode(&encode(&with(&[("content-length", length)]))).is_err(),
            "{length}"
        );
    }
    assert_round_trip(&with(&[("content-length", "11")]));
    assert_round_trip(&Answer {
        is_head: true,
        body: Bytes::new(),
        ..with(&[("content-length", "1234")])
    });
}

#[test]
fn more_than_can_be_counted_is_not_written() {
    let varied = (
        http::header::ACCEPT,
        vec![HeaderValue::from_static("a"); 0x1_0000],
    );
    let varied = Answer {
        vary: vec![varied],
        ..empty()
    };
    let error = AnswerCodec.encode(&varied).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a count or a length must be 65535 at most, is 65536"
    );
}

/// Changed bytes are refused, or decode to an answer of the same encoded length. For any bytes: `tests/fuzz`.
#[test]
fn no_changed_byte_panics() {
    let bytes = encode(&answer());
    for place in 0..bytes.len() {
        for byte in 0..=u8::MAX {
            let mut changed = bytes.clone();
            changed[place] = byte;
            if let Ok(answer) = decode(&changed) {
                assert_eq!(encode(&answer).len(), bytes.len());
                assert_round_trip(&answer);
            }
        }
    }
}
