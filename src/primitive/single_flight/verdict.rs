//! What is shared of a run, and how it becomes bytes: an answer, or an error where these are shared.

use std::sync::Arc;
use std::time::Duration;

use tower::BoxError;

use super::codec::Codec;
use crate::Error;

/// How what comes of a run is shared.
pub(crate) struct Format<T, E> {
    pub(super) codec: Arc<dyn Codec<T>>,
    pub(super) ttl: Ttl<T>,
    pub(super) failures: Option<Failures<E>>,
}

/// For how long an answer lives; `None`: it is not shared.
type Ttl<T> = Arc<dyn Fn(&T) -> Option<Duration> + Send + Sync>;

/// For how long answers are served stale, and keys whose answers are private are not shared.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    pub(super) stale: Duration,
    pub(super) pass: Duration,
}

/// How errors are shared.
pub(super) struct Failures<E> {
    pub(super) codec: Arc<dyn Codec<E>>,
    pub(super) clone: fn(&E) -> E,
    /// Zero: they are for those alone who wait.
    pub(super) ttl: Duration,
}

/// Whom what came of a run is for, besides the caller whose run it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Share<T> {
    /// Callers that wait, and later ones: it is stored for its [ttl](super::SingleFlightBuilder::ttl).
    Stored {
        /// What is shared.
        answer: T,
        /// For how long at most, where it says so itself.
        at_most: Option<Duration>,
        /// Whether it may be served [stale](super::SingleFlightBuilder::stale_while_revalidate).
        stale: bool,
    },
    /// Callers that wait now, in all processes. Later ones run. It tells of a failure: where there is a good answer that may
    /// be served stale, that stays.
    Waiting(T),
    /// Nobody, as of all runs of its key: callers that wait run at once, each for itself, and so do later ones
    /// [for a while](super::SingleFlightBuilder::pass_for).
    Private,
    /// Nobody: callers that wait run at once, each for itself. Later ones share again.
    Nobody,
}

impl<T> Share<T> {
    /// For callers that wait and later ones, for as long as the flight says.
    pub fn stored(answer: T) -> Self {
        Self::Stored { answer, at_most: None, stale: true }
    }

    /// What is shared, with whomever.
    #[cfg(feature = "http")]
    pub(crate) fn answer(self) -> Option<T> {
        match self {
            Self::Stored { answer, .. } | Self::Waiting(answer) => Some(answer),
            Self::Private | Self::Nobody => None,
        }
    }

    /// The same after so much time.
    #[cfg(feature = "http")]
    pub(crate) fn aged(self, by: Duration) -> Self {
        match self {
            Self::Stored { answer, at_most: Some(most), stale } => {
                Self::Stored { answer, at_most: Some(most.saturating_sub(by)), stale }
            }
            other => other,
        }
    }

    /// The same of another value.
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> Share<U> {
        match self {
            Self::Stored { answer, at_most, stale } => Share::Stored { answer: map(answer), at_most, stale },
            Self::Waiting(answer) => Share::Waiting(map(answer)),
            Self::Private => Share::Private,
            Self::Nobody => Share::Nobody,
        }
    }
}

/// What all others get.
pub(super) enum Verdict<T, E> {
    Answer(T),
    Failure(E, fn(&E) -> E),
    /// Nothing: they run themselves.
    Pass(Pass),
}

/// Who runs where nothing is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Each caller.
    Caller,
    /// One caller of each process, for all of it.
    Process,
}

impl Pass {
    /// As [`Format::encode`] writes it.
    pub(super) fn bytes(self) -> Arc<[u8]> {
        match self {
            Self::Caller => [PASS].into(),
            Self::Process => [PASS, PASS].into(),
        }
    }
}

/// A verdict, and for how long: fresh, and then stale.
pub(super) struct Judged<T, E> {
    pub(super) verdict: Verdict<T, E>,
    /// Zero: it is for those alone who wait.
    pub(super) fresh: Duration,
    pub(super) stale: Duration,
    /// Whether the run failed: the last good answer is worth more than that.
    pub(super) has_failed: bool,
}

impl<T, E> Verdict<T, E> {
    pub(super) fn answer(&self) -> Option<&T> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Failure(..) | Self::Pass(_) => None,
        }
    }

    /// What a caller gets; `None`: it is to run itself.
    pub(super) fn into_result(self) -> Option<Result<T, E>> {
        match self {
            Self::Answer(answer) => Some(Ok(answer)),
            Self::Failure(error, _) => Some(Err(error)),
            Self::Pass(_) => None,
        }
    }
}

