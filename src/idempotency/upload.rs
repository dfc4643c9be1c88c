//! Reads the bodies of requests, within bounds.

use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http_body::Body;

use crate::Error;
use crate::error::Upload;
use crate::http::reading::{Reading, Taken};
use crate::store::timer::within;

/// The bounds of the request bodies of a layer.
pub(super) struct Limits {
    pub(super) largest: usize,
    pub(super) within: Duration,
    /// The bytes of all bodies.
    pub(super) room: Reading,
}

impl Limits {
    /// Reads a body to its end. Its bytes are counted until the second value is dropped.
    pub(super) async fn read<B: Body>(&self, body: B) -> Result<(Bytes, Taken), Error> {
        let read = within(self.within, self.read_whole(body)).await;
        read.unwrap_or_else(|| Err(Error::upload(Upload::TooSlow(self.within))))
    }

    async fn read_whole<B: Body>(&self, body: B) -> Result<(Bytes, Taken), Error> {
        let too_large = || Error::upload(Upload::TooLarge(self.largest));
        if body.size_hint().lower() > self.largest as u64 {
            return Err(too_large());
        }
        let (mut body, mut whole, mut taken) = (pin!(body), Vec::new(), self.room.begin());
        while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
            let frame = frame.map_err(|_| Error::malformed("the request body could not be read"))?;
            let Ok(data) = frame.into_data() else { continue };
            let (held, length) = (whole.capacity(), whole.len() + data.remaining());
            if length > self.largest {
                return Err(too_large());
            }
            // Bytes count as they arrive, so that a client cannot take up room by `Content-Length` alone.
            if length > held {
                let capacity = length.max(2 * held).min(self.largest);
                if !taken.add(capacity - held) {
                    return Err(Error::upload(Upload::NoRoom(self.room.most)));
                }
                whole.reserve_exact(capacity - whole.len());
            }
            whole.put(data);
        }
        Ok((whole.into(), taken))
    }
}
