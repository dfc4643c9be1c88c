//! The options of the sockets that a store makes.

use std::ops::RangeInclusive;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;

use crate::Error;
use crate::setters::in_range;

const ALLOWED: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// Whether a call leaves although the server has not acknowledged the one before.
    pub(crate) nodelay: bool,
    /// After how long without traffic the peer is probed.
    pub(crate) keepalive: Option<Duration>,
    /// How long sent data may be unacknowledged.
    pub(crate) user_timeout: Option<Duration>,
}

impl Default for Tcp {
    fn default() -> Self {
        let (keepalive, user_timeout) =
            (Some(Duration::from_secs(15)), Some(Duration::from_secs(10)));
        Self {
            nodelay: true,
            keepalive,
            user_timeout,
        }
    }
}

impl Tcp {
    pub(super) fn settings(&self) -> Result<TcpSettings, Error> {
        for (what, span) in [
            ("tcp_keepalive", self.keepalive),
            ("tcp_user_timeout", self.user_timeout),
        ] {
            in_range(what, ALLOWED, "1 s to 1 hour", span)?;
        }
        // The system would cut off the rest.
        if let Some(idle) = self.keepalive.filter(|idle| idle.subsec_nanos() > 0) {
            return Err(Error::invalid(format!(
                "tcp_keepalive must be whole seconds, is {idle:?}"
            )));
        }
        let mut settings = TcpSettings::default().set_nodelay(self.nodelay);
        if let Some(idle) = self.keepalive {
            settings = settings.set_keepalive(probed(idle));
        }
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        if let Some(timeout) = self.user_timeout {
            settings = settings.set_user_timeout(timeout);
        }
        Ok(settings)
    }
}

/// The system sends the probes in whole seconds.
fn probed(idle: Duration) -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(idle);
    #[cfg(any(
        target_os = "android",
        target_os = "linux",
        target_os = "macos",
        target_os = "windows"
    ))]
    let keepalive = keepalive.with_interval((idle / 3).max(Duration::from_secs(1)));
    keepalive
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::endpoint::Access;

    #[test]
    fn what_is_set_reaches_the_connections() {
        let settings = |tcp: Tcp| {
            let access = Access {
                tcp,
                ..Access::default()
            };
            access
                .info("redis://127.0.0.1")
                .unwrap()
                .tcp_settings()
                .clone()
        };
        let usual = settings(Tcp::default());
        assert!(usual.nodelay() && usual.keepalive().is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(usual.user_timeout(), Some(Duration::from_secs(10)));
        let plain = settings(Tcp {
            nodelay: false,
            keepalive: None,
            user_timeout: None,
        });
        assert!(!plain.nodelay() && plain.keepalive().is_none());
    }
}
