//! Rules from YAML, and which of them limits a descriptor.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tower_distributed::Key;

use crate::rules::Domain;
use crate::yaml::parse;

fn domain(descriptors: &str) -> Result<Domain, String> {
    parse(
        "rules.yaml",
        &format!("domain: edge\ndescriptors:\n{descriptors}"),
    )
}

/// The path of the rule for these entries, and its key.
fn found(domain: &Domain, entries: &[(&str, &str)]) -> Option<(String, Key)> {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    let entries: Vec<_> = entries.iter().map(entry).collect();
    let (rule, key) = domain.find(&entries)?;
    Some((domain.rules[rule].path.clone(), key))
}

#[test]
fn the_rules_of_the_example_are_read() {
    let domain = parse("rules.yaml", include_str!("../rules.yaml")).unwrap();
    let rules: Vec<_> = domain.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        [
            "tenant, bucket edge/tenant: 20/s",
            "tenant, path=/export/*, bucket edge/tenant/path: 10/s, burst 50",
            "tenant=acme, bucket edge/tenant: 100/s, burst 200; 50000/h",
            "tenant=internal, bucket edge/tenant: unlimited",
            "remote_address, bucket edge/remote_address: 5/s, burst 300, shadow mode",
        ]
    );
    assert_eq!(domain.rules[1].cost, 10);
}

