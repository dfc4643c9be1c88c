//! What runs an operation on a server: a function of the library, or a script of its pieces.

#[cfg(test)]
pub(super) mod mutants;

use std::borrow::Cow;
use std::sync::OnceLock;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::{self, Cmd};

use super::library::{Clock, Library};
use crate::store::operation::Script;

/// About the bytes of a key or an argument.
const TEXT: usize = 40;

/// What runs an operation, with the clock of a store.
pub(crate) struct Loaded {
    pub(super) name: String,
    script: Script,
    clock: Clock,
    function: String,
    /// Made on first use.
    text: OnceLock<Text>,
    /// How many calls have begun.
    #[cfg(test)]
    begun: AtomicUsize,
}

/// A script as it is sent.
struct Text {
    text: String,
    sha: String,
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Function,
    /// By the digest of the script.
    Digest,
    /// With the text of the script.
    Full,
}

impl Loaded {
    pub(super) fn new(clock: Clock, script: Script, library: &Library) -> Self {
        let function = library.function(script.rights);
        Self {
            name: script.name(),
            script,
            clock,
            function,
            text: OnceLock::new(),
            #[cfg(test)]
            begun: Default::default(),
        }
    }

    /// The form of a call to a server with or without functions. With the clock of a test, every second call of an operation
    /// goes as a script: the tests of agreement hold for both ways, and for states that one has written and the other reads.
    pub(super) fn form(&self, has_functions: bool) -> Form {
        #[cfg(test)]
        let has_functions = has_functions
            && (self.clock.is_none() || self.begun.fetch_add(1, Relaxed).is_multiple_of(2));
        if has_functions {
            Form::Function
        } else {
            Form::Digest
        }
    }

    /// Starts a call. The caller adds the keys, then the [first arguments](Self::words) and the others: `texts` in all, with
    /// payloads of `bytes`.
    pub(super) fn call(&self, keys: usize, texts: usize, bytes: usize) -> Cmd {
        let mut call = Cmd::with_capacity(5 + texts, 96 + TEXT * texts + bytes);
        self.begin(&mut call, Form::Function);
        call.arg(keys);
        call
    }

    /// The first arguments of each call.
    pub(super) fn words(&self) -> &'static [&'static str] {
        self.script.words
    }

    fn begin(&self, call: &mut Cmd, form: Form) {
        match form {
            Form::Function => call.arg("FCALL").arg(&self.function),
            Form::Full => call.arg("EVAL").arg(&self.text().text),
            Form::Digest => call.arg("EVALSHA").arg(&self.text().sha),
        };
    }

    /// Returns the same call in another form.
    pub(super) fn in_form<'a>(&self, call: &'a Cmd, form: Form) -> Cow<'a, Cmd> {
        if form == Form::Function {
            return Cow::Borrowed(call);
        }
        let mut other = Cmd::new();
        self.begin(&mut other, form);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                other.arg(bytes);
            }
        }
        Cow::Owned(other)
    }

    /// What is wrong if the reply to a call of this form is none.
    pub(super) fn unexpected(&self, form: Form) -> String {
        let Self { name, function, .. } = self;
        match form {
            Form::Function => format!(
                "the operation {name} returned an unexpected reply: if FUNCTION LIST shows the function {function} in \
                 another library, delete that one"
            ),
            Form::Digest | Form::Full => format!("the script {name} returned an unexpected reply"),
        }
    }

    fn text(&self) -> &Text {
        self.text.get_or_init(|| {
            let text = self.script.text(self.clock);
            let sha = redis::Script::new(&text).get_hash().to_owned();
            Text { text, sha }
        })
    }
}
