//! Bloom filters.

use std::time::Duration;

use tower_distributed::bloom_filter::BloomFilterBuilder;
use tower_distributed::{BloomFilter, Error, Store};

const SECOND: Duration = Duration::from_secs(1);

/// Of different layouts, wrong for none of the items of these tests but by a rare accident.
fn layouts() -> [(&'static str, BloomFilterBuilder); 4] {
    let usual = BloomFilter::builder()
        .capacity(10_000)
        .false_positive_rate(1e-9);
    [
        ("usual", usual),
        ("spread", usual.keys(3)),
        ("forgets", usual.remember_for(3600 * SECOND)),
        (
            "bits",
            BloomFilter::builder()
                .bits(500_001)
                .hashes(20)
                .keys(2)
                .remember_for(3600 * SECOND),
        ),
    ]
}

fn each(store: &Store, name: &str) -> Vec<BloomFilter> {
    layouts()
        .map(|(layout, builder)| builder.build(store, &format!("{name}.{layout}")).unwrap())
        .into()
}

pub(crate) async fn what_is_inserted_is_contained_until_cleared(store: &Store, name: &str) {
    for (layout, builder) in layouts() {
        let name = format!("{name}.{layout}");
        let [filter, same] = [(); 2].map(|()| builder.build(store, &name).unwrap());
        let other = builder.build(store, &format!("{name}.other")).unwrap();
        filter.clear().await.unwrap();
        assert!(!filter.contains("a").await.unwrap());
        assert!(filter.insert("a").await.unwrap() && !filter.insert("a").await.unwrap());
        assert!(filter.contains("a").await.unwrap() && !filter.contains("b").await.unwrap());
        assert!(
            same.contains("a").await.unwrap() && !same.insert(String::from("a")).await.unwrap()
        );
        assert!(same.insert("b").await.unwrap() && filter.contains(b"b").await.unwrap());
        assert!(!other.contains("a").await.unwrap());
        other.clear().await.unwrap();
        filter
            .insert_all((0..100_u8).map(|item| [item]))
            .await
            .unwrap();
        assert!(same.contains("a").await.unwrap());
        filter.clear().await.unwrap();
        let contained = same
            .contains_all((0..100_u8).map(|item| [item]))
            .await
            .unwrap();
        assert!(!contained.contains(&true) && !same.contains("a").await.unwrap());
        assert_eq!(filter.estimated_count().await.unwrap(), 0);
        assert!(filter.insert([7]).await.unwrap());
    }
}

pub(crate) async fn batches_answer_in_order(store: &Store, name: &str) {
    for filter in each(store, name) {
        let items = |range: std::ops::Range<u32>| range.map(|item| format!("item {item}"));
        assert_eq!(filter.contains_all(["a"; 0]).await.unwrap(), [false; 0]);
        filter.insert_all(items(0..1500)).await.unwrap();
        filter.insert_all(Vec::<&str>::new()).await.unwrap();
        let contained = filter.contains_all(items(1000..2000)).await.unwrap();
        assert!(
            contained
                .iter()
                .enumerate()
                .all(|(item, contained)| *contained == (item < 500))
        );
        // Whatever stands twice is new once.
        let new = filter
            .insert_all(items(1400..1700).chain(items(1600..1800)))
            .await
            .unwrap();
        let expected = |item: usize| match item {
            0..300 => item >= 100,
            _ => item >= 400,
        };
        assert_eq!(
            new,
            (0..500).map(expected).collect::<Vec<_>>(),
            "{}",
            filter.name()
        );
    }
}

/// What each call of a filter comes to, with these items.
pub(crate) async fn calls(filter: &BloomFilter, items: [&str; 2]) -> [Result<(), Error>; 5] {
    [
        filter.contains(items[0]).await.map(drop),
        filter.insert(items[0]).await.map(drop),
        filter.insert_all(items).await.map(drop),
        filter.estimated_count().await.map(drop),
        filter.clear().await,
    ]
}

pub(crate) async fn another_configuration_is_an_error(store: &Store, name: &str) {
    let base = BloomFilter::builder()
        .bits(10_007)
        .hashes(5)
        .keys(3)
        .remember_for(3600 * SECOND);
    let others = [
        base.bits(10_010),
        base.hashes(6),
        base.keys(1),
        base.keys(2),
        base.keys(4),
        base.remember_for(3601 * SECOND),
        BloomFilter::builder().bits(10_007).hashes(5).keys(3),
        BloomFilter::builder()
            .capacity(100)
            .false_positive_rate(0.1),
    ];
    let items: Vec<_> = (0..100).map(|item| format!("item {item}")).collect();
    for (position, other) in others.into_iter().enumerate() {
        let name = format!("{name}.{position}");
        let stored = base.build(store, &name).unwrap();
        stored.insert_all(&items).await.unwrap();
        let other = other.build(store, &name).unwrap();
        let asked = format!("{} hashes, ", other.size().hashes);
        for two in items[..20].windows(2) {
            for outcome in calls(&other, [&two[0], &two[1]]).await {
                let error = outcome.unwrap_err();
                assert!(error.is_invalid() && !error.is_unavailable(), "{error}");
                let text = error.to_string();
                let named = [
                    "3336 bits in each of 3 keys, 5 hashes, remember_for 3600s",
                    &name,
                ];
                assert!(named.iter().all(|part| text.contains(part)), "{text}");
                assert!(
                    text.split_once("this process uses")
                        .unwrap()
                        .1
                        .contains(&asked),
                    "{text}"
                );
            }
        }
        // It is left as it was.
        assert!(!stored.contains_all(&items).await.unwrap().contains(&false));
        // And the other way round.
        stored.clear().await.unwrap();
        other.insert("x").await.unwrap();
        assert!(stored.contains_all(&items).await.unwrap_err().is_invalid());
        assert!(other.contains("x").await.unwrap());
    }
}

pub(crate) async fn items_are_counted_about(store: &Store, name: &str) {
    let usual = BloomFilter::builder()
        .capacity(5_000)
        .false_positive_rate(0.01);
    for (layout, builder) in [
        ("one", usual),
        ("spread", usual.keys(4)),
        ("forgets", usual.remember_for(3600 * SECOND)),
    ] {
        let filter = builder.build(store, &format!("{name}.{layout}")).unwrap();
        assert_eq!(filter.estimated_count().await.unwrap(), 0);
        filter
            .insert_all((0..5_000_u32).map(u32::to_le_bytes))
            .await
            .unwrap();
        filter
            .insert_all((0..5_000_u32).map(u32::to_le_bytes))
            .await
            .unwrap();
        let count = filter.estimated_count().await.unwrap();
        // An hour may be over just now, and then some count twice.
        let most = if layout == "forgets" { 10_200 } else { 5_100 };
        assert!((4_900..most).contains(&count), "{layout}: {count}");
    }
}
