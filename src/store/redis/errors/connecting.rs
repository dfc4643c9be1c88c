//! The reasons for failed connections, with remedies.

use std::fmt::Display;

use redis::RedisError;

use crate::error::reasons::{Cause, Outage};
use crate::store::redis::errors::{source, without_arguments};

/// Parts of the texts of rustls, OpenSSL and the operating system, and remedies. A Cluster passes on only the text of
/// an error.
const REMEDIES: [(&[&str], &str); 7] = [
    (
        &["max number of clients"],
        "the server has as many clients as its `maxclients` allows: raise it, or find who keeps connections open with \
         CLIENT LIST; this store keeps StoreBuilder::connections for each runtime",
    ),
    (
        &[
            "UnknownIssuer",
            "self-signed certificate",
            "self signed certificate",
            "unable to get local issuer",
        ],
        "the server's certificate is not signed by a trusted authority: give its root certificate to \
         StoreBuilder::root_certificates",
    ),
    (
        &["certificate expired", "certificate has expired"],
        "the server's certificate has expired, or a clock is wrong",
    ),
    (
        &[
            "not valid for name",
            "NotValidForName",
            "IP address mismatch",
            "ostname mismatch",
        ],
        "the server's certificate is for another host than that of the URL",
    ),
    (
        &["CertificateRequired", "certificate required"],
        "the server asks for a certificate: give one to StoreBuilder::client_certificate",
    ),
    (
        &[
            "alert: UnknownCA",
            "alert: CertificateExpired",
            "alert: BadCertificate",
            "alert unknown ca",
        ],
        "the server does not accept the certificate of StoreBuilder::client_certificate",
    ),
    (
        &[
            "InvalidContentType",
            "wrong version number",
            "corrupt message",
        ],
        "the server does not speak TLS on this port: use redis:// or the port for TLS",
    ),
];

/// Parts of the texts for the first commands of a connection, and remedies if the server refuses them.
const REFUSALS: [(&str, &str); 2] = [
    (
        "refused to switch database",
        "the server allows no SELECT: leave the database out of the URL, or allow the command",
    ),
    (
        "HELLO",
        "the server does not speak RESP3: leave `protocol` out of the URL",
    ),
];

/// Parts of the texts for a command that a server does not have, or does not allow.
const REFUSED: [&str; 6] = [
    "unknown command",
    "no permissions",
    "not support",
    "n't support",
    "unsupported",
    "not available",
];

/// Parts of the texts for a connection that the server has closed.
const CLOSED: [&str; 4] = [
    "reset by peer",
    "unexpected end of file",
    "early eof",
    "broken pipe",
];

/// Returns the outage of a server to which no connection can be made.
pub(in crate::store::redis) fn no_connection(server: impl Display, error: RedisError) -> Outage {
    let text = without_arguments(&error.to_string()).to_owned();
    let has_one = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let remedy = REMEDIES
        .iter()
        .find(|(parts, _)| has_one(parts))
        .map(|(_, remedy)| *remedy);
    let refused = || {
        let refusal = REFUSALS.iter().find(|(part, _)| text.contains(part));
        refusal
            .filter(|_| has_one(&REFUSED))
            .map(|(_, remedy)| *remedy)
    };
    let closed = || {
        let text = text.to_lowercase();
        CLOSED.iter().any(|part| text.contains(part)).then_some(
            "the server closed the connection: it may have reached its `maxclients`; if it speaks TLS on this port, use rediss:// as the URL; if it asks \
             for client certificates, give one to StoreBuilder::client_certificate; a proxy must answer CLIENT, which it \
             may refuse by an error",
        )
    };
    let text = match remedy.or_else(refused).or_else(closed) {
        Some(remedy) => format!("no connection to {server}: {text} ({remedy})"),
        None => format!("no connection to {server}: {text}"),
    };
    Outage {
        cause: Cause::Disconnected,
        text: text.into(),
        source: source(error),
    }
}

#[cfg(test)]
mod tests {
    use redis::make_extension_error;

    use super::*;

    /// The texts of the client library, for Redis 6.2 and for later versions. The remedy is only for commands that the
    /// server does not have, or does not allow.
    #[test]
    fn a_server_without_resp3_is_named() {
        for (text, is_remedied) in [
            ("Redis Server doesn't support HELLO command", true),
            ("unknown command 'HELLO'", true),
            (
                "HELLO must be called with the client already authenticated",
                false,
            ),
            (
                "Redis server refused to switch database: DB index is out of range",
                false,
            ),
            (
                "Redis server refused to switch database: Authentication required.",
                false,
            ),
        ] {
            let outage = no_connection("it", make_extension_error("ERR".into(), Some(text.into())));
            assert_eq!(
                outage.text.contains("leave `protocol` out"),
                is_remedied,
                "{}",
                outage.text
            );
            assert_eq!(
                outage.text.contains("leave"),
                is_remedied,
                "{}",
                outage.text
            );
        }
    }
}
