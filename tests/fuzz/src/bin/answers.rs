//! Stored responses: what is read is written as bytes that are read as the same, and takes memory in proportion to them.
#![no_main]

use tower_distributed::response::AnswerCodec;
use tower_distributed::single_flight::Codec as _;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(answer) = AnswerCodec.decode(bytes) else {
        return;
    };
    let written = AnswerCodec.encode(&answer).expect("it was read");
    let again = AnswerCodec.decode(&written).expect("it was written");
    assert_eq!(AnswerCodec.encode(&again).expect("it was read"), written);
});