#[test]
fn the_most_specific_rule_applies() {
    let domain = domain(
        "
  - {key: path, value: /api/*/items, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: path, value: /api/*, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: path, value: /files/*, share_threshold: true, rate_limit: {unit: second, requests_per_unit: 3}}
  - {key: path, value: /api/7, rate_limit: {unit: second, requests_per_unit: 4}}
  - key: path
    rate_limit: {unit: second, requests_per_unit: 5}
    descriptors:
      - {key: tenant, rate_limit: {unit: second, requests_per_unit: 6}}
  - {key: code, value: 007, descriptors: [{key: tenant, value: '7', rate_limit: {quotas: 1/s}}]}",
    )
    .unwrap();
    let one = |value: &str| found(&domain, &[("path", value)]).unwrap();
    assert_eq!(one("/api/7"), ("path=/api/7".into(), "/api/7".into()));
    assert_eq!(one("/api/8"), ("path=/api/*".into(), "/api/8".into()));
    assert_eq!(
        one("/api/7/items"),
        ("path=/api/*/items".into(), "/api/7/items".into())
    );
    // `*` matches nothing at all, too, but each character once.
    assert_eq!(one("/api//items").0, "path=/api/*/items");
    assert_eq!(one("/api/items").0, "path=/api/*");
    assert_eq!(one("/files/a"), ("path=/files/*".into(), "/files/*".into()));
    assert_eq!(one(""), ("path".into(), "".into()));
    let two = found(&domain, &[("path", "/x"), ("tenant", "acme")]).unwrap();
    assert_eq!(two, ("path, tenant".into(), Key::of(["/x", "acme"])));
    assert_eq!(
        found(&domain, &[("code", "007"), ("tenant", "7")])
            .unwrap()
            .0,
        "code=007, tenant=7"
    );
    // As in envoyproxy/ratelimit, a rule is for as many entries as lead to it, and a value that is listed is not looked
    // for in other rules.
    assert_eq!(
        found(&domain, &[("path", "/api/7"), ("tenant", "acme")]),
        None
    );
    assert_eq!(found(&domain, &[("code", "007")]), None);
    assert_eq!(found(&domain, &[("code", "7"), ("tenant", "7")]), None);
    assert_eq!(found(&domain, &[("Path", "/x")]), None);
    assert_eq!(found(&domain, &[]), None);
}

#[test]
fn units_are_those_of_quotas() {
    for (unit, quotas) in [
        ("second", "60/s"),
        ("MINUTE", "1/s, burst 60"),
        ("hour", "1/min, burst 60"),
        ("day", "60/d"),
        ("week", "60/week"),
        ("month", "60/month"),
        ("year", "60/year"),
    ] {
        let rule = format!("  - {{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 60}}}}");
        let domain = domain(&rule).unwrap();
        let read = domain.rules[0].quotas.clone().unwrap();
        assert_eq!(read, quotas.parse().unwrap(), "{unit}");
    }
}

#[test]
fn names_of_buckets_differ_if_their_keys_do() {
    let bucket = |keys: [&str; 2]| {
        let rule = format!(
            "  - {{key: '{}', descriptors: [{{key: '{}', rate_limit: {{quotas: 1/s}}}}]}}",
            keys[0], keys[1]
        );
        domain(&rule).unwrap().rules[0].bucket.clone()
    };
    assert_eq!(bucket(["remote_address", "x-a"]), "edge/remote_address/x-a");
    assert_eq!(bucket([":path", "a/b"]), "edge/.3apath/a.2fb");
    assert_eq!(bucket([".3apath", "a"]), "edge/.2e3apath/a");
    let named = "  - {key: a, rate_limit: {quotas: 1/s, bucket: tenants}}";
    assert_eq!(domain(named).unwrap().rules[0].bucket, "tenants");
}

/// Each names the file, the line, the mistake, and what is allowed.
#[test]
fn bad_rules_are_told() {
    let unit = "the unit must be one of [\"second\", \"minute\", \"hour\", \"day\", \"week\", \"month\", \"year\"]";
    let needs =
        "a rate_limit needs `unit` and `requests_per_unit`, or `quotas`, or `unlimited: true`";
    for (rules, error) in [
        (
            "{unit: fortnight, requests_per_unit: 1}",
            format!("4: {unit}, is \"fortnight\""),
        ),
        ("{unit: second}", format!("4: {needs}")),
        ("{}", format!("4: {needs}")),
        (
            "{unit: second, requests_per_unit: 1, quotas: 1/s}",
            format!("4: {needs}"),
        ),
        (
            "{unit: second, requests_per_unit: 1, unlimited: true}",
            format!("4: {needs}"),
        ),
        ("{quotas: 1/s, burst: 5}", format!("4: {needs}")),
        ("{quotas: 1/s, cost: 0}", "5:".to_owned()),
        (
            "{quotas: 1/s; 10/s; x}",
            "4: invalid quota \"1/s; 10/s; x\"".to_owned(),
        ),
        (
            "{unit: month, requests_per_unit: 9, burst: 2}",
            "4: ".to_owned(),
        ),
        ("{quotas: 1/s, bucket: 'a b'}", "4: ".to_owned()),
        ("{quotas: 1/s, uint: second}", "5:".to_owned()),
        ("{unit: second, requests_per_unit: -1}", "5:".to_owned()),
        (
            "{unit: second, requests_per_unit: 4294967296}",
            "5:".to_owned(),
        ),
    ] {
        let rules = format!("  # a comment\n  - key: a\n    rate_limit: {rules}");
        let told = domain(&rules).unwrap_err();
        assert!(
            told.starts_with(&format!("rules.yaml:{error}")),
            "{rules}: {told}"
        );
    }
    for (text, error) in [
        (
            "domain: edge\ndescriptors:\n  - key: a\n  - key: a",
            "rules.yaml:4: \"a\" is there already",
        ),
        (
            "domain: edge\ndescriptors:\n  - key: a\n    share_threshold: true",
            "rules.yaml:3: share_threshold needs a value with *",
        ),
        (
            "domain: edge\ndescriptors:\n  - key: a\n    keys: b",
            "rules.yaml:",
        ),
        (
            "domain: edge\ndescriptors:\n  - key: a\n    key: b",
            "rules.yaml:",
        ),
        ("domain: edge\ndescriptors:\n  - a", "rules.yaml:"),
        ("domain: edge\ndescriptors: 7", "rules.yaml:"),
        ("descriptors: []", "rules.yaml:"),
        ("domain: [", "rules.yaml:"),
        ("", "rules.yaml:"),
    ] {
        let told = parse("rules.yaml", text).unwrap_err();
        println!("{told}");
        assert!(told.starts_with(error), "{text:?}: {told}");
    }
}

/// They would exhaust the stack of the parser, and end the process.
#[test]
fn deep_rules_are_told() {
    let lists = "- ".repeat(100_000);
    let told = domain(&lists).unwrap_err();
    assert!(told.starts_with("rules.yaml:3: "), "{told}");
    let keys = "? ".repeat(100_000);
    assert!(domain(&keys).unwrap_err().starts_with("rules.yaml:3: "));
    let brackets = format!("  - {}", "[".repeat(100_000));
    assert!(domain(&brackets).unwrap_err().starts_with("rules.yaml:"));
    let nested = |depth: usize| {
        let level = |at: usize| {
            let indent = " ".repeat(2 * at);
            format!("{indent}  - key: k{at}\n{indent}    descriptors:\n")
        };
        let levels: String = (0..depth).map(level).collect();
        let indent = " ".repeat(2 * depth);
        format!("{levels}{indent}  - {{key: a, rate_limit: {{quotas: 1/s}}}}")
    };
    assert_eq!(domain(&nested(10)).unwrap().rules.len(), 1);
    assert!(domain(&nested(1000)).is_err());
}
