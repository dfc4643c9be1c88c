//! What the referee's notes prove.
//!
//! A note is `time verb message visit`; a visit is one attempt, named by its process and a number. Verbs:
//! `success` the handler has handled the message, and is about to say so;
//! `done` the layer has answered for it, so it was confirmed;
//! `unsure` instead of that: the claim was lost, or could not be confirmed, and this was reported;
//! `kill` the process (in place of the message) is about to be killed. What it has handled and not yet answered for
//! may be handled by others too, which nobody can tell.

use std::collections::{HashMap, HashSet};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Messages that were handled.
    pub(crate) handled: usize,
    /// How often a message was handled besides, where that was reported, and where a process was killed.
    pub(crate) reported: usize,
    pub(crate) cut_short: usize,
    /// How often it was reported that a message may be handled again.
    pub(crate) unsure: usize,
    pub(crate) kills: usize,
}

/// Goes through the notes; an error says what is wrong.
pub(crate) fn judge(notes: &[String]) -> Result<Verdict, String> {
    let notes: Vec<Vec<&str>> = notes.iter().map(|note| note.split(' ').collect()).collect();
    let with = |verb: &str, word: usize| -> HashSet<&str> {
        notes.iter().filter(|note| note[1] == verb).map(|note| note[word]).collect()
    };
    let (done, unsure, killed) = (with("done", 3), with("unsure", 3), with("kill", 2));
    let mut verdict = Verdict { unsure: unsure.len(), kills: killed.len(), ..Verdict::default() };
    // Who is sure of each message, and how many are not.
    let mut messages: HashMap<&str, (Option<&str>, usize, usize)> = HashMap::new();
    for note in notes.iter().filter(|note| note[1] == "success") {
        let (message, visit) = (note[2], note[3]);
        let (sure, reported, cut_short) = messages.entry(message).or_default();
        if unsure.contains(visit) {
            *reported += 1;
        } else if done.contains(visit) {
            if let Some(other) = sure.replace(visit) {
                return Err(format!("{other} and {visit} are both sure of {message}"));
            }
        } else if killed.contains(visit.split('.').next().unwrap_or_default()) {
            *cut_short += 1;
        } else {
            return Err(format!("{visit} has handled {message}, and said no more of it"));
        }
    }
    verdict.handled = messages.len();
    for (sure, reported, cut_short) in messages.values() {
        // One is what it takes.
        let besides = usize::from(sure.is_some()) + reported + cut_short - 1;
        verdict.cut_short += besides.min(*cut_short);
        verdict.reported += besides - besides.min(*cut_short);
    }
    Ok(verdict)
}

fn verdict(notes: &[&str]) -> Result<Verdict, String> {
    judge(&notes.iter().map(ToString::to_string).collect::<Vec<_>>())
}

#[test]
fn once_is_right_and_twice_is_wrong() {
    let once = ["1 success m a.0", "2 done m a.0"];
    assert_eq!(verdict(&once).unwrap().handled, 1);
    let twice = [&once[..], &["3 success m b.0", "4 done m b.0"]].concat();
    assert!(verdict(&twice).unwrap_err().contains("b.0"));
    verdict(&["1 success m a.0", "2 success m a.1", "3 done m a.0", "4 done m a.1"]).unwrap_err();
    verdict(&["1 success m a.0"]).unwrap_err();
}

#[test]
fn twice_is_right_where_it_was_reported() {
    let reported = ["1 success m a.0", "2 success m b.0", "3 unsure m a.0", "4 done m b.0"];
    assert_eq!(verdict(&reported).unwrap().reported, 1);
    let thrice = [&reported[..], &["5 success m c.0", "6 done m c.0"]].concat();
    verdict(&thrice).unwrap_err();
}

#[test]
fn twice_is_right_where_nobody_could_report_it() {
    let killed = ["1 success m a.0", "2 kill a 0", "3 success m b.0", "4 done m b.0"];
    assert_eq!(verdict(&killed).unwrap().cut_short, 1);
    verdict(&["1 success m a.0", "2 done m a.0", "3 kill a 0", "4 success m b.0", "5 done m b.0"])
        .unwrap_err();
}
