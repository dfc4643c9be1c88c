//! How many leases of a key were held at once, and whether their fencing tokens rise.

use std::collections::BTreeMap;

use super::{Verdict, at, grouped};
use crate::message::{Held, Note};

type ByKey = BTreeMap<u64, Vec<Held>>;

pub(super) fn by_key(notes: &[Note]) -> ByKey {
    grouped(notes, |note| match note {
        Note::Held(held) => Some((held.key, *held)),
        _ => None,
    })
}

/// Checks that at most `cap` leases of a key were held at the same time. `one` and `many` name them.
pub(super) fn at_most(leases: &ByKey, cap: u64, [one, many]: [&str; 2]) -> Verdict {
    let Peak { count, key, time } = peak(leases, |_| 1);
    let holds = count <= cap;
    let mark = if holds { "kept" } else { "BROKEN" };
    let what = if cap == 1 { one } else { many };
    Verdict {
        holds,
        text: format!(
            "at most {cap} {what} at once {mark}: at most {count}, of key {key} at {}",
            at(time)
        ),
    }
}

/// Checks that no lease that is not shared was held together with another.
pub(super) fn writers_alone(leases: &ByKey) -> Verdict {
    // One writer weighs as much as all readers could, so a writer and anybody else exceed it.
    const WRITER: u64 = 1 << 32;
    let Peak { count, key, time } = peak(leases, |lease| if lease.shared { 1 } else { WRITER });
    let readers = peak(leases, |lease| u64::from(lease.shared)).count;
    let holds = count <= WRITER;
    let text = if holds {
        format!("writers alone kept: at most {readers} readers at once, and none beside a writer")
    } else {
        let (writers, beside) = (count / WRITER, count % WRITER);
        format!(
            "writers alone BROKEN: {writers} writers and {beside} readers of key {key} at {}",
            at(time)
        )
    };
    Verdict { holds, text }
}

/// Checks that the fencing tokens of leases that are not shared rise with time, for each key.
pub(super) fn fences_rise(leases: &ByKey) -> Verdict {
    let mut count = 0;
    for (key, leases) in leases {
        let mut alone: Vec<_> = leases.iter().filter(|lease| !lease.shared).collect();
        // Leases that were held for less than a microsecond can begin at the same time.
        alone.sort_unstable_by_key(|lease| (lease.from, lease.fence));
        count += alone.len();
        let falls = alone.windows(2).find(|pair| pair[1].fence <= pair[0].fence);
        if let Some([earlier, later]) = falls {
            let text = format!(
                "rising fencing tokens BROKEN: key {key} had {} at {} and {} at {}",
                earlier.fence,
                at(earlier.from),
                later.fence,
                at(later.from)
            );
            return Verdict { holds: false, text };
        }
    }
    Verdict {
        holds: true,
        text: format!("rising fencing tokens kept: {count} tokens"),
    }
}

/// The most that was held at the same time.
#[derive(Default)]
struct Peak {
    count: u64,
    key: u64,
    time: u64,
}

fn peak(leases: &ByKey, weight: impl Fn(&Held) -> u64) -> Peak {
    let mut most = Peak::default();
    for (&key, leases) in leases {
        // An end comes before a beginning at the same time.
        let mut changes: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * leases.len());
        for lease in leases.iter().filter(|lease| lease.from < lease.to) {
            changes.push((lease.from, true, weight(lease)));
            changes.push((lease.to, false, weight(lease)));
        }
        changes.sort_unstable();
        let mut count = 0;
        for (time, begins, weight) in changes {
            if begins {
                count += weight;
            } else {
                count -= weight;
            }
            if count > most.count {
                most = Peak { count, key, time };
            }
        }
    }
    most
}
