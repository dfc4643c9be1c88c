//! Certificates for connections over TLS: those that a store trusts, and its own. With rustls, this also checks the
//! certificates, reads those of the operating system, and sets the cryptography provider.

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};

use crate::error::Error;

/// The certificates that a store trusts over TLS, and its own.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(in crate::store) roots: Option<Vec<u8>>,
    pub(in crate::store) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Whether nothing is set.
    pub(in crate::store) fn is_default(&self) -> bool {
        self.roots.is_none() && self.client.is_none()
    }

    /// Returns the settings in the form of the client library.
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
pub(in crate::store) fn secured(info: ConnectionInfo, tls: &Tls) -> Result<ConnectionInfo, Error> {
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
pub(in crate::store) fn prepare() {
    #[cfg(feature = "rustls")]
    with_rustls::provide_cryptography();
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The parts that only rustls needs.
#[cfg(feature = "rustls")]
mod with_rustls {
    use std::sync::{Arc, OnceLock};

    use rustls::crypto::{CryptoProvider, ring};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};

    use crate::error::Error;
    use crate::store::redis::tls::Tls;

    /// Sets the cryptography provider of this process, unless the program has set one. The client library uses the
    /// provider that is set, and panics if there is none, or if the program was built with two.
    pub(super) fn provide_cryptography() {
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread has set one first, which has the same effect.
            drop(ring::default_provider().install_default());
        }
    }

    /// Checks for errors that the client library would report only when it connects, or never.
    pub(super) fn check(tls: &Tls) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(tls.roots.as_deref().unwrap_or_default())
        {
            let added = certificate.map_err(|error| error.to_string());
            let added = added.and_then(|root| roots.add(root).map_err(|error| error.to_string()));
            added.map_err(|error| {
                Error::invalid(format!("a root certificate cannot be used: {error}"))
            })?;
        }
        let Some((certificate, key)) = &tls.client else {
            return Ok(());
        };
        let invalid = |error: String| {
            Error::invalid(format!("the client certificate cannot be used: {error}"))
        };
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| invalid(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| invalid(format!("its key: {error}")))?;
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| {
                config
                    .with_root_certificates(roots)
                    .with_client_auth_cert(chain, key)
            })
            .map_err(|error| invalid(error.to_string()))?;
        Ok(())
    }

    /// Returns the root certificates of the operating system, in PEM. `None`: those of Mozilla are used. The client
    /// library reads them at each connection, fails if it does not understand one, and reads none at all if native-tls
    /// is enabled as well. Here they are read once per process.
    pub(super) fn system_roots() -> Option<Vec<u8>> {
        static ROOTS: OnceLock<Vec<u8>> = OnceLock::new();
        if cfg!(feature = "rustls-webpki-roots") {
            return None;
        }
        let read = || {
            let found = rustls_native_certs::load_native_certs().certs;
            let usable = found
                .iter()
                .filter(|root| RootCertStore::empty().add((*root).clone()).is_ok());
            usable.flat_map(|root| pem(root)).collect()
        };
        Some(ROOTS.get_or_init(read).clone())
    }

    fn pem(certificate: &CertificateDer<'_>) -> Vec<u8> {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(certificate);
        let mut pem = b"-----BEGIN CERTIFICATE-----\n".to_vec();
        for line in text.as_bytes().chunks(64) {
            pem.extend_from_slice(line);
            pem.push(b'\n');
        }
        pem.extend_from_slice(b"-----END CERTIFICATE-----\n");
        pem
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn certificates_in_pem_are_read_again() {
            for length in [1, 47, 48, 49, 500] {
                let certificate = CertificateDer::from(vec![7; length]);
                let pem = [pem(&certificate), pem(&certificate)].concat();
                let again = CertificateDer::pem_slice_iter(&pem)
                    .collect::<Result<Vec<_>, _>>()
                    .unwrap();
                assert_eq!(again, [certificate.clone(), certificate]);
                assert!(
                    pem.split(|byte| *byte == b'\n')
                        .all(|line| line.len() <= 64)
                );
            }
        }
    }
}
