//! Random addresses, entries and headers.

use super::*;

/// The fields of a header.
pub(super) type Fields = Vec<Vec<u8>>;

/// Pieces that a client may send to mislead a parser, separated by bars.
const PIECES: &str = "\
     \"|\"|\\|\\\"|\\\\|,|, |;|=| |\t|for=|for=\"|by=|host=\"|[|]|:80|6.6.6.6|[2001:db8::6]:80|10.0.0.6|fd00::6|\
     ::ffff:10.0.0.6|for=6.6.6.6|, for=6.6.6.6|for=10.0.0.6|for=\"6.6.6.6\"|for=\"[fd00::6]\"|unknown|_x|\
     %eth0|0.0.0.0|\u{fc}|proto=https";

/// Bytes that a header field may have: pieces of forwarding headers, and any others.
pub(super) fn soup(rng: &mut StdRng) -> Vec<u8> {
    let mut soup = Vec::new();
    for _ in 0..rng.random_range(0..12) {
        if rng.random_ratio(1, 8) {
            soup.extend(
                Some(rng.random()).filter(|byte: &u8| HeaderValue::from_bytes(&[*byte]).is_ok()),
            );
        } else {
            let pieces: Vec<_> = PIECES.split('|').collect();
            soup.extend(pieces.choose(rng).unwrap().bytes());
        }
    }
    soup
}

/// The address of a client, which is not trusted.
pub(super) fn client(rng: &mut StdRng) -> IpAddr {
    loop {
        let address = match rng.random_range(0..3) {
            0 => IpAddr::from(Ipv4Addr::new(203, 0, 113, rng.random_range(1..9))),
            1 => Ipv4Addr::from_bits(rng.random()).into(),
            _ => Ipv6Addr::from_bits(rng.random()).into(),
        };
        if !is_trusted(address) && !address.is_unspecified() {
            return address;
        }
    }
}

/// The address of a trusted proxy.
pub(super) fn proxy(rng: &mut StdRng) -> IpAddr {
    if rng.random() {
        Ipv4Addr::new(10, 0, 0, rng.random_range(1..9)).into()
    } else {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, rng.random_range(1..9)).into()
    }
}

/// A proxy appends an entry: to the last field or in a field of its own, after it may have joined the fields.
pub(super) fn append(rng: &mut StdRng, fields: &mut Fields, entry: &str) {
    let separator = *[",", ", ", " , ", ",\t", ", , "].choose(rng).unwrap();
    if rng.random_ratio(1, 4) && !fields.is_empty() {
        *fields = vec![fields.join(separator.as_bytes())];
    }
    match fields.last_mut() {
        Some(last) if rng.random() => last.extend(separator.bytes().chain(entry.bytes())),
        _ => fields.push(entry.as_bytes().to_vec()),
    }
}

/// A well-formed entry with an address, or one without.
pub(super) fn entry(rng: &mut StdRng, header: &str, address: Option<IpAddr>) -> String {
    if header == "forwarded" {
        return element(rng, address);
    }
    match address {
        None => (*["unknown", "_hidden", "0.0.0.0", "router.example"]
            .choose(rng)
            .unwrap())
        .to_owned(),
        Some(address) => {
            let node = node(rng, address);
            if rng.random_ratio(1, 8) {
                format!("\"{node}\"")
            } else {
                node
            }
        }
    }
}

fn node(rng: &mut StdRng, address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(v4) if rng.random_ratio(1, 4) => IpAddr::V6(v4.to_ipv6_mapped()),
        _ => address,
    };
    let zone = if address.is_ipv6() && rng.random_ratio(1, 4) {
        "%eth0"
    } else {
        ""
    };
    let port = (*[":80", ":65535", ":_p"].choose(rng).unwrap()).to_owned();
    match rng.random_range(0..3) {
        0 => format!("{address}{zone}"),
        1 if address.is_ipv6() => format!("[{address}{zone}]"),
        _ if address.is_ipv6() => format!("[{address}{zone}]{port}"),
        _ => format!("{address}{port}"),
    }
}

/// An element of `Forwarded`, with parameters whose values come from the client.
fn element(rng: &mut StdRng, address: Option<IpAddr>) -> String {
    let value = match address {
        Some(address) => Some(node(rng, address)),
        None => ["unknown", "_hidden", "_hidden:_p", "0.0.0.0"]
            .choose(rng)
            .map(|it| (*it).to_owned()),
    };
    // Without an address, `for` may be missing.
    let value = value.filter(|_| address.is_some() || rng.random_ratio(2, 3));
    let mut pairs = Vec::new();
    if let Some(value) = value {
        let plain = !value.contains(|c| "[]:%".contains(c)) || rng.random_ratio(1, 4);
        let value = if plain && rng.random() {
            value
        } else {
            quoted(rng, &value)
        };
        pairs.push(format!(
            "{}={value}",
            ["for", "For", "FOR"].choose(rng).unwrap()
        ));
    }
    for name in ["by", "host", "proto", "secret"] {
        if rng.random_ratio(1, 3) {
            let soup = String::from_utf8_lossy(&soup(rng)).replace('\u{fffd}', "?");
            let value = if rng.random() {
                "token".to_owned()
            } else {
                quoted(rng, &soup)
            };
            pairs.insert(rng.random_range(0..=pairs.len()), format!("{name}={value}"));
        }
    }
    if pairs.is_empty() {
        pairs.push("proto=http".to_owned());
    }
    pairs.join([";", "; ", ";;"].choose(rng).unwrap())
}

/// A quoted string, with backslashes where they are necessary and, sometimes, where they are not.
fn quoted(rng: &mut StdRng, text: &str) -> String {
    let needless = rng.random_ratio(1, 4);
    let mut quoted = String::from("\"");
    for c in text.chars() {
        if c == '"'
            || c == '\\'
            || (needless && c.is_ascii() && c != '\t' && rng.random_ratio(1, 3))
        {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted + "\""
}

/// A well-formed header, and the addresses of its entries from left to right.
pub(super) fn well_formed(rng: &mut StdRng, header: &str) -> (Vec<String>, Vec<Option<IpAddr>>) {
    let mut fields = Fields::new();
    let mut written = Vec::new();
    for _ in 0..rng.random_range(0..6) {
        let address = match rng.random_range(0..6) {
            0 => None,
            1 | 2 => Some(client(rng)),
            _ => Some(proxy(rng)),
        };
        let entry = entry(rng, header, address);
        append(rng, &mut fields, &entry);
        written.push(address);
    }
    (
        fields
            .into_iter()
            .map(|field| String::from_utf8(field).unwrap())
            .collect(),
        written,
    )
}
