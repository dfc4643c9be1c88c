//! Calendar quotas, and holds in their windows, judged by the calendar of another library.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::time::{OffsetDateTime, UtcOffset};

use crate::bucket::quota::Quota;
use crate::tests::days::{DAY, HOUR, Skipping, World, days, in_both};
use crate::token_bucket::TokenBucket;
use crate::token_bucket::hold::Hold;

/// Minutes.
const OFFSET: i16 = 330;
const DAILY: u32 = 100;
const WEEKLY: u32 = 450;
const MONTHLY: u32 = 1200;
/// Holds end by themselves after this. Midnight is within it, after some hour's holds were authorized.
const TTL: Duration = Duration::from_secs(30 * 60);

fn quotas() -> [Quota; 3] {
    let quotas = [
        Quota::per_calendar_day(DAILY),
        Quota::per_calendar_week(WEEKLY).starting(7),
        Quota::per_calendar_month(MONTHLY),
    ];
    quotas.map(|quota| quota.at_offset(OFFSET))
}

/// The charged tokens of each window.
#[derive(Default)]
struct Ledger(BTreeMap<(u32, i32), u32>);

impl Ledger {
    /// The windows of a time: their tokens, and the first day.
    fn windows(at: Duration) -> [(u32, i32); 3] {
        let utc = OffsetDateTime::from_unix_timestamp(at.as_secs() as i64).unwrap();
        let date = utc
            .to_offset(UtcOffset::from_whole_seconds(60 * i32::from(OFFSET)).unwrap())
            .date();
        let day = date.to_julian_day();
        let sunday = day - i32::from(date.weekday().number_days_from_sunday());
        [
            (DAILY, day),
            (WEEKLY, sunday),
            (MONTHLY, day - i32::from(date.day())),
        ]
    }

    fn charge(&mut self, at: Duration, tokens: u32) {
        for window in Self::windows(at) {
            let used = self.0.entry(window).or_default();
            *used += tokens;
            assert!(*used <= window.0, "{used} of {window:?}");
        }
    }

    fn left(&self, at: Duration) -> u32 {
        let left = |window: (u32, i32)| window.0 - self.0.get(&window).unwrap_or(&0);
        Self::windows(at).map(left).into_iter().min().unwrap_or(0)
    }

    /// Whether all of a window of each length was used, as far as the run was long enough.
    fn assert_all_was_used(&self, run: Duration) {
        for (tokens, run_for) in [(DAILY, 2 * DAY), (WEEKLY, 14 * DAY), (MONTHLY, 62 * DAY)] {
            let used = self
                .0
                .iter()
                .any(|(window, used)| window.0 == tokens && *used == tokens);
            assert!(used || run < run_for, "{tokens}: {:?}", self.0);
        }
    }
}

impl World {
    /// Since 1970, by the clock of the store.
    fn now(&self) -> Duration {
        match &self.clock {
            Skipping::Redis { .. } => {
                SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + self.passed
            }
            Skipping::Memory(micros) => {
                Duration::from_micros(micros.load(Ordering::Relaxed) as u64)
            }
        }
    }

    /// Skips to ten minutes past an hour: no window begins while a step runs.
    fn align(&mut self) {
        let past = self.now().as_secs() % 3600;
        self.skip(Duration::from_secs((3600 + 600 - past) % 3600));
    }
}

/// Held tokens are charged when they are captured, or when the hold ends, in the windows of that time.
async fn holds(mut world: World) {
    let open = |ttl| move |bucket: &TokenBucket| bucket.with_hold_ttl(ttl).unwrap();
    let buckets = world.each(|store| TokenBucket::new(store, "budget", quotas()).unwrap());
    let (short, long): (Vec<_>, Vec<_>) = (
        buckets.iter().map(open(TTL)).collect(),
        buckets.iter().map(open(DAY)).collect(),
    );
    world.align();
    let mut ledger = Ledger::default();
    let mut held: Vec<(Hold, Duration)> = Vec::new();
    let mut round = 0;
    while world.passed < days() {
        for (number, (hold, authorized)) in held.drain(..).enumerate() {
            let (now, amount) = (world.now(), hold.held());
            match number % 4 {
                0 => {
                    let captured = hold.capture(amount).await.unwrap();
                    assert_eq!((captured.charged, captured.ended), (amount, false));
                    ledger.charge(now, amount);
                }
                1 => assert!(hold.release().await.unwrap()),
                2 => {
                    assert!(!hold.capture(amount / 2).await.unwrap().ended);
                    ledger.charge(now, amount / 2);
                }
                _ => {
                    assert!(hold.capture(amount).await.unwrap().ended);
                    ledger.charge(authorized + TTL, amount);
                }
            }
        }
        for bucket in &buckets {
            let state = bucket.peek("k").await.unwrap();
            assert_eq!(
                (state.remaining(), state.held()),
                (ledger.left(world.now()), 0),
                "{:?}",
                world.now()
            );
        }
        let mut left = ledger.left(world.now());
        for number in 0..8 {
            let amount = 1 + (3 * number + round) % 11;
            let of = if held.len() % 4 == 3 { &short } else { &long };
            match of[number as usize % of.len()].authorize("k", amount).await {
                Ok(hold) => {
                    assert!(amount <= left, "{amount} of {left}");
                    left -= amount;
                    held.push((hold, world.now()));
                }
                Err(refused) => {
                    assert!(
                        refused.is_refused() && amount > left,
                        "{amount} of {left}: {refused}"
                    )
                }
            }
        }
        round += 1;
        world.skip(HOUR);
    }
    ledger.assert_all_was_used(world.passed);
    world.skip(40 * DAY);
    drop(held);
    world.ends().await;
}

in_both! { holds }
