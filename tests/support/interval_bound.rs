//! Whether admissions keep to a rate limit: in every interval of length `t` at most `burst + rate · t`.
//!
//! An admission happened between the start of its call and its answer. So an interval from the start of one call to
//! the answer of another contains all admissions whose calls lie within it. Admissions that lie within it only in
//! part are not counted: the check finds no breach where there is none.

/// A call that was admitted: its start and its answer, in µs on a clock that all processes share.
pub type Span = (u64, u64);

/// What is allowed, in whole numbers, so that nothing is rounded.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub burst: u64,
    /// Tokens that come back in `period_us`.
    pub tokens: u64,
    pub period_us: u64,
    /// Tolerance: each interval counts as this much longer,
    pub extra_us: u64,
    /// and by this many millionths of itself.
    pub drift_ppm: u64,
}

/// An interval from the start of one call to the answer of another, with the calls within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub from: u64,
    pub to: u64,
    pub admitted: u64,
}

const MILLION: i128 = 1_000_000;

impl Bound {
    /// Returns the interval in which most was admitted beyond what is allowed, or least below it.
    pub fn worst(&self, admissions: &[Span]) -> Option<Interval> {
        let mut by_end = admissions.to_vec();
        by_end.sort_unstable_by_key(|&(from, to)| (to, from));
        let mut by_start: Vec<usize> = (0..by_end.len()).collect();
        by_start.sort_unstable_by_key(|&place| std::cmp::Reverse(by_end[place].0));

        // One start after the other, the latest first: which end makes the worst interval with it?
        let mut tree = Tree::new(by_end.len());
        let mut worst: Option<(i128, u64, u64)> = None;
        for start in by_start {
            let (from, to) = by_end[start];
            tree.insert(start, -self.refilled(to), self.token());
            let (value, end) = tree.best();
            let excess = value + self.refilled(from);
            if worst.is_none_or(|(most, ..)| excess > most) {
                worst = Some((excess, from, by_end[end].1));
            }
        }
        let (_, from, to) = worst?;
        let admitted = admissions
            .iter()
            .filter(|span| span.0 >= from && span.1 <= to)
            .count() as u64;
        Some(Interval { from, to, admitted })
    }

    /// Whether an interval keeps to the bound.
    pub fn allows(&self, interval: Interval) -> bool {
        i128::from(interval.admitted) * self.token() <= self.most(interval)
    }

    /// Returns how many may be admitted in an interval, including the tolerance.
    pub fn allowed(&self, interval: Interval) -> f64 {
        self.most(interval) as f64 / self.token() as f64
    }

    fn most(&self, Interval { from, to, .. }: Interval) -> i128 {
        let extra = i128::from(self.tokens) * i128::from(self.extra_us) * MILLION;
        i128::from(self.burst) * self.token() + self.refilled(to) - self.refilled(from) + extra
    }

    /// One token, in the unit of all sums here.
    fn token(&self) -> i128 {
        i128::from(self.period_us) * MILLION
    }

    /// What comes back from time 0 to `at`.
    fn refilled(&self, at: u64) -> i128 {
        i128::from(self.tokens) * i128::from(at) * (MILLION + i128::from(self.drift_ppm))
    }
}

/// The sum of the tokens of the places inserted up to each place, plus the place's offset: finds the largest.
struct Tree {
    leaves: usize,
    nodes: Vec<Node>,
}

#[derive(Clone, Copy)]
struct Node {
    sum: i128,
    /// The largest value below this node, and its place.
    best: (i128, usize),
}

/// Below every value, and far enough from the smallest number for sums.
const NONE: Node = Node {
    sum: 0,
    best: (i128::MIN / 4, 0),
};

impl Tree {
    fn new(places: usize) -> Self {
        let leaves = places.next_power_of_two();
        Self {
            leaves,
            nodes: vec![NONE; 2 * leaves],
        }
    }

    fn insert(&mut self, place: usize, offset: i128, token: i128) {
        let mut node = self.leaves + place;
        self.nodes[node] = Node {
            sum: token,
            best: (token + offset, place),
        };
        while node > 1 {
            node /= 2;
            let [left, right] = [self.nodes[2 * node], self.nodes[2 * node + 1]];
            let beyond = (left.sum + right.best.0, right.best.1);
            let best = if beyond.0 > left.best.0 {
                beyond
            } else {
                left.best
            };
            self.nodes[node] = Node {
                sum: left.sum + right.sum,
                best,
            };
        }
    }

    fn best(&self) -> (i128, usize) {
        self.nodes[1].best
    }
}
