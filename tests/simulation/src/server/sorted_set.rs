//! A sorted set: by member, and by score and then member.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::reply::Bytes;

#[derive(Clone, Copy, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// An end of a range of scores.
#[derive(Clone, Copy)]
pub struct Bound {
    pub score: f64,
    pub is_open: bool,
}

impl Bound {
    pub fn open(score: f64) -> Self {
        Self {
            score,
            is_open: true,
        }
    }
}

#[derive(Clone, Default)]
pub struct SortedSet {
    scores: BTreeMap<Bytes, f64>,
    order: BTreeSet<(Score, Bytes)>,
}

impl SortedSet {
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Returns the score before.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        // There is one zero.
        let score = score + 0.0;
        let before = self.scores.insert(member.to_vec(), score);
        if let Some(before) = before {
            self.order.remove(&(Score(before), member.to_vec()));
        }
        self.order.insert((Score(score), member.to_vec()));
        before
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.scores.remove(member);
        if let Some(score) = removed {
            self.order.remove(&(Score(score), member.to_vec()));
        }
        removed.is_some()
    }

    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.order.range(..(Score(score), member.to_vec())).count())
    }

    /// All, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        self.order.iter().map(|(score, member)| (member, score.0))
    }

    /// Those between two scores, in order.
    pub fn between(
        &self,
        from: Bound,
        to: Bound,
    ) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        let fits = move |score: f64| {
            let is_edge = from.is_open && score == from.score || to.is_open && score == to.score;
            score >= from.score && score <= to.score && !is_edge
        };
        // A range must not end before it begins. No score is above that of the end, which has no greatest member.
        let first = (Score(from.score), vec![]);
        let end = match Score(from.score) > Score(to.score) {
            true => Excluded(first.clone()),
            false if to.score < f64::INFINITY => Excluded((Score(to.score.next_up()), vec![])),
            false => Unbounded,
        };
        let given = self
            .order
            .range((Included(first), end))
            .map(|(score, member)| (member, score.0));
        given.filter(move |(_, score)| fits(*score))
    }
}
