//! Trusted networks from text and values.

use std::net::IpAddr;

use ipnet::IpNet;

use self::sealed::Parse;

#[cfg(test)]
mod tests;

/// What [`ClientIp::trust`](super::ClientIp::trust) takes: a network as an [`IpNet`], an address as an [`IpAddr`], or
/// text of one of them, such as `10.0.0.0/8` or `fd00::1`. White space around the text is ignored.
///
/// This trait is sealed.
pub trait IntoNetwork: Parse {}

impl<T: Parse> IntoNetwork for T {}

mod sealed {
    use super::IpNet;

    pub trait Parse {
        /// The network, or an error that names what is wrong with it.
        fn parse(self) -> Result<IpNet, String>;
    }
}

/// All networks, in their canonical form, or the first error.
pub(super) fn parse_all(networks: impl IntoIterator<Item: IntoNetwork>) -> Result<Vec<IpNet>, String> {
    networks.into_iter().map(Parse::parse).collect()
}

impl Parse for &str {
    fn parse(self) -> Result<IpNet, String> {
        let text = self.trim();
        parse(text)
            .ok_or_else(|| format!("{text:?} is neither an IP address nor a network such as \"10.0.0.0/8\""))
            .and_then(canonical)
    }
}

impl Parse for &String {
    fn parse(self) -> Result<IpNet, String> {
        Parse::parse(self.as_str())
    }
}

impl Parse for String {
    fn parse(self) -> Result<IpNet, String> {
        Parse::parse(self.as_str())
    }
}

impl Parse for IpAddr {
    fn parse(self) -> Result<IpNet, String> {
        Ok(IpNet::from(self.to_canonical()))
    }
}

impl Parse for IpNet {
    fn parse(self) -> Result<IpNet, String> {
        canonical(self)
    }
}

impl Parse for &IpNet {
    fn parse(self) -> Result<IpNet, String> {
        canonical(*self)
    }
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
            bits.and_then(|bits| IpNet::new(address.into(), bits).ok()).ok_or_else(|| {
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
