//! One caller does the work, the others get its answer.

mod codec;

#[cfg(feature = "json")]
pub use self::codec::Json;
#[cfg(feature = "postcard")]
pub use self::codec::Postcard;
pub use self::codec::Codec;
