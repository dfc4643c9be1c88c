//! A script that is ready to be called.

#[cfg(test)]
mod mutants;

use redis::{self, Cmd};

use crate::store::operation::Script;

/// About the bytes of a key or an argument.
const TEXT: usize = 40;

/// A script joined with the clock.
pub(crate) struct Loaded {
    pub(super) name: &'static str,
    text: String,
    sha: String,
}

impl Script {
    pub(crate) fn with_clock(&self, clock: &str) -> String {
        let Self { first, body, .. } = self;
        // The clocks of tests replace `redis` too.
        let is_usual = !cfg!(test) || clock == super::CLOCK;
        let (first, clock) = if is_usual { (*first, clock) } else { (clock, *first) };
        let text = format!("{first}{clock}{body}");
        #[cfg(test)]
        let text = mutants::applied(text);
        text
    }
}

impl Loaded {
    pub(super) fn new(clock: &str, script: Script) -> Self {
        let text = script.with_clock(clock);
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { name: script.name, text, sha }
    }

    /// Starts a call by the digest of the script. The caller adds the keys and the arguments: `texts` in all, with payloads
    /// of `bytes`.
    pub(super) fn call(&self, keys: usize, texts: usize, bytes: usize) -> Cmd {
        let mut call = Cmd::with_capacity(3 + texts, 64 + TEXT * texts + bytes);
        call.arg("EVALSHA").arg(&self.sha).arg(keys);
        call
    }

    /// Returns the same call with the text of the script.
    pub(super) fn in_full(&self, call: &Cmd) -> Cmd {
        let mut full = redis::cmd("EVAL");
        full.arg(&self.text);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                full.arg(bytes);
            }
        }
        full
    }
}
