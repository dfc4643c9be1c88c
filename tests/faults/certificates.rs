//! Certificates, and servers that speak TLS.

use std::cell::Cell;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use support::ports::free_port;
use support::redis_server::RedisServer;
use support::scratch_dir::ScratchDir;

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate of a server for these names and addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Identity {
        self.sign(names, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]
        })
    }

    pub(crate) fn expired_server(&self, names: &[&str]) -> Identity {
        self.sign(names, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            (params.not_before, params.not_after) =
                (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
        })
    }

    pub(crate) fn client(&self) -> Identity {
        self.sign(&[], |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]
        })
    }

    fn sign(&self, names: &[&str], set: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names = names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        set(&mut params);
        let key = KeyPair::generate().unwrap();
        Identity {
            certificate: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A server with a plain port for the test, and one that speaks TLS.
pub(crate) struct TlsServer {
    pub(crate) server: RedisServer,
    port: u16,
    _files: ScratchDir,
}

impl TlsServer {
    /// `more`: further lines of configuration.
    pub(crate) async fn start(authority: &Authority, identity: &Identity, more: &str) -> Self {
        Self::with_args(authority, identity, more, &[]).await
    }

    pub(crate) async fn with_args(
        authority: &Authority,
        identity: &Identity,
        more: &str,
        arguments: &[&str],
    ) -> Self {
        let files = ScratchDir::new();
        let file = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (root, certificate, key) = (
            file("ca.pem", &authority.pem()),
            file("server.pem", &identity.certificate),
            file("server.key", &identity.key),
        );
        let port = Cell::new(0);
        let config = || {
            port.set(free_port());
            format!(
                "tls-port {}\ntls-cert-file {certificate}\ntls-key-file {key}\ntls-ca-cert-file {root}\n{more}",
                port.get()
            )
        };
        let server = RedisServer::launch(config, arguments).await;
        Self {
            server,
            port: port.get(),
            _files: files,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.url_of("127.0.0.1")
    }

    pub(crate) fn url_of(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}
