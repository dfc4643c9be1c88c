//! Keys as operators see and give them: a key has one text, which names no other key.
#![no_main]

use tower_distributed::Key;
use tower_distributed::operator::{Entry, Kind};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Entry::parse(Kind::ALL[0], text, text);
    }
    let Ok(entry) = Entry::new(Kind::ALL[0], "api", Key::from(bytes)) else {
        return;
    };
    let text = entry.key_text();
    assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
    let again = Entry::parse(Kind::ALL[0], "api", &text).expect("it was written");
    assert_eq!(again, entry, "{text:?}");
});
