//! The user name and the password of a connection: [`Credentials`], and their providers.

use std::future::Future;
use std::path::Path;

use futures_util::future::BoxFuture;
use tower::BoxError;

/// A user name and a password for Redis. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// The credentials of a user.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            username: Some(username.into()),
            password: password.into(),
        }
    }

    /// A password without a user name. The user is that of the URL, or `default`.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            username: None,
            password: password.into(),
        }
    }
}

debug!(Credentials);

/// Provides the credentials of each new connection. Implemented by [`Credentials`], and by closures that return a
/// future of `Result<Credentials, E>`. See [`StoreBuilder::credentials`](crate::StoreBuilder::credentials).
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not provide credentials for Redis",
    note = "pass `Credentials`, or a closure that returns a future of `Result<Credentials, E>`"
)]
pub trait ProvideCredentials: Send + Sync + 'static {
    /// Returns the credentials for the next connection.
    fn credentials(&self) -> BoxFuture<'static, Result<Credentials, BoxError>>;
}

impl ProvideCredentials for Credentials {
    fn credentials(&self) -> BoxFuture<'static, Result<Credentials, BoxError>> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }
}

#[diagnostic::do_not_recommend]
impl<F, Fut, E> ProvideCredentials for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn credentials(&self) -> BoxFuture<'static, Result<Credentials, BoxError>> {
        let credentials = self();
        Box::pin(async move { credentials.await.map_err(Into::into) })
    }
}

/// Reads the password from a file.
pub(super) fn password_in(path: &Path) -> Result<Credentials, std::io::Error> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let text = format!(
            "the password file {} cannot be read: {error}",
            path.display()
        );
        std::io::Error::new(error.kind(), text)
    })?;
    Ok(Credentials::password(text.trim_end_matches(['\r', '\n'])))
}
