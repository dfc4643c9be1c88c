//! Certificates for connections over TLS: [`Tls`].

use std::fmt;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};

use crate::Error;

#[cfg(feature = "rustls")]
mod with_rustls;

/// Whom a store trusts over TLS, and how it identifies itself. For URLs with `rediss://`, see
/// [`StoreBuilder::tls`](crate::StoreBuilder::tls).
///
/// By default a server is trusted if a root certificate of the operating system signed its certificate, or one of Mozilla's
/// with the feature `rustls-webpki-roots`. With `rustls`, those of the operating system are read once in a process. The certificate must be valid for the host in the URL. This cannot be turned off:
/// for a server with a certificate of your own, give the certificate of your authority.
///
/// ```no_run
/// use tower_distributed::{Store, Tls};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::new()
///     .root_certificates(std::fs::read("/etc/redis/ca.pem")?)
///     .client_certificate(std::fs::read("/etc/redis/client.pem")?, std::fs::read("/etc/redis/client.key")?);
/// let store = Store::builder().tls(tls).redis("rediss://redis.example.com")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    roots: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these root certificates and no others. One or more certificates in PEM.
    #[must_use]
    pub fn root_certificates(self, pem: impl Into<Vec<u8>>) -> Self {
        Self { roots: Some(pem.into()), ..self }
    }

    /// Identifies the store to servers that ask for a client certificate: the certificate, followed by its chain if it has
    /// one, and its private key. Both in PEM; with `native-tls` the key must be PKCS #8.
    #[must_use]
    pub fn client_certificate(self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { client: Some((certificate.into(), key.into())), ..self }
    }

    /// The settings in the form of the client library.
    pub(crate) fn certificates(&self) -> Result<TlsCertificates, Error> {
        let no_certificate = |pem: &[u8]| !contains(pem, b"-----BEGIN CERTIFICATE-----");
        if self.roots.as_deref().is_some_and(no_certificate) {
            return Err(Error::invalid("the root certificates must be PEM, contain no certificate"));
        }
        if self.client.as_ref().is_some_and(|(certificate, _)| no_certificate(certificate)) {
            return Err(Error::invalid("the client certificate must be PEM, contains no certificate"));
        }
        #[cfg(feature = "rustls")]
        with_rustls::check(self)?;
        let client_tls =
            self.client.clone().map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        #[cfg(feature = "rustls")]
        let root_cert = self.roots.clone().or_else(with_rustls::system_roots);
        #[cfg(not(feature = "rustls"))]
        let root_cert = self.roots.clone();
        Ok(TlsCertificates { client_tls, root_cert })
    }
}

/// Applies the settings to the address of a server.
pub(super) fn secured(info: ConnectionInfo, tls: Option<&Tls>) -> Result<ConnectionInfo, Error> {
    match (info.addr(), tls) {
        (ConnectionAddr::TcpTls { insecure: true, .. }, _) => Err(Error::invalid(
            "`#insecure` is not supported, since it would trust any server: give the server's certificate to \
             Tls::root_certificates",
        )),
        (ConnectionAddr::TcpTls { .. }, tls) => {
            let certificates = tls.cloned().unwrap_or_default().certificates()?;
            let client = Client::build_with_tls(info, certificates)
                .map_err(|error| Error::invalid(format!("the settings of TLS cannot be used: {error}")))?;
            Ok(client.get_connection_info().clone())
        }
        (_, Some(_)) => {
            Err(Error::invalid(format!("with `tls` the URL must be rediss://, but {} is not", info.addr())))
        }
        (_, None) => Ok(info),
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

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("root_certificates", &self.roots.is_some())
            .field("client_certificate", &self.client.is_some())
            .finish()
    }
}
