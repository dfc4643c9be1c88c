//! Keys from the extensions of a request.

use std::marker::PhantomData;

use derive_where::derive_where;
use http::Request;

use super::Extractor;
use crate::{Error, Extracted, IntoKey, KeyExtractor};

/// Uses what a closure makes of an extension of the request as the key: the user that a layer outside of this one has
/// authenticated. If the closure returns `None`, the request passes without a limit.
///
/// A request without the extension is refused with an error (500 over HTTP) that names its type: the layer that inserts the
/// extension is missing, or inside of this one. If that layer inserts it for some requests only, such as those of users that
/// are logged in, add `.or(client_ip())`, or make it [`optional`](Extractor::optional).
///
/// ```
/// use tower_distributed::extract::extension;
/// use tower_distributed::{Extracted, KeyExtractor};
///
/// #[derive(Clone)]
/// struct User(u64); // inserted by the authentication
///
/// let by_user = extension(|user: &User| user.0);
/// let mut request = http::Request::new(());
/// assert!(matches!(by_user.extract(&request), Extracted::Ready(Err(_))));
/// request.extensions_mut().insert(User(7));
/// assert_eq!(by_user.extract(&request), Some("7".into()));
/// ```
pub fn extension<T, F, K>(key: F) -> Extractor<Extension<T, F>>
where
    F: Fn(&T) -> K,
    K: IntoKey,
{
    Extractor(Extension {
        key,
        of: PhantomData,
    })
}

/// See [`extension`].
#[derive_where(Clone; F)]
pub struct Extension<T, F> {
    key: F,
    of: PhantomData<fn(&T)>,
}

impl<B, T, F, K> KeyExtractor<Request<B>> for Extension<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> K,
    K: IntoKey,
{
    fn extract(&self, request: &Request<B>) -> Extracted {
        let extension = request
            .extensions()
            .get::<T>()
            .ok_or_else(Error::no_extension::<T>);
        Extracted::Ready(extension.and_then(|extension| (self.key)(extension).into_key()))
    }
}

debug!(Extension<T, F>);
