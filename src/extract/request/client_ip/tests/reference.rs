//! A second implementation for well-formed headers: fields are joined and read from the left, one character at a time,
//! and the client is looked up by its index.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The parts of the text between separators that are not in quoted strings, trimmed.
fn parts(text: &str, separator: char, quotes: bool) -> Vec<String> {
    let (mut parts, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in text.chars() {
        if c == separator && !quoted {
            parts.push(String::new());
            continue;
        }
        if quotes && c == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && c == '\\' && !escaped;
        parts.last_mut().unwrap().push(c);
    }
    assert!(!quoted, "not well-formed: {text}");
    parts.iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

fn node(text: &str) -> Option<IpAddr> {
    let without_obfuscated_port = text.split(":_").next().unwrap();
    let (before, after) = without_obfuscated_port.split_once('%').unwrap_or((without_obfuscated_port, ""));
    let text = before.to_owned() + after.find(']').map_or("", |bracket| &after[bracket..]);
    let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
    let address =
        unbracketed.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip())).ok()?;
    Some(match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    })
    .filter(|address| ![IpAddr::V4(0.into()), IpAddr::V6(Ipv6Addr::UNSPECIFIED)].contains(address))
}

/// The addresses of `X-Forwarded-For` from left to right.
pub(super) fn x_forwarded_for(fields: &[String]) -> Vec<Option<IpAddr>> {
    parts(&fields.join(","), ',', false).iter().map(|entry| node(entry.trim_matches('"'))).collect()
}

/// The addresses of `Forwarded` from left to right.
pub(super) fn forwarded(fields: &[String]) -> Vec<Option<IpAddr>> {
    let address = |element: &String| {
        let pairs = parts(element, ';', true);
        let value = pairs.iter().find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_lowercase() == "for").then_some(value)
        })?;
        let Some(quoted) = value.strip_prefix('"') else { return node(value) };
        let (mut unescaped, mut escaped) = (String::new(), false);
        for c in quoted[..quoted.len() - 1].chars() {
            escaped = c == '\\' && !escaped;
            if !escaped {
                unescaped.push(c);
            }
        }
        node(&unescaped)
    };
    parts(&fields.join(","), ',', true).iter().map(address).collect()
}

/// The client behind trusted proxies, from the entries from left to right.
pub(super) fn behind(
    is_trusted: impl Fn(IpAddr) -> bool,
    peer: IpAddr,
    entries: &[Option<IpAddr>],
) -> IpAddr {
    let mut chain = entries.to_vec();
    chain.push(Some(peer));
    let first = chain.iter().rposition(|entry| !entry.is_some_and(&is_trusted));
    match first {
        Some(index) => chain[index].or_else(|| chain[index + 1]).unwrap(),
        None => chain[0].unwrap(),
    }
}

/// The client behind a number of proxies.
pub(super) fn behind_hops(n: usize, peer: IpAddr, entries: &[Option<IpAddr>]) -> IpAddr {
    let entry = entries.len().checked_sub(n).and_then(|index| entries[index]);
    entry.unwrap_or(peer)
}
