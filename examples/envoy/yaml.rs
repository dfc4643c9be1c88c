//! Reads rules from YAML, with the line of each mistake.

use std::fmt::Display;
use std::num::NonZeroU32;

use marked_yaml::{FromYamlError, LoaderOptions, Spanned, from_yaml_with_options};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tower_distributed::{Quotas, Store, TokenBucket};

use crate::rules::{Domain, Level, Node, Rule};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    key: Spanned<String>,
    #[serde(default)]
    value: String,
    rate_limit: Option<RateLimit>,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    #[serde(default)]
    shadow_mode: bool,
    #[serde(default)]
    share_threshold: bool,
    // Metrics are by rule.
    #[serde(rename = "detailed_metric")]
    _detailed_metric: Option<IgnoredAny>,
    #[serde(rename = "value_to_metric")]
    _value_to_metric: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimit {
    unit: Option<String>,
    requests_per_unit: Option<u32>,
    burst: Option<u32>,
    quotas: Option<String>,
    cost: Option<NonZeroU32>,
    #[serde(default)]
    unlimited: bool,
    bucket: Option<String>,
    #[serde(rename = "name")]
    _name: Option<IgnoredAny>,
}

const NEEDS: &str =
    "a rate_limit needs `unit` and `requests_per_unit`, or `quotas`, or `unlimited: true`";
const UNITS: &[&str] = &["second", "minute", "hour", "day", "week", "month", "year"];

/// The parser calls itself for each level, and bounds only the depth of brackets.
const MOST_INDENTED: usize = 200;

/// Parses the text of a file, which has the rules of one domain.
pub(crate) fn parse(file: &str, text: &str) -> Result<Domain, String> {
    domain(text).map_err(|why| format!("{file}:{why}"))
}

fn domain(text: &str) -> Result<Domain, String> {
    let is_deep = |line: &str| {
        let rest = line.trim_start_matches([' ', '\t', '-', '?']);
        line.len() - rest.len() > MOST_INDENTED
    };
    if let Some(before) = text.lines().position(is_deep) {
        let line = before + 1;
        return Err(format!(
            "{line}: indented by more than {MOST_INDENTED} columns"
        ));
    }
    let options = LoaderOptions::default().error_on_duplicate_keys(true);
    let parsed = from_yaml_with_options(0, text, options);
    let read: File = parsed.map_err(|error| match error {
        FromYamlError::FromNode(error) => {
            let line = error.start_mark().map_or(0, |mark| mark.line());
            format!("{line}: {error}")
        }
        FromYamlError::ParseYaml(error) => format!(" {error}"),
    })?;
    let mut rules = Vec::new();
    let root = level(&read.descriptors, &[&read.domain], "", &mut rules)?;
    let name = read.domain;
    Ok(Domain { name, root, rules })
}

/// The name of buckets, or of the fleet's table, of these parts. Other characters than letters, digits, `-` and `_` are
/// written as `.` and their code, so that different parts have different names.
pub(crate) fn name_of(parts: &[&str]) -> String {
    let escape = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "-_".contains(c) => c.to_string(),
        c => format!(".{:02x}", u32::from(c)),
    };
    let escaped = |part: &&str| part.chars().map(escape).collect();
    parts.iter().map(escaped).collect::<Vec<String>>().join("/")
}

/// `keys`: the domain and the keys above. `path`: the path of the descriptor above.
fn level(
    list: &[Descriptor],
    keys: &[&str],
    path: &str,
    rules: &mut Vec<Rule>,
) -> Result<Level, String> {
    let mut read = Level::default();
    for descriptor in list {
        let Descriptor { key, value, .. } = descriptor;
        let comma = if path.is_empty() { "" } else { ", " };
        let is = if value.is_empty() { "" } else { "=" };
        let path = format!("{path}{comma}{}{is}{value}", **key);
        let keys = [keys, &[key]].concat();
        let is_wildcard = value.contains('*');
        if descriptor.share_threshold && !is_wildcard {
            return wrong(key, "share_threshold needs a value with *");
        }
        let rule = rule(descriptor, &keys, &path)?;
        let at = rule.is_some().then_some(rules.len());
        rules.extend(rule);
        let node = Node {
            key: key.to_string(),
            value: value.clone(),
            is_shared: descriptor.share_threshold,
            rule: at,
            next: level(&descriptor.descriptors, &keys, &path, rules)?,
        };
        let is_same = |other: &Node| (&other.key, &other.value) == (&node.key, value);
        let is_known = if value.is_empty() || is_wildcard {
            let is_known = read.others.iter().any(is_same);
            read.others.push(node);
            is_known
        } else {
            let values = read.exact.entry(node.key.clone()).or_default();
            values.insert(value.clone(), node).is_some()
        };
        if is_known {
            return wrong(key, format!("{path:?} is there already"));
        }
    }
    Ok(read)
}

fn rule(of: &Descriptor, keys: &[&str], path: &str) -> Result<Option<Rule>, String> {
    let Some(limit) = &of.rate_limit else {
        return Ok(None);
    };
    let per_unit = (&limit.unit, limit.requests_per_unit, limit.burst);
    let text = match (limit.unlimited, &limit.quotas, per_unit) {
        (true, None, (None, None, None)) => None,
        (false, Some(quotas), (None, None, None)) => Some(quotas.clone()),
        (false, None, (Some(unit), Some(requests), burst)) => {
            let unit = unit.to_lowercase();
            if !UNITS.contains(&&*unit) {
                let why = format!("the unit must be one of {UNITS:?}, is {unit:?}");
                return wrong(&of.key, why);
            }
            let burst = burst.map(|burst| format!(", burst {burst}"));
            Some(format!("{requests}/{unit}{}", burst.unwrap_or_default()))
        }
        _ => return wrong(&of.key, NEEDS),
    };
    let bucket = limit.bucket.clone().unwrap_or_else(|| name_of(keys));
    // Checks the name.
    let checked = TokenBucket::new(&Store::in_memory(), &bucket, "1/s");
    let quotas = text.map(|text| text.parse::<Quotas>()).transpose();
    let quotas = checked.and(quotas);
    Ok(Some(Rule {
        path: path.to_owned(),
        quotas: quotas.or_else(|error| wrong(&of.key, error))?,
        bucket,
        cost: limit.cost.map_or(1, NonZeroU32::get),
        is_shadow: of.shadow_mode,
    }))
}

fn wrong<T>(at: &Spanned<String>, why: impl Display) -> Result<T, String> {
    let line = at.span().start().map_or(0, marked_yaml::Marker::line);
    Err(format!("{line}: {why}"))
}
