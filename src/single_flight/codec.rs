//! The encoding of answers.

use tower::BoxError;

/// Encodes answers as bytes that other processes decode.
///
/// The [name](Self::name) is stored beside the bytes. An answer with another name is not read: it counts as no
/// answer, and the event `answer_foreign` reports it. So a codec whose format changes needs a new name.
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
    /// Returns an error if the bytes are not an answer. Then they count as no answer.
    fn decode(&self, bytes: &[u8]) -> Result<T, BoxError>;
}

/// Values that serde serializes and deserializes: the answers that [`Postcard`] and [`Json`] encode. Do not implement it.
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

/// [Postcard](postcard), the format of the crate of that name: compact, and without names of fields, so that any
/// change to the type takes another version.
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
