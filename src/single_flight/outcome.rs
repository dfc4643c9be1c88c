//! The outcome of a run for other callers: which callers get it, for how long, and the codecs that encode it.

use std::sync::Arc;
use std::time::Duration;

use tower::BoxError;

use crate::error::Error;

/// How the outcome of a run is shared and encoded.
pub(crate) struct Format<T, E> {
    pub(super) codec: Arc<dyn Codec<T>>,
    pub(super) ttl: Ttl<T>,
    pub(super) failures: Option<Failures<E>>,
    /// How long answers are served stale.
    pub(super) stale: Duration,
    /// How long a key is passed after a private answer.
    pub(super) pass: Duration,
}

/// Returns the TTL of an answer. `None`: the answer is not shared.
type Ttl<T> = Arc<dyn Fn(&T) -> Option<Duration> + Send + Sync>;

/// How errors are shared.
pub(super) struct Failures<E> {
    pub(super) codec: Arc<dyn Codec<E>>,
    pub(super) clone: fn(&E) -> E,
    /// Zero: only the callers that wait now get the error.
    pub(super) ttl: Duration,
}

/// The callers that get the outcome of a run, besides the caller that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Share<T> {
    /// Callers that wait, and later callers. The answer is stored for its [ttl](super::SingleFlightBuilder::ttl).
    Stored {
        /// The answer.
        answer: T,
        /// An upper bound on the TTL, if the answer states one.
        at_most: Option<Duration>,
        /// Whether the answer may be served [stale](super::SingleFlightBuilder::stale_while_revalidate).
        stale: bool,
    },
    /// The callers that wait now, in all processes. Later callers run. The answer counts as a failure: it does not
    /// replace a good answer that may be served stale.
    Waiting(T),
    /// No other caller, because all answers to this key are private: the callers that wait run at once, and so do later
    /// callers [for some time](super::SingleFlightBuilder::pass_for).
    Private,
    /// No other caller: the callers that wait run at once. Later callers share runs again.
    Nobody,
}

impl<T> Share<T> {
    /// Shares an answer with callers that wait and later callers, for the TTL that the flight sets.
    ///
    /// ```
    /// use tower_distributed::single_flight::Share;
    ///
    /// // Stored for the flight's TTL, and served stale afterwards if the flight allows it.
    /// assert_eq!(Share::stored("all of it"), Share::Stored { answer: "all of it", at_most: None, stale: true });
    /// ```
    pub fn stored(answer: T) -> Self {
        Self::Stored {
            answer,
            at_most: None,
            stale: true,
        }
    }

    /// Returns the shared answer, if any.
    #[cfg(feature = "http")]
    pub(crate) fn answer(self) -> Option<T> {
        match self {
            Self::Stored { answer, .. } | Self::Waiting(answer) => Some(answer),
            Self::Private | Self::Nobody => None,
        }
    }

    /// Reduces `at_most` by a time that has passed.
    #[cfg(feature = "http")]
    pub(crate) fn aged(self, by: Duration) -> Self {
        match self {
            Self::Stored {
                answer,
                at_most: Some(most),
                stale,
            } => Self::Stored {
                answer,
                at_most: Some(most.saturating_sub(by)),
                stale,
            },
            other => other,
        }
    }

    /// Maps the answer.
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> Share<U> {
        match self {
            Self::Stored {
                answer,
                at_most,
                stale,
            } => Share::Stored {
                answer: map(answer),
                at_most,
                stale,
            },
            Self::Waiting(answer) => Share::Waiting(map(answer)),
            Self::Private => Share::Private,
            Self::Nobody => Share::Nobody,
        }
    }
}

/// The outcome that all other callers get.
pub(super) enum SharedOutcome<T, E> {
    Answer(T),
    Failure(E, fn(&E) -> E),
    /// Nothing is shared: the callers run.
    Pass(Pass),
}

/// The callers that run if nothing is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Every caller.
    Caller,
    /// One caller of each process, for all callers of that process.
    Process,
}

impl Pass {
    /// Returns the encoded form, as [`Format::encode`] writes it.
    pub(super) fn bytes(self) -> Arc<[u8]> {
        match self {
            Self::Caller => [PASS].into(),
            Self::Process => [PASS, PASS].into(),
        }
    }
}

