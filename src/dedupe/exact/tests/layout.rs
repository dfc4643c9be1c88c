//! Where an item is stored, and when that is checked.

use super::super::*;

/// The values follow the page `wire_format`. With other values, stored items would not be found.
#[test]
fn test_vectors() {
    let week = Duration::from_secs(7 * 86_400);
    let layout = Layout::new(1_000_000, week);
    assert_eq!(
        (&*layout.descriptor, layout.slice),
        ("exact1 6945 604800000", 302_400_000_000)
    );
    let digest = layout.digest(b"evt_1");
    let hex: String = digest
        .bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, "7d4e5a76eae6d8c165410ac19fe67565");
    assert_eq!((digest.bucket, digest.shift), (3399, 147999654427));
}

#[test]
fn hashes_are_packed_at_capacity() {
    for capacity in [1, 10_000, 1_000_000, 100_000_000_000] {
        let layout = Layout::new(capacity, Duration::from_secs(60));
        let each = capacity as f64 / SLICES as f64 / f64::from(layout.buckets);
        assert!(each <= PACKED as f64, "{capacity}: {each}");
    }
}

/// Otherwise the stored layout would expire while it is used.
#[tokio::test]
async fn the_layout_is_checked_again_after_half_the_time_that_items_are_remembered() {
    let layout = Arc::new(Layout::new(1, Duration::from_secs(100)));
    let mut exact = Exact::new(&Store::in_memory(), "items", layout);
    exact.began -= Duration::from_secs(60);
    for (opened, is_checked) in [(0, true), (5000, true), (60_000, false)] {
        exact.opened.store(opened, Ordering::Relaxed);
        exact.open().await.unwrap();
        assert_eq!(
            exact.opened.load(Ordering::Relaxed) != opened,
            is_checked,
            "{opened}"
        );
    }
}
