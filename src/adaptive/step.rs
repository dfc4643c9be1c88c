//! The limit of a key that adapts: the Rust counterpart of `lua/adapt.lua`.

use crate::store::operation::{
    Arguments, Cell, Fields, Garbled, Operation, Repeat, Script, function,
};

/// The rules of an adaptive limit, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether the limit follows the latency. Otherwise only overload lowers it.
    pub(super) follows: bool,
    pub(super) min: i64,
    pub(super) max: i64,
    /// The limit of a new key, and of a key after a pause.
    pub(super) start: i64,
    /// The length of a window, µs.
    pub(super) window: i64,
}

/// The measurements of a process since its last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(super) ok: i64,
    pub(super) overloads: i64,
    /// The sum of the latencies of the successes, µs.
    pub(super) latency: i64,
    /// The maximum number of permits in flight.
    pub(super) peak: i64,
    /// The time since the last report, µs.
    pub(super) span: i64,
}

/// Adds the measurements of a process to the window of a key, changes the limit when the window is over, and returns
/// the limit.
#[derive(Clone, Debug)]
pub(crate) struct Adapt {
    pub(super) rules: Rules,
    /// The limit to use if none is stored.
    pub(super) known: i64,
    pub(super) seen: Seen,
}

/// The limit, and the measurements of the last windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(super) limit: i64,
    pub(super) in_flight: i64,
    /// µs.
    pub(super) mean: i64,
}

/// The stored state of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Adapted {
    /// The limit, in thousandths of a permit.
    pub(super) limit: i64,
    /// The latency without a queue, ns. 0: unknown.
    pub(super) base: i64,
    /// The number of windows under load since it was measured.
    age: i64,
    /// The step of the measurement: 0, [`FULL`], [`DRAIN`] or [`HALF`].
    probe: i64,
    /// When the window began, µs.
    since: i64,
    ok: i64,
    overloads: i64,
    latency: i64,
    /// Permits in flight · ms.
    busy: i64,
    /// Permits in flight, in thousandths. The mean of several windows: in a single one, some processes may report
    /// twice, and others not at all.
    in_flight: i64,
    /// The mean latency of the last window, µs.
    pub(super) mean: i64,
    /// The usual share of overloads, which does not depend on the load, in millionths.
    usual: i64,
    /// The share of overloads before the permits in flight were halved, in millionths.
    tried: i64,
    /// The number of windows for which `usual` still counts as measured.
    sure: i64,
    /// How much the limit was lowered recently; see [`CUT`].
    cuts: i64,
    /// When the last sample was reported, µs.
    sampled: i64,
    /// When the state expires, µs.
    end: i64,
}

/// The share of overloads is measured at the usual load. The limit does not change in these three steps.
const FULL: i64 = 1;
/// The permits in flight are halved, so that the queue drains.
const DRAIN: i64 = 2;
/// The latency and the share of overloads are measured at half of the load.
const HALF: i64 = 3;

/// How long a limit is kept after the last report, µs.
const KEPT: i64 = 3_600_000_000;

/// Without a sample for this time, ten windows, and twice the latency, a limit returns to its start value, µs.
const QUIET: i64 = 60_000_000;

/// The maximum latency, µs. Longer ones are cut to it.
pub(super) const LONGEST: i64 = 3_600_000_000;

/// The maximum of sums, so that all numbers are exact in Lua.
const MOST: i64 = 1_000_000_000_000_000;
const BUSIEST: i64 = 4_000_000_000_000;
const MOST_SAMPLES: i64 = 1_000_000_000;

/// The maximum number of permits in flight, in thousandths.
const MOST_IN_FLIGHT: i64 = 1_000_000_000;

/// The minimum number of samples in a window; the limit, if that is lower.
const FEW: i64 = 10;

/// The number of samples in a window that measures the share of overloads, or its maximum length as a multiple of a
/// window.
const MEASURED: i64 = 100;
const LONGER: i64 = 10;

/// The number of windows under load after which the latency without a queue is measured, and for which the share of
/// overloads counts as measured.
const PROBE_AFTER: i64 = 100;

/// The latency does not lower a limit much below this one, in thousandths: if the limit is twice its square root, it is
/// 4.
const LOW: i64 = 8000;

/// The share of all requests.
const ALL: i64 = 1_000_000;
/// The share that fails at any time in a large fleet: 1 %.
const FREE: i64 = 10_000;