/// An outcome to publish, how long it is fresh, and how long it is stale after that.
pub(super) struct Publication<T, E> {
    pub(super) outcome: SharedOutcome<T, E>,
    /// Zero: only the callers that wait now get the outcome.
    pub(super) fresh: Duration,
    pub(super) stale: Duration,
    /// Whether the run failed. Then the outcome does not replace the last good answer.
    pub(super) has_failed: bool,
}

impl<T, E> SharedOutcome<T, E> {
    pub(super) fn answer(&self) -> Option<&T> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Failure(..) | Self::Pass(_) => None,
        }
    }

    /// Returns the outcome for a caller. `None`: the caller runs.
    pub(super) fn into_result(self) -> Option<Result<T, E>> {
        match self {
            Self::Answer(answer) => Some(Ok(answer)),
            Self::Failure(error, _) => Some(Err(error)),
            Self::Pass(_) => None,
        }
    }
}

impl<T: Clone, E> Clone for SharedOutcome<T, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Answer(answer) => Self::Answer(answer.clone()),
            Self::Failure(error, clone) => Self::Failure(clone(error), *clone),
            Self::Pass(pass) => Self::Pass(*pass),
        }
    }
}

// The first byte of an encoded outcome.
pub(super) const ANSWER: u8 = b'+';
const FAILURE: u8 = b'-';
const PASS: u8 = b'*';

impl<T: Clone + 'static, E: 'static> Format<T, E> {
    /// Joins the names of the codecs and the version into one word.
    pub(super) fn name(&self, version: &str) -> Result<Arc<str>, Error> {
        let visible = |text: &str| {
            text.len() <= 64
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b'+')
        };
        let mut names = vec![self.codec.name()];
        names.extend(self.failures.as_ref().map(|failures| failures.codec.name()));
        for codec in &names {
            if codec.is_empty() || !visible(codec) {
                return Err(Error::invalid(format!(
                    "the name of a codec must be 1 to 64 visible ASCII characters except +, is {codec:?}"
                )));
            }
        }
        if !visible(version) {
            return Err(Error::invalid(format!(
                "version must be 0 to 64 visible ASCII characters except +, is {version:?}"
            )));
        }
        names.push(version);
        Ok(names.join("+").into())
    }

    /// Returns which callers get an outcome.
    pub(crate) fn to_share(&self, outcome: &Result<T, E>) -> Share<Result<T, E>> {
        match outcome {
            Ok(answer) => Share::stored(Ok(answer.clone())),
            Err(error) => self.share_error(error).map(Err),
        }
    }

    /// Returns which callers get an error.
    pub(crate) fn share_error(&self, error: &E) -> Share<E> {
        match &self.failures {
            Some(failures) => Share::stored((failures.clone)(error)),
            None => Share::Nobody,
        }
    }

    /// Returns what to publish for other callers. A private outcome passes its key for `pass_for`.
    pub(super) fn publication(&self, shared: Share<Result<T, E>>) -> Publication<T, E> {
        const ZERO: Duration = Duration::ZERO;
        let has_failed = matches!(
            &shared,
            Share::Waiting(_) | Share::Nobody | Share::Stored { answer: Err(_), .. }
        );
        let publish = |outcome, fresh, stale| Publication {
            outcome,
            fresh,
            stale,
            has_failed,
        };
        let pass = |fresh| publish(SharedOutcome::Pass(Pass::Caller), fresh, ZERO);
        let failure = |error| match &self.failures {
            Some(failures) => publish(
                SharedOutcome::Failure(error, failures.clone),
                failures.ttl,
                ZERO,
            ),
            None => pass(ZERO),
        };
        match shared {
            Share::Stored {
                answer: Ok(answer),
                at_most,
                stale,
            } => match (self.ttl)(&answer) {
                Some(ttl) => {
                    let fresh = at_most.map_or(ttl, |most| most.min(ttl));
                    publish(
                        SharedOutcome::Answer(answer),
                        fresh,
                        if stale { self.stale } else { ZERO },
                    )
                }
                None => pass(self.pass),
            },
            Share::Stored {
                answer: Err(error), ..
            }
            | Share::Waiting(Err(error)) => failure(error),
            Share::Waiting(Ok(answer)) => publish(SharedOutcome::Answer(answer), ZERO, ZERO),
            Share::Private => pass(self.pass),
            Share::Nobody => pass(ZERO),
        }
    }

    pub(super) fn encode(&self, outcome: &SharedOutcome<T, E>) -> Result<Arc<[u8]>, BoxError> {
        let (sign, mut bytes) = match (outcome, &self.failures) {
            (SharedOutcome::Answer(answer), _) => (ANSWER, self.codec.encode(answer)?),
            (SharedOutcome::Failure(error, _), Some(failures)) => {
                (FAILURE, failures.codec.encode(error)?)
            }
            (SharedOutcome::Failure(..), None) => return Err("errors are not shared".into()),
            (SharedOutcome::Pass(pass), _) => return Ok(pass.bytes()),
        };
        bytes.insert(0, sign);
        Ok(bytes.into())
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<SharedOutcome<T, E>, BoxError> {
        match (bytes.split_first(), &self.failures) {
            (Some((&ANSWER, bytes)), _) => Ok(SharedOutcome::Answer(self.codec.decode(bytes)?)),
            (Some((&FAILURE, bytes)), Some(failures)) => Ok(SharedOutcome::Failure(
                failures.codec.decode(bytes)?,
                failures.clone,
            )),
            (Some((&PASS, [])), _) => Ok(SharedOutcome::Pass(Pass::Caller)),
            (Some((&PASS, [PASS])), _) => Ok(SharedOutcome::Pass(Pass::Process)),
            _ => Err("it is neither an answer nor a shared error".into()),
        }
    }
}

