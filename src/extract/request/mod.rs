//! Keys of HTTP requests.

mod client_ip;
mod extension;
mod parameter;
mod path;
mod request_line;
mod shared_get;
#[cfg(test)]
mod tests;

pub use self::client_ip::{ClientIp, client_ip};
pub use self::extension::extension;
pub use self::parameter::{bearer, cookie, header, query};
pub use self::path::{path, path_and_query};
#[cfg(feature = "axum")]
pub use self::request_line::matched_path;
pub use self::request_line::{grpc_method, grpc_service, host, method};
pub(crate) use self::shared_get::tells_scheme;
pub use self::shared_get::{SharedGet, shared_get};
use super::Extractor;
