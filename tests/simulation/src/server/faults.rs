//! Faults that are put back into the scripts, to see that the worlds find them.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A text of the scripts, and what stands there instead.
static CHANGE: OnceLock<(String, String)> = OnceLock::new();
static IS_MADE: AtomicBool = AtomicBool::new(false);

/// Sets the change, once.
pub fn set(from: String, to: String) {
    // The program sets it before the first world.
    let _ = CHANGE.set((from, to));
}

/// A script with the change.
pub fn put_back(text: &[u8]) -> Cow<'_, [u8]> {
    let Some((from, to)) = CHANGE.get() else {
        return Cow::Borrowed(text);
    };
    let text = String::from_utf8_lossy(text);
    IS_MADE.fetch_or(text.contains(from), Ordering::Relaxed);
    Cow::Owned(text.replace(from, to).into_bytes())
}

/// Whether a script had the text, if there is a change.
pub fn is_made() -> bool {
    CHANGE.get().is_none() || IS_MADE.load(Ordering::Relaxed)
}
