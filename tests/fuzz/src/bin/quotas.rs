//! Quotas and calendar quotas as text: what is read is written as a text that is read as the same.
#![no_main]

use tower_distributed::{QuotaTable, Quotas};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(quotas) = text.parse::<Quotas>() {
        assert!(quotas.max_cost() >= 1);
        let written = quotas.to_string();
        let again = written.parse::<Quotas>().map(|again| again.to_string());
        assert_eq!(again.ok(), Some(written), "{text:?}");
    }
    let _ = QuotaTable::try_from(text);
});