/// Encodes answers as bytes that other processes decode.
///
/// The [name](Self::name) is stored beside the bytes. An answer with another name is not read: it counts as missing,
/// and the event `answer_foreign` reports it. So a codec whose format changes needs a new name.
///
/// ```
/// use tower::BoxError;
/// use tower_distributed::single_flight::Codec;
///
/// struct Text;
///
/// impl Codec<String> for Text {
///     fn name(&self) -> &str {
///         "text/1"
///     }
///
///     fn encode(&self, answer: &String) -> Result<Vec<u8>, BoxError> {
///         Ok(answer.clone().into_bytes())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<String, BoxError> {
///         Ok(String::from_utf8(bytes.to_vec())?)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a codec for the answers `{T}`",
    note = "`Postcard` and `Json` encode serde values; for HTTP responses use `tower_distributed::response::AnswerCodec`"
)]
pub trait Codec<T>: Send + Sync + 'static {
    /// Returns the name of the format and its version: 1 to 64 visible ASCII characters except `+`.
    fn name(&self) -> &str;

    /// Encodes an answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the answer cannot be encoded. Then it is not shared with other processes.
    fn encode(&self, answer: &T) -> Result<Vec<u8>, BoxError>;

    /// Decodes an answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not an answer. The answer then counts as missing.
    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

/// Values that serde serializes and deserializes: the answers that [`Postcard`] and [`Json`] encode. Do not implement
/// it.
#[cfg(any(feature = "postcard", feature = "json"))]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be encoded by a serde codec",
    label = "this codec needs answers that implement `serde::Serialize` and `serde::Deserialize`",
    note = "for HTTP responses use the codec `tower_distributed::response::AnswerCodec`"
)]
pub trait SerdeValue: serde::Serialize + serde::de::DeserializeOwned {}

#[cfg(any(feature = "postcard", feature = "json"))]
#[diagnostic::do_not_recommend]
impl<T: serde::Serialize + serde::de::DeserializeOwned> SerdeValue for T {}

/// [Postcard](postcard), the format of the crate of that name: compact, and without field names, so any change to the
/// type requires another version.
#[cfg(feature = "postcard")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

#[cfg(feature = "postcard")]
impl<T: SerdeValue> Codec<T> for Postcard {
    fn name(&self) -> &str {
        "postcard/1"
    }

    fn encode(&self, answer: &T) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_allocvec(answer)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        match postcard::take_from_bytes(bytes)? {
            (answer, []) => Ok(answer),
            (_, rest) => Err(format!("{} bytes are left after the answer", rest.len()).into()),
        }
    }
}

/// The JSON format, for answers that other programs also read.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: SerdeValue> Codec<T> for Json {
    fn name(&self) -> &str {
        "json/1"
    }

    fn encode(&self, answer: &T) -> Result<Vec<u8>, BoxError> {
        Ok(serde_json::to_vec(answer)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}
