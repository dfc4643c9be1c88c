//! The keys of a request for several limits.

use std::sync::Arc;

use futures_util::future::try_join_all;
use smallvec::SmallVec;

use crate::key::Key;
use crate::layers::key::{DynKey, Extracted, KeyExtractor};
use crate::token_bucket::limiter::Limiter;
use crate::token_bucket::limits::Keys;

/// The key extractors for several limits: a tuple of one to eight [`KeyExtractor`]s, one for each limit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a key of a `{Req}` for each of {N} limits",
    note = "pass a tuple with a key extractor for each limit, in their order: `(|r: &Request| .., |r: &Request| ..)`"
)]
pub trait KeyExtractors<Req, const N: usize> {
    /// Returns the extractors, in the order of the limits. A limit whose key is `None` is skipped.
    fn into_extractors(self) -> [Arc<dyn KeyExtractor<Req> + Send + Sync>; N];
}

impl Limiter {
    /// Extracts the key of a request, with the extractor of each limit. `first` changes the key of the first limit.
    pub(crate) fn key_of<Req>(
        &self,
        extractors: &[DynKey<Req>],
        request: &Req,
        first: impl Fn(Extracted) -> Extracted,
    ) -> Extracted {
        match (self, extractors) {
            (Self::One(_), [key]) => first(key.extract(request)),
            (_, keys) => extract_all(keys, request, first),
        }
    }
}

/// Extracts the key for each limit, and combines them into one key.
fn extract_all<Req>(
    extractors: &[DynKey<Req>],
    request: &Req,
    first: impl Fn(Extracted) -> Extracted,
) -> Extracted {
    let extracted = extractors.iter().enumerate().map(|(limit, extractor)| {
        let key = extractor.extract(request);
        if limit == 0 { first(key) } else { key }
    });
    let extracted: SmallVec<[Extracted; 3]> = extracted.collect();
    if extracted
        .iter()
        .any(|one| matches!(one, Extracted::Pending(_)))
    {
        let keys = try_join_all(extracted);
        return Extracted::Pending(Box::pin(async move { Ok(joined(&keys.await?)) }));
    }
    let mut keys = Keys::new();
    for one in extracted {
        match one {
            Extracted::Ready(Ok(key)) => keys.push(key),
            other => return other,
        }
    }
    joined(&keys).into()
}

/// Combines the keys for each limit into one key. `None`: no limit has a key.
fn joined(keys: &[Option<Key>]) -> Option<Key> {
    keys.iter()
        .any(Option::is_some)
        .then(|| Key::of_some(keys.iter().map(Option::as_ref)))
}

macro_rules! tuples {
    ($($count:literal: $($extractor:ident)*;)*) => {$(
        impl<Req, $($extractor: KeyExtractor<Req> + Send + Sync + 'static),*> KeyExtractors<Req, $count>
            for ($($extractor,)*)
        {
            #[expect(non_snake_case, reason = "named as their types")]
            fn into_extractors(self) -> [DynKey<Req>; $count] {
                let ($($extractor,)*) = self;
                [$(Arc::new($extractor)),*]
            }
        }
    )*};
}
tuples! {
    1: A;
    2: A B;
    3: A B C;
    4: A B C D;
    5: A B C D E;
    6: A B C D E F;
    7: A B C D E F G;
    8: A B C D E F G H;
}
