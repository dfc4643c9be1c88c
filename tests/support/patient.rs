//! Stores for tests whose subject is not a time-out.

use std::time::Duration;

/// The time-outs of a [patient](crate::patient!) store: no call meets them, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// `patient!(url)`: a store on one Redis, whose calls are not given up on a machine that is busy. `patient!()`: its builder.
///
/// The production time-outs are for tests of outages. `Store` must be in scope.
#[macro_export]
macro_rules! patient {
    () => {
        Store::builder()
            .timeout($crate::patient::PATIENCE)
            .connect_timeout($crate::patient::PATIENCE)
            .queue_timeout($crate::patient::PATIENCE)
    };
    ($url:expr) => {
        $crate::patient!().redis(&$url).unwrap()
    };
}
