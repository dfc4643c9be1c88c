//! The library of functions that each server loads once, and the same text for servers without functions.
//!
//! It is one text, joined from the files of the enabled features in `lua/`. Its name has the digest of the text, so
//! that the libraries of several versions and feature sets can coexist. It registers two functions, one of them for
//! operations that only read. The operation is an argument. For a server without functions, the script has the pieces
//! that the call needs, and a line that calls them.

use std::sync::{Arc, OnceLock};

use crate::store::operation::{Rights, Script, lua};

macro_rules! pieces {
    ($($(#[$cfg:meta])* $name:literal,)+) => {
        &[$($(#[$cfg])* ($name, lua!($name)),)+]
    };
}

/// The pieces that all others use: the built-ins and the clock, and the state of a key.
const BASE: [&str; 2] = [lua!("clock"), lua!("state")];

/// The names and the texts of the other pieces, in order. Each is a block, because a Lua text can have at most 200
/// local variables. A table with the name of the block exports its functions to later blocks.
const PIECES: &[(&str, &str)] = pieces![
    "token",
    "queue",
    "grants",
    "holders",
    #[cfg(any(feature = "mutex", feature = "single-flight"))]
    "mutex",
    #[cfg(feature = "concurrency-limit")]
    "permits",
    #[cfg(feature = "concurrency-limit")]
    "settings",
    #[cfg(feature = "concurrency-limit")]
    "flows",
    #[cfg(feature = "concurrency-limit")]
    "turns",
    #[cfg(feature = "rw-lock")]
    "rw_lock",
    #[cfg(feature = "dedupe")]
    "bloom",
    #[cfg(feature = "dedupe")]
    "exact",
    #[cfg(feature = "single-flight")]
    "answer",
    #[cfg(feature = "dedupe")]
    "claim",
    "leases",
    #[cfg(feature = "rate-limit")]
    "calendar",
    #[cfg(feature = "rate-limit")]
    "level",
    #[cfg(feature = "rate-limit")]
    "change",
    #[cfg(feature = "rate-limit")]
    "holds",
    #[cfg(feature = "rate-limit")]
    "hold_step",
    #[cfg(feature = "rate-limit")]
    "bucket",
    #[cfg(feature = "rate-limit")]
    "buckets",
    #[cfg(feature = "rate-limit")]
    "bare",
    "runs",
    "care",
    #[cfg(feature = "dedupe")]
    "filter",
    #[cfg(feature = "mutex")]
    "several",
    #[cfg(any(feature = "concurrency-limit", feature = "rate-limit"))]
    "fleet",
    #[cfg(feature = "concurrency-limit")]
    "adapt",
    #[cfg(feature = "rate-limit")]
    "reserve",
    #[cfg(feature = "rate-limit")]
    "hold",
    #[cfg(feature = "rate-limit")]
    "correct",
    #[cfg(feature = "rate-limit")]
    "cancel",
    #[cfg(feature = "rate-limit")]
    "learn",
];

/// The last piece: it runs an operation.
const SERVE: &str = lua!("serve");

/// The number of digits of the digest in the name.
const DIGITS: usize = 16;

/// On a Cluster, a waiter is woken on a channel of its own node, whose slot is not that of the keys.
const WRITES: &str = "'allow-cross-slot-keys'";

/// Lua code that replaces the server's clock in tests.
pub(in crate::store) type Clock = Option<&'static str>;

/// Made once per process. No thread blocks on it, because in a forked child it could be half initialized.
static USUAL: OnceLock<Arc<Library>> = OnceLock::new();

/// The library as it is sent to a server.
#[derive(Debug)]
pub(in crate::store) struct Library {
    /// Also the name of the function that writes.
    pub(super) name: String,
    pub(super) text: String,
}

impl Library {
    /// Returns the library that reads the time from `clock`.
    pub(super) fn with_clock(clock: Clock) -> Arc<Self> {
        if clock.is_some() {
            return Arc::new(Self::new(clock));
        }
        if let Some(made) = USUAL.get() {
            return Arc::clone(made);
        }
        let made = Arc::new(Self::new(clock));
        // Another thread may have set the same library.
        let _ = USUAL.set(Arc::clone(&made));
        made
    }

    fn new(clock: Clock) -> Self {
        let pieces = joined(clock, |_| true);
        let digest = redis::Script::new(&pieces).get_hash()[..DIGITS].to_owned();
        let name = format!("td_{digest}");
        let reads = name_of(&name, Rights::Reads);
        // The clocks of tests write.
        let flags = if clock.is_none() { "'no-writes'" } else { "" };
        let text = format!(
            "#!lua name={name}\n{pieces}\
             redis.register_function{{function_name = '{name}', callback = serve, flags = {{{WRITES}}}}}\n\
             redis.register_function{{function_name = '{reads}', callback = serve, flags = {{{flags}}}}}\n"
        );
        Self { name, text }
    }

    /// The name of the function with these rights.
    pub(super) fn function(&self, rights: Rights) -> String {
        name_of(&self.name, rights)
    }
}

fn name_of(library: &str, rights: Rights) -> String {
    let suffix = match rights {
        Rights::Writes => "",
        Rights::Reads => "_reads",
    };
    format!("{library}{suffix}")
}

impl Script {
    /// Returns its name: its first arguments.
    pub(super) fn name(&self) -> String {
        self.words.join(" ")
    }

    /// Returns the script for servers without functions.
    pub(crate) fn text(&self, clock: Clock) -> String {
        let is_wanted = |name: &str| self.pieces.iter().any(|pieces| pieces.contains(&name));
        format!("{}return serve(KEYS, ARGV)\n", joined(clock, is_wanted))
    }
}

fn joined(clock: Clock, is_wanted: impl Fn(&str) -> bool) -> String {
    let wanted = PIECES.iter().filter(|(name, _)| is_wanted(name));
    let pieces = wanted.map(|(name, text)| format!("local {name} = {{}}\ndo\n{text}end\n"));
    let text = [&*BASE.concat(), &pieces.collect::<String>(), SERVE].concat();
    #[cfg(test)]
    let text = super::tests::mutants::applied(text);
    match clock {
        Some(clock) => {
            let text = text.replace(lua!("clock"), &other(clock));
            text.replace("if not call then bind(keys) end", "bind(keys)")
        }
        None => text,
    }
}

/// Returns the piece `clock` with the clock of a test: Lua code that sets `now`, and may replace `redis`.
fn other(clock: &str) -> String {
    let usual = lua!("clock");
    format!(
        "{usual}local bind_usual, now_of_test = bind, nil\n\
         local function bind(KEYS)\n\
         bind_usual()\n\
         local function of_test()\n\
         {clock}\n\
         return redis.call, redis.pcall, now\n\
         end\n\
         call, attempt, now_of_test = of_test()\n\
         end\n\
         local function clock() return now_of_test end\n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_file_is_a_piece_and_the_name_has_the_digest() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap();
        let names = files.filter_map(|file| file.unwrap().file_name().into_string().ok());
        let files: BTreeSet<_> = names
            .filter_map(|name| name.strip_suffix(".lua").map(str::to_owned))
            .collect();
        let pieces = PIECES
            .iter()
            .map(|(name, _)| *name)
            .chain(["clock", "state", "serve"]);
        let pieces: BTreeSet<_> = pieces.map(str::to_owned).collect();
        if cfg!(all(feature = "operator", feature = "quorum")) {
            assert_eq!(pieces, files);
        }
        let (usual, other) = (
            Library::with_clock(None),
            Library::with_clock(Some("local now = 1")),
        );
        assert_eq!(usual.name.len(), "td_".len() + DIGITS);
        assert_ne!(usual.name, other.name, "another text has another name");
        // Redis 7.0 crashes on a flush with more than 64 functions.
        assert_eq!(usual.text.matches("redis.register_function").count(), 2);
    }
}
