use super::*;

fn origin(fields: &[(&'static str, &str)]) -> Origin {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, value.parse().unwrap());
    }
    Origin::of(&headers)
}

#[test]
fn an_age_is_a_number_of_seconds() {
    for (text, seconds) in [
        ("0", 0),
        ("200", 200),
        ("007", 7),
        ("3, 9", 3),
        ("99999999999999999999999", u64::MAX),
    ] {
        let origin = origin(&[("age", text)]);
        assert_eq!(
            (origin.age, origin.ignored),
            (Duration::from_secs(seconds), 0),
            "{text}"
        );
        assert_eq!(origin.is_stored, seconds > 0, "{text}");
    }
    for broken in ["", "-1", "1.5", "soon", ", 9", "+1"] {
        let origin = origin(&[("age", broken)]);
        assert_eq!(
            (origin.age, origin.is_stored, origin.ignored),
            (Duration::ZERO, false, 1),
            "{broken}"
        );
    }
}

/// By the clock of the maker, if it has one.
#[test]
fn a_response_was_made_at_its_date_or_its_age_ago() {
    let date = "Fri, 27 Nov 2026 00:00:00 GMT";
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_737_600);
    assert_eq!(origin(&[("date", date), ("age", "60")]).made, at);
    for (fields, ago, ignored) in [
        (&[("age", "60")] as &[_], 60, 0),
        (&[("date", "today"), ("age", "60")], 60, 1),
        (&[("date", "today")], 0, 1),
        (&[], 0, 0),
    ] {
        let (before, origin) = (SystemTime::now(), origin(fields));
        let ago = Duration::from_secs(ago);
        assert!(
            (before - ago..=SystemTime::now() - ago).contains(&origin.made),
            "{fields:?}"
        );
        assert_eq!(origin.ignored, ignored);
    }
    assert_eq!(
        origin(&[("age", "99999999999999999999999")]).made,
        SystemTime::UNIX_EPOCH
    );
}

#[test]
fn what_caches_say_of_a_hit() {
    let is_stored = |field: &str| {
        let (name, value) = field.split_once(": ").unwrap();
        Origin::of(&HeaderMap::from_iter([(
            name.parse().unwrap(),
            value.parse().unwrap(),
        )]))
        .is_stored
    };
    let hits = "cache-status: example; hit; ttl=30|cache-status: \"Origin\"; fwd=uri-miss, edge;hit|\
        cache-status: edge; hit=?1|x-cache: HIT|x-cache: Hit from cloudfront|x-cache: MISS, HIT|\
        x-cache: TCP_MEM_HIT from a.example|x-cache-status: STALE|cf-cache-status: UPDATING";
    for field in hits.split('|') {
        assert!(is_stored(field), "{field}");
    }
    let others = "cache-status: example; fwd=stale; fwd-status=304|cache-status: hit|\
        cache-status: example; hit=?0|x-cache: MISS|x-cache: RefreshHit from cloudfront|\
        x-cache: TCP_REFRESH_HIT from a.example|x-cache: Miss from hit.example|x-cache: |\
        cf-cache-status: DYNAMIC|cf-cache-status: REVALIDATED|via: 1.1 hit";
    for field in others.split('|') {
        assert!(!is_stored(field), "{field}");
    }
}
