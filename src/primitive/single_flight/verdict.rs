//! What is shared of a run, and how it becomes bytes: an answer, or an error where these are shared.

use std::sync::Arc;
use std::time::Duration;

use tower::BoxError;

use super::codec::Codec;
use crate::Error;

/// How what comes of a run is shared.
pub(crate) struct Format<T, E> {
    pub(super) codec: Arc<dyn Codec<T>>,
    pub(super) life: Life<T>,
    pub(super) failures: Option<Failures<E>>,
}

/// For how long an answer lives; `None`: it is not shared.
type Life<T> = Arc<dyn Fn(&T) -> Option<Duration> + Send + Sync>;

/// How errors are shared.
pub(super) struct Failures<E> {
    pub(super) codec: Arc<dyn Codec<E>>,
    pub(super) clone: fn(&E) -> E,
    pub(super) life: Duration,
}

/// What is shared.
pub(super) enum Verdict<T, E> {
    Answer(T),
    Failure(E, fn(&E) -> E),
}

impl<T, E> Verdict<T, E> {
    pub(super) fn answer(&self) -> Option<&T> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Failure(..) => None,
        }
    }

    pub(super) fn into_result(self) -> Result<T, E> {
        match self {
            Self::Answer(answer) => Ok(answer),
            Self::Failure(error, _) => Err(error),
        }
    }
}

impl<T: Clone, E> Clone for Verdict<T, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Answer(answer) => Self::Answer(answer.clone()),
            Self::Failure(error, clone) => Self::Failure(clone(error), *clone),
        }
    }
}

/// What the bytes of a verdict begin with.
const ANSWER: u8 = b'+';
const FAILURE: u8 = b'-';

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

    /// What of an outcome is for others too.
    pub(crate) fn to_share(&self, outcome: &Result<T, E>) -> Option<Result<T, E>> {
        match outcome {
            Ok(answer) => Some(Ok(answer.clone())),
            Err(error) => self.share_error(error).map(Err),
        }
    }

    /// An error, where these are for others too.
    pub(crate) fn share_error(&self, error: &E) -> Option<E> {
        self.failures.as_ref().map(|failures| (failures.clone)(error))
    }

    /// The verdict, and for how long it lives; `None` where it is not to be shared.
    pub(super) fn verdict(&self, shared: Result<T, E>) -> Option<(Verdict<T, E>, Duration)> {
        match shared {
            Ok(answer) => (self.life)(&answer).map(|life| (Verdict::Answer(answer), life)),
            Err(error) => {
                let failures = self.failures.as_ref()?;
                Some((Verdict::Failure(error, failures.clone), failures.life))
            }
        }
    }

    pub(super) fn encode(&self, verdict: &Verdict<T, E>) -> Result<Arc<[u8]>, BoxError> {
        let (sign, bytes) = match (verdict, &self.failures) {
            (Verdict::Answer(answer), _) => (ANSWER, self.codec.encode(answer)?),
            (Verdict::Failure(error, _), Some(failures)) => (FAILURE, failures.codec.encode(error)?),
            (Verdict::Failure(..), None) => return Err("errors are not shared".into()),
        };
        Ok([&[sign], &bytes[..]].concat().into())
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Verdict<T, E>, BoxError> {
        match (bytes.split_first(), &self.failures) {
            (Some((&ANSWER, bytes)), _) => Ok(Verdict::Answer(self.codec.decode(bytes)?)),
            (Some((&FAILURE, bytes)), Some(failures)) => {
                Ok(Verdict::Failure(failures.codec.decode(bytes)?, failures.clone))
            }
            _ => Err("neither an answer nor an error that is shared".into()),
        }
    }
}