/// A usual share above this one is measured repeatedly: it may be overload that was classified as usual by chance.
const MANY: i64 = 100_000;

/// From this share on, all failures are overload.
const NEARLY_ALL: i64 = 750_000;

/// A reduction adds [`CUT`], and each window subtracts 2. The share of overloads is measured again at [`TOO_MANY`]:
/// after three reductions in a row.
const CUT: i64 = 6;
const TOO_MANY: i64 = 14;

/// Returns the standard deviation of a share of `samples`, times the square root of `factor`.
fn noise(share: i64, samples: i64, factor: i64) -> i64 {
    (factor * share * (ALL - share) / samples).isqrt()
}

impl Adapted {
    /// Parses the stored text. `None` for text in another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_known = text
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_digit());
        let words = text.split(' ').filter(|word| !word.is_empty());
        let numbers = words.map(|word| word.parse().unwrap_or(i64::MAX).min(1 << 52));
        let numbers: [i64; 16] = numbers.take(17).collect::<Vec<_>>().try_into().ok()?;
        let [
            limit,
            base,
            age,
            probe,
            since,
            ok,
            overloads,
            latency,
            busy,
            in_flight,
            mean,
            ..,
        ] = numbers;
        let [.., usual, tried, sure, cuts, sampled] = numbers;
        let this = Self {
            limit,
            base,
            age,
            probe,
            since,
            ok,
            overloads,
            latency,
            busy,
            in_flight,
            mean,
            usual,
            tried,
            sure,
            cuts,
            sampled,
            end: i64::MAX,
        };
        is_known.then_some(this)
    }

    /// Limits values that may have been forged, or written under other rules, to their range.
    fn bound(&mut self, rules: &Rules, now: i64) {
        self.limit = rules.bound(self.limit);
        (self.base, self.age) = (self.base.min(LONGEST * 1000), self.age.min(1000));
        // The clock may have been set back.
        (self.since, self.sampled) = (self.since.min(now), self.sampled.min(now));
        self.probe %= HALF + 1;
        self.busy = self.busy.min(BUSIEST);
        (self.in_flight, self.mean) = (self.in_flight.min(MOST_IN_FLIGHT), self.mean.min(LONGEST));
        (self.usual, self.tried) = (self.usual.min(ALL / 2), self.tried.min(ALL));
        (self.sure, self.cuts) = (self.sure.min(PROBE_AFTER), self.cuts.min(1000));
    }

    /// Returns to the start value after a pause without samples. The cause of reductions is over, and earlier increases
    /// are out of date. The latency without a queue and the usual share of overloads are kept, since they are
    /// properties of the service.
    fn rest(&mut self, seen: &Seen, rules: &Rules, now: i64) {
        let mean = self.mean.max((seen.latency / seen.ok.max(1)).min(LONGEST));
        if now - self.sampled > QUIET.max(rules.window * 10).max(mean * 2) {
            let Self {
                base,
                mean,
                usual,
                sampled,
                end,
                ..
            } = *self;
            let limit = rules.bound(rules.start * 1000);
            *self = Self {
                limit,
                base,
                mean,
                usual,
                sampled,
                end,
                since: now,
                ..Self::default()
            };
        }
    }

    fn add(&mut self, seen: &Seen, rules: &Rules, now: i64) {
        let lasts = now - self.since;
        if seen.ok + seen.overloads > 0 {
            self.sampled = now;
        }
        self.ok = (self.ok + seen.ok).min(MOST_SAMPLES);
        self.overloads = (self.overloads + seen.overloads).min(MOST_SAMPLES);
        self.latency = (self.latency + seen.latency).min(MOST);
        // Permits in flight before the window began count for the length of a window.
        let busy = seen.peak * seen.span.min(lasts.max(rules.window)) / 1000;
        self.busy = (self.busy + busy).min(BUSIEST);
        let mean = if self.ok > 0 {
            (self.latency / self.ok).min(LONGEST)
        } else {
            0
        };
        if self.is_over(lasts, rules.window.max((mean * 2).min(rules.window * 10))) {
            if self.probe < DRAIN {
                let in_flight = self.busy * 1000 / (lasts / 1000).max(1);
                self.in_flight = ((self.in_flight * 3 + in_flight) / 4).min(MOST_IN_FLIGHT);
            }
            self.mean = mean;
            self.adjust(rules);
            self.limit = rules.bound(self.limit);
            (self.since, self.ok, self.overloads, self.latency, self.busy) = (now, 0, 0, 0, 0);
        }
    }

    /// Returns whether the window is over. A limit shows its effect only after the latency, so `shortest` depends on
    /// it.
    fn is_over(&self, lasts: i64, shortest: i64) -> bool {
        let samples = self.ok + self.overloads;
        let measures = self.probe == FULL || self.probe == HALF && self.tried > FREE;
        lasts >= shortest
            && samples >= FEW.min((self.limit / 1000).max(1))
            && (!measures || samples >= MEASURED || lasts >= shortest * LONGER)
    }

    /// Adjusts the limit at the end of a window.
    ///
    /// * Overload lowers it by a tenth: the `AIMDLimit` of Netflix's concurrency-limits, after D. Chiu and R. Jain,
    ///   "Analysis of the Increase and Decrease Algorithms", 1989.
    /// * Overload is a share of failures that depends on the load. As in M. Dong et al., "PCC: Re-architecting
    ///   Congestion Control for Consistent High Performance", NSDI 2015, failures do not prove congestion: an
    ///   experiment finds out whether they depend on the load. See [`learn`](Self::learn). Only a share that exceeds
    ///   the usual one, which the experiment measured, by more than four standard deviations lowers the limit.
    /// * Latency changes it as in `Gradient2Limit` of the same library: the limit times latency without a queue ÷
    ///   latency, within 0.5 and 1, plus a queue of the square root of the limit (as in `GradientLimit`), smoothed by
    ///   0.2. A latency of up to 10 % more counts as noise.
    /// * `Gradient2Limit` uses a long mean as the latency without a queue. Under lasting load that mean becomes the
    ///   latency with a queue, and the limit grows without bound. So it is measured here: with half of the limit for
    ///   two windows, as BBR drains the queue to measure a round trip (N. Cardwell et al., "BBR: Congestion-Based
    ///   Congestion Control", 2016), or while less than half of the limit is in use. If the latency stays at twice the
    ///   measured one or more although the limit has become low because of it, it is measured again soon: such a
    ///   latency is not due to a queue.
    /// * A limit of which less than half is in use does not grow.
    fn adjust(&mut self, rules: &Rules) {
        let samples = self.ok + self.overloads;
        let share = self.overloads * ALL / samples;
        let usual = self.usual.max(FREE);
        let is_certain = share >= NEARLY_ALL;
        let is_overload = is_certain || share > usual + noise(usual, samples, 16);
        let is_open = !is_certain && (self.sure == 0 || self.cuts >= TOO_MANY);
        (self.sure, self.cuts) = ((self.sure - 1).max(0), (self.cuts - 2).max(0));
        if is_certain {
            // All failures are overload, so nothing needs to be measured.
            self.probe = 0;
        }
        match self.probe {
            FULL => (self.probe, self.tried) = (DRAIN, share),
            DRAIN => self.probe = HALF,
            HALF => self.learn(share, samples, rules),
            _ if is_open && (is_overload || self.usual > MANY) => self.probe = FULL,
            _ if is_overload => {
                self.limit = self.limit * 9 / 10;
                self.cuts += CUT;
            }
            _ => {
                if share + noise(self.usual, samples, 1) < self.usual {
                    self.usual -= (self.usual - share) / 16;
                }
                self.grow(share, rules);
            }
        }
    }

    /// Adjusts the limit after a window without overload.
    fn grow(&mut self, share: i64, rules: &Rules) {
        let (is_used, short) = (self.in_flight * 2 >= self.limit, (self.mean * 1000).max(1));
        if !rules.follows {
            self.limit += if is_used { 1000 } else { 0 };
        } else if self.base == 0 {
            self.base = short;
        } else if !is_used {
            self.base = (self.base * 9 + short) / 10;
        } else {
            let gradient = (self.base * 1100 / short).clamp(500, 1000);
            let target = self.limit * gradient / 1000 + (self.limit * 1000).isqrt();
            self.limit = (self.limit * 8 + target * 2) / 10;
            let is_low = gradient == 500 && self.limit <= LOW.max(rules.min * 1000);
            self.age += if is_low { 10 } else { 1 };
            if self.age >= PROBE_AFTER {
                (self.probe, self.tried) = (DRAIN, share);
            }
        }
    }

    /// Uses the measurements at half of the load: the latency without a queue, and the share of failures.
    ///
    /// * If the share is as high as before, it does not depend on the load, and becomes the usual share, which is at
    ///   most a half. It counts as high as before unless it is lower by more than chance explains, or by more than half
    ///   of the decrease that is expected if all failures depend on the load.
    /// * If the share is lower, the limit is lowered. The remaining failures may depend on the load as well, so they do
    ///   not raise the usual share.
    /// * If half of the load has three quarters of the successes or more, half of the load is still too much: the limit
    ///   is halved, and the usual share is unknown again.
    fn learn(&mut self, share: i64, samples: i64, rules: &Rules) {
        if rules.follows {
            let short = (self.mean * 1000).max(1);
            self.base = if self.base == 0 {
                short
            } else {
                (self.base + short) / 2
            };
        }
        let all_depend = self.tried.min(ALL - self.tried);
        let margin = noise(self.tried, samples, 6).min((all_depend / 2).max(ALL / 10));
        (self.age, self.probe, self.sure, self.cuts) = (0, 0, PROBE_AFTER, 0);
        if share + margin >= self.tried {
            self.usual = ((share + self.tried) / 2).min(ALL / 2);
        } else if (ALL - share) * 2 >= (ALL - self.tried) * 3 {
            (self.usual, self.sure, self.limit) = (0, 0, self.limit / 2);
        } else {
            (self.usual, self.limit) = (self.usual.min(share), self.limit * 9 / 10);
        }
    }

    fn told(&self, rules: &Rules) -> Told {
        let used = if self.in_flight > 0 {
            self.limit.min(self.in_flight)
        } else {
            self.limit
        };
        let limit = if self.probe >= DRAIN {
            rules.min.max(used / 2000)
        } else {
            self.limit / 1000
        };
        Told {
            limit,
            in_flight: self.permits_in_flight(),
            mean: self.mean,
        }
    }

    pub(super) fn permits_in_flight(&self) -> i64 {
        (self.in_flight + 500) / 1000
    }
}

