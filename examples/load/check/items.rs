//! Whether an item passed twice, and how many new items were taken for duplicates.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use crate::args::Dedupe;
use crate::message::Note;
use crate::totals::Totals;

pub(super) fn check(dedupe: &Dedupe, totals: &Totals) -> Vec<Verdict> {
    let (mut passed, mut reported, mut unknown) = (
        BTreeMap::<u64, u64>::new(),
        BTreeSet::new(),
        BTreeSet::new(),
    );
    for note in &totals.notes {
        match *note {
            Note::Passed(item) => *passed.entry(item).or_default() += 1,
            Note::Duplicate(item) => drop(reported.insert(item)),
            Note::Unknown(item) => drop(unknown.insert(item)),
            Note::Admitted { .. } | Note::Held(_) => {}
        }
    }
    // Whether these passed is not known.
    let twice = passed
        .iter()
        .find(|(item, times)| **times > 1 && !unknown.contains(*item));
    let once = match twice {
        Some((item, times)) => Verdict {
            holds: false,
            text: format!("no item passes twice BROKEN: item {item} passed {times} times"),
        },
        None => Verdict {
            holds: true,
            text: format!("no item passes twice kept: {} items passed", passed.len()),
        },
    };
    if !totals.is_complete() {
        let text = "false positives: not counted, since a process died and its items are not known"
            .to_owned();
        return vec![once, Verdict { holds: true, text }];
    }
    let lost = reported
        .iter()
        .filter(|item| !passed.contains_key(*item) && !unknown.contains(*item))
        .count();
    let items = passed.len() + lost;
    let false_positives = if dedupe.exact {
        let mark = if lost == 0 { "kept" } else { "BROKEN" };
        Verdict {
            holds: lost == 0,
            text: format!("no false positives {mark}: {lost} of {items} items"),
        }
    } else {
        let full = if items as u64 > dedupe.capacity {
            "; above its capacity a filter has more"
        } else {
            ""
        };
        let text = format!(
            "false positives: {lost} of {items} new items were taken for duplicates (rate {} at the capacity of \
             {}{full})",
            dedupe.false_positive_rate, dedupe.capacity
        );
        Verdict { holds: true, text }
    };
    vec![once, false_positives]
}
