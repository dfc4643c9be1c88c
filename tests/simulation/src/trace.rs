//! What has happened in a world: a digest of all of it, and the text if it is asked for.

use std::sync::Mutex;

use crate::os;
use crate::server::lock;

pub struct Trace {
    /// The digest, and how much has happened.
    state: Mutex<(u64, u64)>,
    /// Whether each event is printed.
    is_printed: bool,
}

/// FNV-1a, 64 bits.
const PRIME: u64 = 0x100_0000_01b3;
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

impl Trace {
    pub fn new(is_printed: bool) -> Self {
        Self {
            state: Mutex::new((BASIS, 0)),
            is_printed,
        }
    }

    pub fn note(&self, what: &str, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        let now = os::elapsed();
        let mut state = lock(&self.state);
        let now_bytes = (now.as_nanos() as u64).to_le_bytes();
        let all = now_bytes.iter().chain(what.as_bytes()).chain(bytes);
        state.0 = all.fold(state.0, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(PRIME)
        });
        state.1 += 1;
        if self.is_printed {
            let bytes = &bytes[..bytes.len().min(400)];
            println!(
                "{:>10.3} {what} {}",
                now.as_secs_f64() * 1e3,
                bytes.escape_ascii()
            );
        }
    }

    /// The digest, and how much has happened.
    pub fn end(&self) -> (u64, u64) {
        *lock(&self.state)
    }
}
