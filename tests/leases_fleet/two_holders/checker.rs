//! What the records prove.

use std::collections::{HashMap, HashSet};

use super::records::{Book, Hold};

/// A write to a resource that checks fences, in the order in which it saw them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) hold: String,
    /// Whether the visitor knew before that its lease was over.
    pub(super) late: bool,
    pub(super) accepted: bool,
}

impl Visit {
    /// Reads `HOLD late|timely 1|0`.
    pub(super) fn parse(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [hold, late, accepted] = words[..] else { panic!("{text}") };
        Self { hold: hold.to_owned(), late: late == "late", accepted: accepted == "1" }
    }
}

/// Pairs of holds of one resource that two believed in at once.
pub(super) fn overlaps(holds: &[Hold]) -> Vec<(&Hold, &Hold)> {
    // What was over before it was known was never believed in.
    let mut holds: Vec<_> = holds.iter().filter(|hold| hold.from < hold.until).collect();
    holds.sort_by_key(|hold| (&hold.resource, hold.from));
    let mut overlaps = Vec::new();
    let mut last: Option<&Hold> = None;
    for hold in holds {
        let before = last.filter(|last| last.resource == hold.resource);
        overlaps.extend(before.filter(|before| hold.from < before.until).map(|before| (before, hold)));
        if before.is_none_or(|before| before.until < hold.until) {
            last = Some(hold);
        }
    }
    overlaps
}

/// Visits that were accepted though a newer holder's had been before.
pub(super) fn stale<'a>(holds: &[Hold], visits: &'a [Visit]) -> Vec<&'a Visit> {
    // Where holds do not overlap, the order of their beginnings is that of their grants.
    let believed: HashMap<_, _> =
        holds.iter().filter(|hold| hold.from < hold.until).map(|hold| (hold.name.as_str(), hold)).collect();
    let mut newest: HashMap<&str, u64> = HashMap::new();
    let mut stale = Vec::new();
    for visit in visits.iter().filter(|visit| visit.accepted) {
        let Some(hold) = believed.get(visit.hold.as_str()) else { continue };
        let newest = newest.entry(&hold.resource).or_default();
        if hold.from < *newest {
            stale.push(visit);
        }
        *newest = hold.from.max(*newest);
    }
    stale
}

/// Holds that were visited and that nobody has told of: the records are not whole.
pub(super) fn untold<'a>(holds: &[Hold], visits: &'a [Visit]) -> Vec<&'a Visit> {
    let told: HashSet<_> = holds.iter().map(|hold| hold.name.as_str()).collect();
    visits.iter().filter(|visit| !told.contains(visit.hold.as_str())).collect()
}

fn book(lines: &[&str]) -> Book {
    let mut book = Book::default();
    for line in lines {
        book.read(line);
    }
    book
}

#[test]
fn one_after_the_other_is_no_overlap() {
    let book = book(&[
        "grant a k 10 50",
        "end a 20",
        "grant b k 20 60",
        "until b 90",
        "end b 70",
        "grant c other 15 80",
        "end c 80",
    ]);
    assert_eq!(book.holds().len(), 3);
    assert_eq!(overlaps(book.holds()), []);
}

#[test]
fn two_at_once_are_an_overlap() {
    let book = book(&["grant a k 10 50", "grant b k 20 60", "end b 25", "end a 21"]);
    let names: Vec<_> = overlaps(book.holds()).iter().map(|(a, b)| (&*a.name, &*b.name)).collect();
    assert_eq!(names, [("a", "b")]);
}

#[test]
fn one_that_was_held_all_along_overlaps_with_each() {
    let book =
        book(&["grant a k 10 90", "grant b k 20 60", "end b 25", "grant c k 30 60", "end c 35", "end a 80"]);
    assert_eq!(overlaps(book.holds()).len(), 2);
}

#[test]
fn a_lease_ends_for_a_killed_holder_with_its_time_or_its_life() {
    let mut killed = book(&["grant a k 10 50", "grant b other 10 20", "until b 90"]);
    killed.killed(30);
    let mut holds = killed.holds().to_vec();
    holds
        .extend_from_slice(book(&["grant c k 30 80", "end c 40", "grant d other 30 80", "end d 40"]).holds());
    assert_eq!(overlaps(&holds), []);
    holds.extend_from_slice(book(&["grant e k 29 80", "end e 30"]).holds());
    assert_eq!(overlaps(&holds).len(), 1);
}

#[test]
fn what_is_over_before_it_is_known_is_no_hold() {
    let book = book(&["grant a k 10 50", "end a 40", "grant b k 30 20", "end b 20"]);
    assert_eq!(overlaps(book.holds()), []);
}

#[test]
fn a_visit_after_a_newer_holders_is_to_be_refused() {
    let book = book(&["grant a k 10 20", "end a 20", "grant b k 30 40", "end b 40"]);
    let visits = |list: &[&str]| list.iter().map(|visit| Visit::parse(visit)).collect::<Vec<_>>();
    let fine = visits(&["a timely 1", "a late 1", "b timely 1", "a late 0", "b late 1"]);
    assert_eq!(stale(book.holds(), &fine), [] as [&Visit; 0]);
    let wrong = visits(&["a timely 1", "b timely 1", "a late 1"]);
    assert_eq!(stale(book.holds(), &wrong), [&wrong[2]]);
    assert_eq!(untold(book.holds(), &visits(&["a timely 1", "x late 0"])).len(), 1);
}