impl Rules {
    /// Returns a limit in thousandths, within the bounds.
    fn bound(&self, limit: i64) -> i64 {
        limit.min(self.max * 1000).max(self.min * 1000)
    }
}

impl Seen {
    fn is_something(&self) -> bool {
        self.ok + self.overloads + self.peak > 0
    }
}

impl Cell for Adapted {
    fn is_idle(&self, now: i64) -> bool {
        self.end <= now
    }
}

impl Operation for Adapt {
    type Cell = Adapted;
    type Reply = Told;
    type Undo = Self;
    const SCRIPT: Script = function!(Writes: "adapt"; &["adapt"]);
    const PARTS: &'static [&'static str] = &["permits:limit"];
    // A second copy would count its samples again. The next report compensates for a lost one.
    const REPEAT: Repeat = Repeat::Never;
    const MOST_RUNS: usize = 32;
    const SAME_ONCE: bool = false;

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        let Self {
            rules:
                Rules {
                    follows,
                    min,
                    max,
                    start,
                    window,
                },
            known,
            seen,
        } = self;
        let Seen {
            ok,
            overloads,
            latency,
            peak,
            span,
        } = seen;
        let rules = [i64::from(*follows), *min, *max, *known, *start, *window];
        for number in rules
            .into_iter()
            .chain([*ok, *overloads, *latency, *peak, *span])
        {
            call.integer(number);
        }
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Told, Garbled> {
        let (limit, in_flight, mean) = (fields.integer()?, fields.integer()?, fields.integer()?);
        Ok(Told {
            limit: limit.clamp(self.rules.min, self.rules.max),
            in_flight,
            mean,
        })
    }

    fn apply(self, cell: &mut Adapted, now: i64) -> Told {
        let Self { rules, known, seen } = self;
        let fresh = Adapted {
            limit: known * 1000,
            since: now,
            sampled: now,
            ..Adapted::default()
        };
        let mut state = if cell.is_idle(now) { fresh } else { *cell };
        state.bound(&rules, now);
        state.rest(&seen, &rules, now);
        if seen.is_something() {
            state.add(&seen, &rules, now);
            // Keys expire in whole milliseconds.
            state.end = (now + KEPT) / 1000 * 1000;
            *cell = state;
        }
        state.told(&rules)
    }
}
