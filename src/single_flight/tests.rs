//! Tests of flights that need what is private to the module.

#[cfg(interleavings)]
pub(crate) mod interleavings;
#[cfg(test)]
#[cfg(feature = "postcard")]
mod set_back;
