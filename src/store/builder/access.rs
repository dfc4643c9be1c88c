//! How a store connects: the options of its sockets, and its credentials.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::StoreBuilder;
use crate::Error;
use crate::setters::setters;
use crate::store::credentials::{ProvideCredentials, password_in};

setters! { StoreBuilder:
    /// Sets `TCP_NODELAY`: whether a call leaves at once, although the server has not acknowledged the one before. Default:
    /// `true`. Without it a call may wait for a whole round trip. For a pool see [`pool`](Self::pool).
    fn tcp_nodelay(nodelay: bool) => access.tcp.nodelay = nodelay;

    /// Sets after how long without traffic the system probes whether the server is still there, 1 s to 1 hour, in whole
    /// seconds; `None`: never. Default: 15 s. It probes again every third of that. So a connection to a host that has vanished
    /// ends although nothing is sent on it.
    fn tcp_keepalive(idle: impl Into<Option<Duration>>) => access.tcp.keepalive = idle.into();

    /// Sets how long sent data may be unacknowledged before the system ends a connection (`TCP_USER_TIMEOUT`), 1 s to 1 hour;
    /// `None`: as long as the system likes, often 15 minutes. Default: 10 s. Has an effect on Linux, Android and Fuchsia.
    /// It also ends a connection to a server that reads nothing for so long. Calls do not wait for that: see
    /// [`timeout`](Self::timeout).
    fn tcp_user_timeout(limit: impl Into<Option<Duration>>) => access.tcp.user_timeout = limit.into();

    /// Sets where user names and passwords come from, in place of those in the URL: [`Credentials`](crate::Credentials), or an
    /// asynchronous closure. Each new connection asks again, so credentials can change, as short-lived tokens do. A pool
    /// has its own; beside a pool they are for [`wakeups`](Self::wakeups).
    ///
    /// A connection stays authenticated when its credentials expire, and when the server drops it the next one gets new
    /// ones. The time that the closure takes counts as connecting.
    ///
    /// The closure must not block: it also runs on the [`background`](Self::background) thread, where it would delay the
    /// renewals of all leases. Use `tokio::task::spawn_blocking` for what blocks.
    ///
    /// ```no_run
    /// use tower_distributed::{Credentials, Store};
    ///
    /// async fn token() -> Result<String, std::io::Error> {
    ///     Ok("valid for 15 minutes".to_owned()) // from the service that signs tokens
    /// }
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder()
    ///     .credentials(|| async { token().await.map(|token| Credentials::new("app", token)) })
    ///     .redis("redis://redis.internal")?;
    /// # Ok(()) }
    /// ```
    fn credentials(credentials: impl ProvideCredentials) => access.credentials = Some(Arc::new(credentials));
}

impl StoreBuilder {
    /// Makes connections in a simulated network.
    #[cfg(simulation)]
    pub fn dial(mut self, dial: Arc<dyn crate::store::dial::Dial>) -> Self {
        self.access.dial = Some(dial);
        self
    }

    /// Sets a file with the password, which is read for each new connection: for secrets that are mounted into a container and
    /// rotated. A line end after the password does not count. The user is that of the URL, or `default`. For a pool see
    /// [`credentials`](Self::credentials).
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the file cannot be read.
    ///
    /// ```no_run
    /// use tower_distributed::Store;
    ///
    /// # fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::builder().password_file("/run/secrets/redis")?.redis("redis://app@redis.internal")?;
    /// # Ok(()) }
    /// ```
    pub fn password_file(self, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path: Arc<Path> = path.as_ref().into();
        password_in(&path).map_err(|error| Error::invalid(error.to_string()))?;
        Ok(self.credentials(move || {
            let path = Arc::clone(&path);
            async move { tokio::task::spawn_blocking(move || password_in(&path)).await? }
        }))
    }
}
