//! The settings that may change while waiters for permits wait: the Rust counterpart of `lua/settings.lua`.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lease::order::{CLASSES, Order};
use crate::store::Store;
use crate::sync::lock;

/// The default of [`Rules::aging`]: how long waiters of lower ranks may be served before others, µs.
const USUAL_AGING: i64 = 10_000_000;

/// How long a limit counts after a caller last sent it, µs.
const FRESH: i64 = 30_000_000;

/// A limit that is sent again after this time is stored again, µs.
const AGAIN: i64 = 5_000_000;

/// The source of the limit of a key. The later variant has precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Adaptive = 1,
    Fleet = 2,
}

/// The limit of a key, in place of the limits of the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyLimit {
    pub(crate) source: Source,
    /// Of two limits from one source the higher version counts; of equal versions, the one that was sent last.
    pub(crate) version: i64,
    /// `None`: the setting was undone.
    pub(crate) limit: Option<i64>,
}

/// The settings of a WaitGroup that apply to all waiters of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// When the WaitGroup was built, µs. The rules with the highest version count.
    pub(crate) version: i64,
    /// For how long waiters of lower ranks may be served before others, µs; 0: the default, and ranks are not used.
    pub(crate) aging: i64,
    /// After a rank has had waiters without a flow for this time, the newest of these is served first, µs; 0: never.
    pub(crate) newest: i64,
    /// How many permits each rank leaves to the ranks before it.
    pub(crate) reserved: [i64; CLASSES as usize],
}

/// The settings that a caller sends to the state of a key.
#[derive(Clone, Debug)]
pub(crate) struct CallerSettings {
    pub(crate) limit: Option<KeyLimit>,
    pub(crate) rules: Arc<Rules>,
}

/// The settings in the state of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The limit, and when it was sent last, µs.
    limit: Option<(KeyLimit, i64)>,
    rules: Option<Rules>,
}

impl Settings {
    pub(super) fn take_over(&mut self, told: &CallerSettings, now: i64) {
        self.hear(told.limit, now);
        let version = told.rules.version.min(now);
        if self
            .rules
            .as_ref()
            .is_none_or(|known| known.version > now || known.version < version)
        {
            self.rules = Some(Rules {
                version,
                ..(*told.rules).clone()
            });
        }
    }

    pub(super) fn hear(&mut self, limit: Option<KeyLimit>, now: i64) {
        let Some(told) = limit else { return };
        let is_newer = match self.known(now) {
            None => true,
            Some((known, at)) => {
                let is_newer = match known.source.cmp(&told.source) {
                    std::cmp::Ordering::Equal => told.version >= known.version,
                    // A limit that was undone does not replace the limit of a source with lower precedence.
                    std::cmp::Ordering::Less => told.limit.is_some(),
                    std::cmp::Ordering::Greater => known.limit.is_none(),
                };
                is_newer && !(told == known && at + AGAIN > now)
            }
        };
        if is_newer {
            self.limit = Some((told, now));
        }
    }

    /// Returns the limit, unless it is out of date, or from before the clock was set back.
    fn known(&self, now: i64) -> Option<(KeyLimit, i64)> {
        self.limit.filter(|(_, at)| *at <= now && at + FRESH > now)
    }

    /// Returns for how long waiters of lower ranks may be served before others, and whether ranks are used.
    pub(super) fn aging(&self) -> (i64, bool) {
        match self.rules.as_ref().map_or(0, |rules| rules.aging) {
            0 => (USUAL_AGING, false),
            aging => (aging, true),
        }
    }

    pub(super) fn newest(&self) -> i64 {
        self.rules.as_ref().map_or(0, |rules| rules.newest)
    }

    /// Returns the limit for a token of this rank, whose own limit is `limit`. It is 0 only if the whole limit is 0.
    pub(crate) fn limit_for(&self, order: &Order, rank: i64, limit: i64, now: i64) -> i64 {
        let own = limit.saturating_add(order.reserve);
        let told = self.known(now).and_then(|(known, _)| known.limit);
        let most = match (told, order.bound) {
            (Some(told), Some(bound)) => told.min(bound),
            (Some(told), None) => told,
            (None, _) => own,
        };
        let of_rank = |rules: &Rules| {
            usize::try_from(rank)
                .ok()
                .and_then(|rank| rules.reserved.get(rank).copied())
        };
        let reserved = self
            .rules
            .as_ref()
            .map_or(Some(order.reserve), of_rank)
            .unwrap_or(0);
        if most == 0 {
            0
        } else {
            most.saturating_sub(reserved).max(1)
        }
    }
}

/// The limit that the fleet has set for the keys of a name, as far as this process knows.
#[derive(Default)]
pub(crate) struct FleetSet {
    is_set: AtomicBool,
    limit: Mutex<Option<KeyLimit>>,
    watchers: Mutex<Vec<Weak<dyn Watcher>>>,
}

/// A namespace with waiters that a change of the limit affects.
pub(crate) trait Watcher: Send + Sync {
    fn limit_changed(self: Arc<Self>);
}

impl FleetSet {
    /// Returns the set of a name.
    pub(crate) fn of(store: &Store, name: &str) -> Arc<Self> {
        store.shared(name, Arc::default)
    }

