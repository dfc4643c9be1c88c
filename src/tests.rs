//! Tests of the whole crate: days of virtual time, and that the pages on the protocol and the wire format are complete.

#[cfg(all(feature = "operator", feature = "postcard"))]
mod days;
mod protocol;
mod wire_format;
