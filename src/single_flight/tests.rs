//! Tests of flights that need private items of the module.

#[cfg(interleavings)]
pub(crate) mod interleavings;
#[cfg(test)]
#[cfg(feature = "postcard")]
mod set_back;
