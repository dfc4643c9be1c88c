//! What a process tells of its holds, line by line, before it acts on it.
//!
//! A line is written to the pipe before the process goes on, so a kill loses none that matters:
//! `grant HOLD RESOURCE FROM UNTIL` the lease was got at `FROM`, and is valid until `UNTIL` as the holder knows it;
//! `until HOLD UNTIL` a renewal has moved that;
//! `late HOLD` the holder is about to visit the resource though it knows that its lease is over;
//! `refused HOLD` a visit was refused though the lease was still held after it;
//! `end HOLD AT` the holder believed in its lease until `AT`: told before the lease is given back;
//! `cancelled` a wait was given up, and its future dropped;
//! `failed ERROR` no lease, for another reason.
//!
//! Times are nanoseconds of [`Clock`](super::clock::Clock).

use std::collections::HashMap;

/// For how long somebody believed to hold a resource alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) name: String,
    pub(super) resource: String,
    pub(super) from: u64,
    pub(super) until: u64,
}

/// What one process after another has told.
#[derive(Debug, Default)]
pub(super) struct Book {
    open: HashMap<String, Hold>,
    ended: Vec<Hold>,
    pub(super) cancelled: usize,
    pub(super) late: usize,
    pub(super) refused: Vec<String>,
    pub(super) failed: Vec<String>,
}

impl Book {
    /// Reads a line; whether it tells of a new hold.
    pub(super) fn read(&mut self, line: &str) -> bool {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[..] {
            ["grant", name, resource, ..] => {
                let (name, resource) = (name.to_owned(), resource.to_owned());
                let hold = Hold { name: name.clone(), resource, from: number(3), until: number(4) };
                assert_eq!(self.open.insert(name, hold), None, "two holds of one name: {line}");
                return true;
            }
            ["until", name, _] => self.open.get_mut(name).unwrap().until = number(2),
            ["end", name, _] => {
                let hold = self.open.remove(name).unwrap();
                self.ended.push(Hold { until: number(2), ..hold });
            }
            ["late", _] => self.late += 1,
            ["refused", name] => self.refused.push(name.to_owned()),
            ["cancelled"] => self.cancelled += 1,
            ["failed", ..] => self.failed.push(line.to_owned()),
            _ => panic!("{line}"),
        }
        false
    }

    /// All its lines are read, and it was alive no longer than until `at`.
    pub(super) fn killed(&mut self, at: u64) {
        self.ended.extend(self.open.drain().map(|(_, hold)| Hold { until: hold.until.min(at), ..hold }));
    }

    /// All holds that are over.
    pub(super) fn holds(&self) -> &[Hold] {
        &self.ended
    }
}
