//! governor's keyed limiter, in this process's memory.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota};

use super::Contestant;

#[derive(Clone)]
pub struct Governor {
    limiter: Arc<DefaultKeyedRateLimiter<&'static str>>,
    /// After so many decisions a caller gives way to the others.
    turn: u32,
    asked: u32,
}

/// A caller that has its turn for one decision, as a request has that goes on to its handler.
pub const A_REQUEST: u32 = 1;
/// A caller that does nothing but decide, for as long as tokio lets a task go on that awaits what is ready.
pub const A_LOOP: u32 = 128;

impl Governor {
    pub fn new(burst: u16, turn: u32) -> Self {
        let quota = Quota::with_period(Duration::from_millis(1)).unwrap();
        let quota = quota.allow_burst(NonZeroU32::new(burst.into()).unwrap());
        Self {
            limiter: Arc::new(DefaultKeyedRateLimiter::keyed(quota)),
            turn,
            asked: 0,
        }
    }
}

impl Contestant for Governor {
    async fn admits(&mut self, key: &'static str) -> bool {
        self.asked += 1;
        // It answers at once: without this, the tasks of other callers would never run.
        if self.asked.is_multiple_of(self.turn) {
            tokio::task::yield_now().await;
        }
        self.limiter.check_key(&key).is_ok()
    }
}
