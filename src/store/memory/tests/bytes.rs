//! The bound on bytes.

use super::*;

/// Bytes that are kept until a time.
#[derive(Clone, Debug, Default)]
struct Large(Vec<u8>, i64);

impl Cell for Large {
    fn is_idle(&self, now: i64) -> bool {
        self.1 <= now
    }

    fn heap_bytes(&self) -> usize {
        self.0.capacity()
    }
}

fn bounded(max_bytes: usize) -> (InMemory, Arc<AtomicI64>) {
    let time = Arc::new(AtomicI64::new(0));
    (
        InMemory::new(
            Clock::Manual(time.clone()),
            Bounds {
                max_bytes,
                ..Bounds::NONE
            },
        ),
        time,
    )
}

fn keep(
    cells: &Cells<Large>,
    key: &str,
    bytes: usize,
    until: i64,
) -> Result<(), crate::error::Error> {
    cells.step_with(key.as_bytes(), bytes, |cell, _| {
        *cell = Large(vec![0; bytes], until)
    })
}

fn is_refused(kept: Result<(), crate::error::Error>) {
    let error = kept.unwrap_err();
    assert!(error.is_overloaded(), "{error:?}");
    let text =
        "store overloaded: its state in memory would take more than 100000 bytes (max_bytes)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_full_store_takes_no_more_bytes() {
    let (store, time) = bounded(100_000);
    let cells = store.cells::<Large>("a");
    keep(&cells, "one", 60_000, 10).unwrap();
    is_refused(keep(&cells, "two", 60_000, 10));
    keep(&cells, "two", 30_000, 20).unwrap();
    is_refused(keep(&cells, "one", 95_000, 10));
    keep(&cells, "one", 60_000, 10).unwrap();
    cells
        .step(b"one", |cell, _| {
            assert_eq!(cell.0.len(), 60_000, "it is as before")
        })
        .unwrap();
    is_refused(keep(&cells, &"k".repeat(20_000), 0, 10));
    // Expired state is removed at once.
    keep(&cells, "one", 0, 0).unwrap();
    keep(&cells, "three", 60_000, 10).unwrap();
    time.store(2000, Ordering::Relaxed);
    keep(&cells, "four", 90_000, 5000).unwrap();
    // A search ends once there is room. The sweeper removes the rest.
    eventually("the others are not counted", || {
        store.shared.bound.cells() == 1
    });
}

#[test]
fn all_bytes_are_given_back() {
    let (store, time) = bounded(1 << 20);
    {
        let (cells, mut state) = (store.cells::<Large>("a"), 1_u64);
        for step in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let number = (state >> 33) as usize;
            time.store(step / 10, Ordering::Relaxed);
            let (bytes, until) = (number % 3000, step / 10 + (number % 200) as i64);
            let (one, other) = (number % 500, number % 499 + 500);
            match number % 4 {
                0 => drop(keep(&cells, &one.to_string().repeat(20), bytes, until)),
                1 => drop(cells.step(one.to_string().as_bytes(), |cell, _| cell.1 = 0)),
                2 => drop(cells.step(one.to_string().as_bytes(), |cell, _| cell.0.reserve(bytes))),
                _ => drop(
                    cells.step_all(&[one.to_string(), other.to_string()], |cells, _| {
                        cells
                            .iter_mut()
                            .for_each(|cell| *cell = Large(vec![0; bytes], until));
                    }),
                ),
            }
            // The sweeper uncounts the cells that it has removed a little later.
            eventually("as many bytes are counted as there are", || {
                let shards = cells.shards.iter().map(|shard| crate::sync::lock(shard));
                shards.map(|shard| shard.bytes()).sum::<usize>() == store.shared.bound.bytes()
            });
        }
    }
    time.store(1 << 40, Ordering::Relaxed);
    eventually("all has expired", || {
        store.shared.bound.cells() == 0 && store.shared.bound.bytes() == 0
    });
}
