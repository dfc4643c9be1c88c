//! Certificates for connections over TLS.

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};

use super::StoreBuilder;
use crate::Error;
use crate::setters::setters;

#[cfg(feature = "rustls")]
mod with_rustls;

/// Whom a store trusts over TLS, and how it identifies itself.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    roots: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

setters! { StoreBuilder:
    /// Trusts these root certificates and no others, for URLs with `rediss://`. One or more certificates in PEM. For a pool
    /// see [`credentials`](Self::credentials).
    ///
    /// By default a server is trusted if a root certificate of the operating system signed its certificate, or one of
    /// Mozilla's with the feature `rustls-webpki-roots`. With `rustls`, those of the operating system are read once in a
    /// process. The certificate must be valid for the host in the URL. This cannot be turned off: for a server with a
    /// certificate of your own, give the certificate of your authority.
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::builder()
    ///     .root_certificates(std::fs::read("/etc/redis/ca.pem")?)
    ///     .client_certificate(std::fs::read("/etc/redis/client.pem")?, std::fs::read("/etc/redis/client.key")?)
    ///     .redis("rediss://redis.example.com")?;
    /// # Ok(()) }
    /// ```
    fn root_certificates(pem: impl Into<Vec<u8>>) => access.tls.roots = Some(pem.into());

    /// Identifies the store to servers that ask for a client certificate: the certificate, followed by its chain if it has
    /// one, and its private key. Both in PEM; with `native-tls` the key must be PKCS #8. For a pool see
    /// [`credentials`](Self::credentials).
    fn client_certificate(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>)
        => access.tls.client = Some((certificate.into(), key.into()));
}

impl Tls {
    /// Whether nothing is set.
    pub(super) fn is_default(&self) -> bool {
        self.roots.is_none() && self.client.is_none()
    }

    /// The settings in the form of the client library.
    fn certificates(&self) -> Result<TlsCertificates, Error> {
        let no_certificate = |pem: &[u8]| !contains(pem, b"-----BEGIN CERTIFICATE-----");
        if self.roots.as_deref().is_some_and(no_certificate) {
            return Err(Error::invalid(
                "the root certificates must be PEM, contain no certificate",
            ));
        }
        if self
            .client
            .as_ref()
            .is_some_and(|(certificate, _)| no_certificate(certificate))
        {
            return Err(Error::invalid(
                "the client certificate must be PEM, contains no certificate",
            ));
        }
        #[cfg(feature = "rustls")]
        with_rustls::check(self)?;
        let client_tls = self
            .client
            .clone()
            .map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            });
        #[cfg(feature = "rustls")]
        let root_cert = self.roots.clone().or_else(with_rustls::system_roots);
        #[cfg(not(feature = "rustls"))]
        let root_cert = self.roots.clone();
        Ok(TlsCertificates {
            client_tls,
            root_cert,
        })
    }
}

/// Applies the settings to the address of a server.
pub(super) fn secured(info: ConnectionInfo, tls: &Tls) -> Result<ConnectionInfo, Error> {
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => Err(Error::invalid(
            "`#insecure` is not supported, since it would trust any server: give the server's certificate to \
             StoreBuilder::root_certificates",
        )),
        ConnectionAddr::TcpTls { .. } => {
            let client = Client::build_with_tls(info, tls.certificates()?).map_err(|error| {
                Error::invalid(format!("the settings of TLS cannot be used: {error}"))
            })?;
            Ok(client.get_connection_info().clone())
        }
        _ if tls.is_default() => Ok(info),
        addr => Err(Error::invalid(format!(
            "with certificates the URL must be rediss://, but {addr} is not"
        ))),
    }
}

/// Prepares the process for connections over TLS.
pub(super) fn prepare() {
    #[cfg(feature = "rustls")]
    with_rustls::provide_cryptography();
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
