//! An address with its port, brackets and zone, as in `[2001:db8::1]:80`: a node in the terms of RFC 7239.

use std::net::{IpAddr, Ipv6Addr};

#[cfg(test)]
mod tests;

/// The length in bytes above which text is not taken for an address. The longest address has 45 bytes; brackets, a zone
/// (16 bytes on Linux) and a port fit as well.
pub(super) const MAX_LEN: usize = 128;

/// The address in canonical form. `None` for everything else: `unknown`, obfuscated identifiers, host names, bytes that
/// are not ASCII, unspecified addresses, malformed ports.
///
/// | accepted | |
/// |---|---|
/// | `192.0.2.1`, `2001:db8::1` | |
/// | `[2001:db8::1]`, `[192.0.2.1]` | in brackets |
/// | `192.0.2.1:80`, `[2001:db8::1]:80`, `192.0.2.1:_p` | with a port or an obfuscated port |
/// | `fe80::1%eth0` | with a zone |
pub(super) fn parse(text: &[u8]) -> Option<IpAddr> {
    if text.len() > MAX_LEN {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (
            host,
            if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':')?)
            },
        )
    } else {
        // Two colons or more: an IPv6 address without a port.
        match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (text, None),
        }
    };
    if !port.is_none_or(is_port) {
        return None;
    }
    let address = match host.split_once('%') {
        Some((address, zone)) if !zone.is_empty() => IpAddr::V6(address.parse::<Ipv6Addr>().ok()?),
        Some(_) => return None,
        None => host.parse().ok()?,
    };
    let address = address.to_canonical();
    (!address.is_unspecified()).then_some(address)
}

/// `node-port` of RFC 7239: 1 to 5 digits, or `_` and a name.
fn is_port(port: &str) -> bool {
    match port.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