    pub(crate) fn known(&self) -> Option<KeyLimit> {
        if self.is_set.load(Ordering::Relaxed) {
            *lock(&self.limit)
        } else {
            None
        }
    }

    /// `version`: 0 if this process no longer follows the setting.
    pub(crate) fn set(&self, version: i64, limit: Option<i64>) {
        let known = KeyLimit {
            source: Source::Fleet,
            version,
            limit,
        };
        *lock(&self.limit) = Some(known).filter(|_| version > 0);
        self.is_set.store(true, Ordering::Relaxed);
        let watchers: Vec<_> = {
            let mut watchers = lock(&self.watchers);
            watchers.retain(|watcher| watcher.strong_count() > 0);
            watchers.iter().filter_map(Weak::upgrade).collect()
        };
        watchers.into_iter().for_each(Watcher::limit_changed);
    }

    pub(super) fn watch(&self, watcher: Weak<dyn Watcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(watcher);
    }
}

debug!(FleetSet, limit);

impl KeyLimit {
    /// The argument for `lua/settings.lua`.
    pub(crate) fn text(self) -> String {
        let Self {
            source,
            version,
            limit,
        } = self;
        let limit = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        format!("{} {version} {limit}", source as u8)
    }
}

impl CallerSettings {
    /// The argument for `lua/settings.lua`.
    pub(crate) fn text(&self) -> String {
        let Rules {
            version,
            aging,
            newest,
            reserved,
        } = &*self.rules;
        let mut text = self.limit.map(KeyLimit::text).unwrap_or_default();
        let used = reserved
            .iter()
            .rposition(|permits| *permits > 0)
            .map_or(0, |last| last + 1);
        // Writing to a `String` does not fail.
        let _ = write!(text, "|{version} {aging} {newest}");
        for permits in &reserved[..used] {
            let _ = write!(text, " {permits}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn limit(source: Source, version: i64, limit: i64) -> Option<KeyLimit> {
        Some(KeyLimit {
            source,
            version,
            limit: Some(limit),
        })
    }

    fn for_all(settings: &Settings, now: i64) -> i64 {
        settings.limit_for(&Order::ARRIVAL, 7, 9, now)
    }

    #[test]
    fn the_setting_of_the_fleet_counts_before_the_adaptive_one_and_both_before_that_of_the_caller()
    {
        let mut settings = Settings::default();
        assert_eq!(for_all(&settings, 0), 9);
        for (told, counts) in [
            (limit(Source::Adaptive, 0, 5), 5),
            (limit(Source::Adaptive, 0, 6), 6),
            (None, 6),
            (limit(Source::Fleet, 2, 20), 20),
            (limit(Source::Adaptive, 0, 4), 20),
            (limit(Source::Fleet, 1, 3), 20),
            (limit(Source::Fleet, 3, 2), 2),
            (
                Some(KeyLimit {
                    source: Source::Fleet,
                    version: 4,
                    limit: None,
                }),
                9,
            ),
            (limit(Source::Fleet, 3, 2), 9),
            // A limit that was undone makes way for the adaptive limit.
            (limit(Source::Adaptive, 0, 4), 4),
            (
                Some(KeyLimit {
                    source: Source::Fleet,
                    version: 4,
                    limit: None,
                }),
                4,
            ),
            (limit(Source::Fleet, 5, 8), 8),
        ] {
            settings.hear(told, SECOND);
            assert_eq!(for_all(&settings, SECOND), counts, "{told:?}");
        }
    }

    #[test]
    fn a_limit_that_nobody_tells_any_more_is_forgotten() {
        let mut settings = Settings::default();
        settings.hear(limit(Source::Fleet, 1, 3), SECOND);
        assert_eq!(
            [31, 30, 1, 0].map(|at| for_all(&settings, at * SECOND)),
            [9, 3, 3, 9]
        );
        settings.hear(limit(Source::Fleet, 1, 3), 20 * SECOND);
        assert_eq!([31, 50].map(|at| for_all(&settings, at * SECOND)), [3, 9]);
        settings.hear(limit(Source::Adaptive, 0, 4), 50 * SECOND);
        assert_eq!(for_all(&settings, 50 * SECOND), 4);
    }

    #[test]
    fn the_settings_of_the_last_one_that_was_built_count() {
        let rules = |version, aging| CallerSettings {
            limit: None,
            rules: Rules {
                version,
                aging,
                ..Rules::default()
            }
            .into(),
        };
        let mut settings = Settings::default();
        assert_eq!(settings.aging(), (USUAL_AGING, false));
        for (version, aging, counts) in [
            (5, 7, 7),
            (4, 6, 7),
            (5, 8, 7),
            (9, 3, 3),
            (10, 0, USUAL_AGING),
        ] {
            settings.take_over(&rules(version, aging), 100);
            assert_eq!(settings.aging().0, counts, "{version}");
        }
        // The clock is ahead of the store's clock, or was.
        settings.take_over(&rules(999, 7), 100);
        settings.take_over(&rules(101, 2), 101);
        assert_eq!(settings.aging(), (2, true));
        settings.take_over(&rules(1, 4), 50);
        assert_eq!(settings.aging(), (4, true));
    }
}
