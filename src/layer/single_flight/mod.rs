//! `SingleFlightLayer`: one request is handled, others of its key get the same response.

mod capture;

pub use self::capture::{Capture, Captured};
