//! TCP ports for servers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The first port. All ports are below those that the kernel uses for outgoing connections (32768 and up on Linux).
/// So no client can take a server's port while the server is down for a restart, or connect to itself when it tries
/// to reach the server.
const FIRST: u16 = 18_000;
const COUNT: u16 = 14_000;

/// Returns a port that was free a moment ago, and that this process has not returned before.
///
/// Another process may still take the port first, so the caller must be ready to try the next one.
pub fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        let port = FIRST + u16::try_from(step).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