impl<T: Clone, E> Clone for Verdict<T, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Answer(answer) => Self::Answer(answer.clone()),
            Self::Failure(error, clone) => Self::Failure(clone(error), *clone),
            Self::Pass(pass) => Self::Pass(*pass),
        }
    }
}

/// What the bytes of a verdict begin with.
const ANSWER: u8 = b'+';
const FAILURE: u8 = b'-';
const PASS: u8 = b'*';

impl<T: Clone + 'static, E: 'static> Format<T, E> {
    /// The names of the codecs and the version, in one word.
    pub(super) fn name(&self, version: &str) -> Result<Arc<str>, Error> {
        let visible =
            |text: &str| text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'+');
        let mut names = vec![self.codec.name()];
        names.extend(self.failures.as_ref().map(|failures| failures.codec.name()));
        for codec in &names {
            if codec.is_empty() || !visible(codec) {
                return Err(Error::invalid(format!(
                    "the name of a codec must be 1 to 64 visible ASCII characters but +, is {codec:?}"
                )));
            }
        }
        if !visible(version) {
            return Err(Error::invalid(format!(
                "a version must be 0 to 64 visible ASCII characters but +, is {version:?}"
            )));
        }
        names.push(version);
        Ok(names.join("+").into())
    }

    /// Whom an outcome is for.
    pub(crate) fn to_share(&self, outcome: &Result<T, E>) -> Share<Result<T, E>> {
        match outcome {
            Ok(answer) => Share::stored(Ok(answer.clone())),
            Err(error) => self.share_error(error).map(Err),
        }
    }

    /// Whom an error is for.
    pub(crate) fn share_error(&self, error: &E) -> Share<E> {
        match &self.failures {
            Some(failures) => Share::stored((failures.clone)(error)),
            None => Share::Nobody,
        }
    }

    /// What others get of an outcome. What is private is so for `pass_for`.
    pub(super) fn judge(&self, shared: Share<Result<T, E>>, times: &Times) -> Judged<T, E> {
        const ZERO: Duration = Duration::ZERO;
        let has_failed =
            matches!(&shared, Share::Waiting(_) | Share::Nobody | Share::Stored { answer: Err(_), .. });
        let judged = |verdict, fresh, stale| Judged { verdict, fresh, stale, has_failed };
        let pass = |fresh| judged(Verdict::Pass(Pass::Caller), fresh, ZERO);
        let failure = |error| match &self.failures {
            Some(failures) => judged(Verdict::Failure(error, failures.clone), failures.ttl, ZERO),
            None => pass(ZERO),
        };
        match shared {
            Share::Stored { answer: Ok(answer), at_most, stale } => match (self.ttl)(&answer) {
                Some(ttl) => {
                    let fresh = at_most.map_or(ttl, |most| most.min(ttl));
                    judged(Verdict::Answer(answer), fresh, if stale { times.stale } else { ZERO })
                }
                None => pass(times.pass),
            },
            Share::Stored { answer: Err(error), .. } | Share::Waiting(Err(error)) => failure(error),
            Share::Waiting(Ok(answer)) => judged(Verdict::Answer(answer), ZERO, ZERO),
            Share::Private => pass(times.pass),
            Share::Nobody => pass(ZERO),
        }
    }

    pub(super) fn encode(&self, verdict: &Verdict<T, E>) -> Result<Arc<[u8]>, BoxError> {
        let (sign, bytes) = match (verdict, &self.failures) {
            (Verdict::Answer(answer), _) => (ANSWER, self.codec.encode(answer)?),
            (Verdict::Failure(error, _), Some(failures)) => (FAILURE, failures.codec.encode(error)?),
            (Verdict::Failure(..), None) => return Err("errors are not shared".into()),
            (Verdict::Pass(pass), _) => return Ok(pass.bytes()),
        };
        Ok([&[sign], &bytes[..]].concat().into())
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Verdict<T, E>, BoxError> {
        match (bytes.split_first(), &self.failures) {
            (Some((&ANSWER, bytes)), _) => Ok(Verdict::Answer(self.codec.decode(bytes)?)),
            (Some((&FAILURE, bytes)), Some(failures)) => {
                Ok(Verdict::Failure(failures.codec.decode(bytes)?, failures.clone))
            }
            (Some((&PASS, [])), _) => Ok(Verdict::Pass(Pass::Caller)),
            (Some((&PASS, [PASS])), _) => Ok(Verdict::Pass(Pass::Process)),
            _ => Err("neither an answer nor an error that is shared".into()),
        }
    }
}
