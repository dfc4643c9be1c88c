//! What the referee's notes of one room prove.
//!
//! A note is `time verb visit …`, the time in µs. Verbs:
//! `seen` (of interest to single tests);
//! `ask` the visit is asked for;
//! `enter` (with its weight and its fence) it begins;
//! `leave` it is over, before its lease is given back;
//! `late` its process was so late that the lease had run out when it was given back: it proves nothing;
//! `gone` its lease was gone before its time;
//! `kill` its process (the first part of a visit's name) is about to be killed, and is in no room from now on. It cannot
//! tell that it was late any more: so times to live must be longer than a process that is killed may stand still.

use std::collections::{HashMap, HashSet};

#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) at: i64,
    pub(crate) verb: String,
    pub(crate) visit: String,
    weight: u32,
    fence: u64,
}

impl Note {
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or("0");
        let (at, verb, visit) = (word().parse().unwrap(), word().to_owned(), word().to_owned());
        Self { at, verb, visit, weight: word().parse().unwrap(), fence: word().parse().unwrap() }
    }

    fn process(&self) -> &str {
        self.visit.split('.').next().unwrap_or_default()
    }
}

/// What a room has seen.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The visits in the order of their beginnings.
    pub(crate) entered: Vec<String>,
    /// How many visits came to their end.
    pub(crate) visits: usize,
    /// How many were in it at once at most.
    pub(crate) at_once: usize,
    pub(crate) kills: usize,
    /// How many visits prove nothing.
    pub(crate) late: usize,
    /// How many others entered at most between the asking and the beginning of a visit, by its weight.
    pub(crate) passed: HashMap<u32, usize>,
}

/// Goes through the notes; an error says what is wrong.
pub(crate) fn judge(notes: &[Note], limit: u32) -> Result<Verdict, String> {
    let late: HashSet<_> =
        notes.iter().filter(|note| note.verb == "late").map(|note| note.visit.as_str()).collect();
    let mut verdict = Verdict { late: late.len(), ..Verdict::default() };
    let mut inside: HashMap<&str, &Note> = HashMap::new();
    let mut asked: HashMap<&str, usize> = HashMap::new();
    let mut dead = HashSet::new();
    let mut fence = 0;
    for note in notes {
        let visit = note.visit.as_str();
        if late.contains(visit) || dead.contains(note.process()) {
            continue;
        }
        match note.verb.as_str() {
            "ask" => {
                asked.insert(visit, verdict.entered.len());
            }
            "enter" => {
                let used: u32 = inside.values().map(|other| other.weight).sum();
                if used + note.weight > limit {
                    return Err(format!("{note:?} entered beside {:?}", inside.values()));
                }
                // Who shares the room has the fence of who was alone before.
                let stale = match note.weight == limit {
                    true => note.fence > 0 && note.fence <= fence,
                    false => note.fence < fence,
                };
                if stale {
                    return Err(format!("{note:?} entered after one with fence {fence}"));
                }
                fence = fence.max(note.fence);
                verdict.at_once = verdict.at_once.max(inside.len() + 1);
                if let Some(before) = asked.remove(visit) {
                    let passed = verdict.passed.entry(note.weight).or_default();
                    *passed = verdict.entered.len().saturating_sub(before).max(*passed);
                }
                verdict.entered.push(note.visit.clone());
                inside.insert(visit, note);
            }
            "leave" => verdict.visits += usize::from(inside.remove(visit).is_some()),
            "kill" => {
                verdict.kills += 1;
                dead.insert(visit);
                inside.retain(|_, other| other.process() != visit);
            }
            "seen" => {}
            _ => return Err(format!("{note:?}")),
        }
    }
    Ok(verdict)
}

fn verdict(limit: u32, notes: &[&str]) -> Result<Verdict, String> {
    let notes: Vec<_> = notes.iter().map(|note| Note::parse(note)).collect();
    judge(&notes, limit)
}

#[test]
fn one_after_the_other_is_right() {
    let fine = ["1 enter a.0 1 7", "2 leave a.0", "3 enter b.0 1 8", "4 leave b.0"];
    let verdict = verdict(1, &fine).unwrap();
    assert_eq!((verdict.visits, verdict.at_once), (2, 1));
    assert_eq!(verdict.entered, ["a.0", "b.0"]);
}

#[test]
fn one_beside_the_other_is_wrong_above_the_limit() {
    let overlap = ["1 enter a.0 1 0", "2 enter b.0 1 0", "3 leave a.0", "4 leave b.0"];
    assert!(verdict(1, &overlap).unwrap_err().contains("b.0"));
    assert_eq!(verdict(2, &overlap).unwrap().at_once, 2);
    verdict(5, &["1 enter a.0 5 0", "2 enter b.0 1 0"]).unwrap_err();
}

#[test]
fn a_fence_that_does_not_rise_is_wrong() {
    verdict(1, &["1 enter a.0 1 7", "2 leave a.0", "3 enter b.0 1 7"]).unwrap_err();
    verdict(5, &["1 enter a.0 5 7", "2 leave a.0", "3 enter b.0 1 7", "4 enter c.0 1 7"]).unwrap();
    verdict(5, &["1 enter a.0 5 7", "2 leave a.0", "3 enter b.0 1 6"]).unwrap_err();
}

#[test]
fn who_is_killed_is_there_until_then() {
    verdict(1, &["1 enter a.0 1 0", "2 enter b.0 1 0", "3 kill a"]).unwrap_err();
    let after = ["1 enter a.0 1 0", "2 kill a", "3 enter b.0 1 0", "4 enter a.1 1 0", "5 leave b.0"];
    assert_eq!(verdict(1, &after).unwrap().kills, 1);
}

#[test]
fn who_was_late_proves_nothing_and_what_is_gone_early_is_wrong() {
    let late = ["1 enter a.0 1 0", "2 enter b.0 1 0", "3 leave a.0", "4 late a.0", "5 leave b.0"];
    let fine = verdict(1, &late).unwrap();
    assert_eq!((fine.late, fine.visits), (1, 1));
    verdict(1, &["1 enter a.0 1 0", "2 leave a.0", "3 gone a.0"]).unwrap_err();
}

#[test]
fn it_is_counted_how_many_went_before() {
    let passed =
        ["1 ask a.0", "2 enter b.0 1 0", "3 leave b.0", "4 enter c.0 1 0", "5 leave c.0", "6 enter a.0 1 0"];
    assert_eq!(verdict(1, &passed).unwrap().passed[&1], 2);
}
