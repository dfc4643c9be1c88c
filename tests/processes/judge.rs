//! What the referee's notes of one room prove.
//!
//! A note is `time verb visit …`, the time in µs. Verbs:
//! `ask` (of interest to single tests);
//! `enter` (with its weight and its fence) the visit begins;
//! `leave` it is over, before its lease is given back;
//! `late` its process was so late that the lease had run out when it was given back: it proves nothing;
//! `gone` its lease was gone before its time;
//! `kill` its process (the first part of a visit's name) is about to be killed, and is in no room from now on. It cannot
//! tell that it was late any more: so times to live must be longer than a process that is killed may stand still.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Note {
    at: u64,
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

    /// How long it was noted after another one.
    pub(crate) fn after(&self, other: &Self) -> Duration {
        Duration::from_micros(self.at.saturating_sub(other.at))
    }
}

/// What a room has seen.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The visits in the order of their beginnings.
    pub(crate) entered: Vec<String>,
    /// How many visits came to their end.
    pub(crate) visits: usize,
    pub(crate) kills: usize,
    /// How many visits prove nothing.
    pub(crate) late: usize,
}

/// Goes through the notes; an error says what is wrong.
pub(crate) fn judge(notes: &[Note], limit: u32) -> Result<Verdict, String> {
    let late: HashSet<_> =
        notes.iter().filter(|note| note.verb == "late").map(|note| note.visit.as_str()).collect();
    let mut verdict = Verdict { late: late.len(), ..Verdict::default() };
    let mut inside: HashMap<&str, &Note> = HashMap::new();
    let mut dead = HashSet::new();
    let mut fence = 0;
    for note in notes {
        let visit = note.visit.as_str();
        if late.contains(visit) || dead.contains(note.process()) {
            continue;
        }
        match note.verb.as_str() {
            "ask" => {}
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
                verdict.entered.push(note.visit.clone());
                inside.insert(visit, note);
            }
            "leave" => verdict.visits += usize::from(inside.remove(visit).is_some()),
            "kill" => {
                verdict.kills += 1;
                dead.insert(visit);
                inside.retain(|_, other| other.process() != visit);
            }
            _ => return Err(format!("{note:?}")),
        }
    }
    Ok(verdict)
}

/// What is right, with what it proves (visits, kills and late ones), and what is wrong.
#[test]
fn forged_notes_are_judged() {
    let rooms: [(u32, &[&str], _); 12] = [
        (1, &["enter a.0 1 7", "leave a.0", "enter b.0 1 8", "leave b.0"], Some((2, 0, 0))),
        // One beside the other.
        (1, &["enter a.0 1 0", "enter b.0 1 0", "leave a.0", "leave b.0"], None),
        (2, &["enter a.0 1 0", "enter b.0 1 0", "leave a.0", "leave b.0"], Some((2, 0, 0))),
        (5, &["enter a.0 5 0", "enter b.0 1 0"], None),
        // A fence that does not rise.
        (1, &["enter a.0 1 7", "leave a.0", "enter b.0 1 7"], None),
        (5, &["enter a.0 5 7", "leave a.0", "enter b.0 1 7", "enter c.0 1 7"], Some((1, 0, 0))),
        (5, &["enter a.0 5 7", "leave a.0", "enter b.0 1 6"], None),
        // Who is killed is there until then.
        (1, &["enter a.0 1 0", "enter b.0 1 0", "kill a"], None),
        (1, &["enter a.0 1 0", "kill a", "enter b.0 1 0", "enter a.1 1 0", "leave b.0"], Some((1, 1, 0))),
        // Who was late proves nothing, and what is gone early is wrong.
        (1, &["enter a.0 1 0", "enter b.0 1 0", "leave a.0", "late a.0", "leave b.0"], Some((1, 0, 1))),
        (1, &["enter a.0 1 0", "leave a.0", "gone a.0"], None),
        (1, &["ask a.0", "enter b.0 1 0", "leave b.0"], Some((1, 0, 0))),
    ];
    for (limit, notes, proves) in rooms {
        let parsed: Vec<_> =
            notes.iter().enumerate().map(|(at, note)| Note::parse(&format!("{at} {note}"))).collect();
        let verdict = judge(&parsed, limit).ok();
        let proven = verdict.map(|verdict| (verdict.visits, verdict.kills, verdict.late));
        assert_eq!(proven, proves, "{limit}: {notes:?}");
    }
    let in_turn = ["1 enter a.0 1 7", "2 leave a.0", "3 enter b.0 1 8"].map(Note::parse);
    assert_eq!(judge(&in_turn, 1).unwrap().entered, ["a.0", "b.0"]);
    assert_eq!(in_turn[2].after(&in_turn[0]), Duration::from_micros(2));
}
