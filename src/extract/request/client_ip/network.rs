//! Trusted networks from their text.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

#[cfg(test)]
mod tests;

/// All networks, in their canonical form, or the first error. Networks and addresses are parsed from their text as well.
pub(super) fn parse_all(
    networks: impl IntoIterator<Item: fmt::Display>,
) -> Result<Vec<IpNet>, String> {
    let checked = |network: &str| {
        let error =
            || format!("{network:?} is neither an IP address nor a network such as \"10.0.0.0/8\"");
        parse(network).ok_or_else(error).and_then(canonical)
    };
    networks
        .into_iter()
        .map(|network| checked(network.to_string().trim()))
        .collect()
}

/// A network or an address. The parser of the standard library is used, which is stricter than that of `ipnet`.
fn parse(text: &str) -> Option<IpNet> {
    let Some((address, bits)) = text.split_once('/') else {
        return text.parse::<IpAddr>().ok().map(IpNet::from);
    };
    let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    IpNet::new(address.parse().ok()?, bits.parse().ok().filter(|_| digits)?).ok()
}

/// The network without host bits, and as an IPv4 network if it is IPv4-mapped.
fn canonical(network: IpNet) -> Result<IpNet, String> {
    let canonical = match (network.addr().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(mapped)) => {
            let bits = mapped.prefix_len().checked_sub(96);
            bits.and_then(|bits| IpNet::new(address.into(), bits).ok())
                .ok_or_else(|| {
                    format!("the prefix of the IPv4-mapped network {network} has less than 96 bits")
                })?
        }
        _ => network,
    };
    if canonical.prefix_len() == 0 {
        return Err(format!(
            "{network} trusts every address, so that each client could choose its own; \
             use `trust_hops` for proxies whose addresses are not known"
        ));
    }
    Ok(canonical.trunc())
}
