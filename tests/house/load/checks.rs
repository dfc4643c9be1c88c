//! Forged calls: each check finds what breaks its promise, and nothing else.

use clap::Parser as _;

use crate::args::Load;
use crate::check::{Limit, Verdict, check};
use crate::message::{Counts, Held, Message, Note, Progress};
use crate::totals::Totals;

async fn verdicts(arguments: &str, notes: Vec<Note>) -> Vec<Verdict> {
    let arguments = std::iter::once("load").chain(arguments.split(' '));
    let load = Load::try_parse_from(arguments).unwrap();
    let limit = match load.target.quota() {
        Some(quota) => Some(Limit::of(quota).await.unwrap()),
        None => None,
    };
    let mut totals = Totals::new(1);
    totals.hear(
        0,
        Message::Progress(Progress {
            bins: [(0, Counts::default())].into(),
            notes,
        }),
    );
    check(&load.target, limit.as_ref(), &totals)
}

fn held(from: u64, to: u64, shared: bool, fence: u64) -> Note {
    Note::Held(Held {
        key: 7,
        from,
        to,
        shared,
        fence,
    })
}

fn burst(key: u64, count: u64) -> Vec<Note> {
    (0..count)
        .map(|call| Note::Admitted {
            key,
            from: call,
            to: call + 5,
        })
        .collect()
}

fn every(micros: u64) -> Vec<Note> {
    (0..2000)
        .map(|call| call * micros)
        .map(|at| Note::Admitted {
            key: 0,
            from: at,
            to: at,
        })
        .collect()
}

/// What each check of a target finds: whether its promise was kept, and what it says.
#[tokio::test]
async fn what_breaks_a_promise_is_found() {
    use Note::{Duplicate, Passed, Unknown};
    let bucket = "token-bucket --in-memory --quota 10/s --burst 20";
    let thirds = "token-bucket --in-memory --quota 1/3s --burst 1";
    let group = "wait-group --in-memory --cap 2";
    let mutex = "mutex --in-memory";
    let lock = "rw-lock --in-memory";
    let (filter, exact) = ("dedupe --in-memory", "dedupe --in-memory --exact");
    let one = held(0, 10, false, 1);
    let readers = vec![held(0, 10, true, 0), held(5, 20, true, 0)];
    let with = |before: Vec<Note>, last: Note| [before, vec![last]].concat();
    let both = |one: u64, other: u64| [burst(0, one), burst(1, other)].concat();
    // Two that were held within the same microsecond, told in the other order.
    let (first, second) = (held(20, 20, false, 2), held(20, 20, false, 3));
    let seen_once = vec![
        Passed(1),
        Duplicate(1),
        Duplicate(2),
        Duplicate(2),
        Unknown(3),
    ];
    let twice = vec![Passed(1), Passed(1), Passed(3), Passed(3), Unknown(3)];
    // 10/s for 1 ms of tolerance is less than a token.
    let rows: [(&str, Vec<Note>, &[bool], &str); 18] = [
        (bucket, burst(0, 20), &[true], ""),
        (bucket, both(20, 20), &[true], ""),
        (
            bucket,
            both(20, 21),
            &[false],
            "key 1), with 21 admitted and 20.0 allowed",
        ),
        // A call that takes longer may have been admitted later.
        (
            bucket,
            with(
                burst(0, 20),
                Note::Admitted {
                    key: 0,
                    from: 0,
                    to: 200_000,
                },
            ),
            &[true],
            "",
        ),
        // One in 3 s, a third of a token a second.
        (thirds, every(3_000_000), &[true], ""),
        (thirds, every(2_990_000), &[false], ""),
        (
            group,
            with(readers.clone(), held(10, 20, true, 0)),
            &[true],
            "",
        ),
        (
            group,
            vec![held(0, 11, true, 0), readers[1], held(10, 20, true, 0)],
            &[false],
            "",
        ),
        (mutex, vec![held(10, 20, false, 2), one], &[true, true], ""),
        (mutex, vec![held(9, 20, false, 2), one], &[false, true], ""),
        (mutex, vec![held(10, 20, false, 1), one], &[true, false], ""),
        (mutex, vec![one, second, first], &[true, true], ""),
        (mutex, vec![one, first, first], &[true, false], ""),
        (
            lock,
            with(readers.clone(), held(20, 30, false, 1)),
            &[true, true],
            "",
        ),
        (
            lock,
            with(readers, held(19, 30, false, 1)),
            &[false, true],
            "",
        ),
        (exact, seen_once.clone(), &[true, false], ""),
        (filter, seen_once, &[true, true], ": 1 of 2 new items"),
        (filter, twice, &[false, true], "item 1 passed 2 times"),
    ];
    for (row, (arguments, notes, kept, says)) in rows.into_iter().enumerate() {
        let what = format!("row {row}, {arguments}");
        let found = verdicts(arguments, notes).await;
        assert_eq!(
            found
                .iter()
                .map(|verdict| verdict.holds)
                .collect::<Vec<_>>(),
            kept,
            "{what}"
        );
        assert!(
            found.iter().any(|verdict| verdict.text.contains(says)),
            "{says}: {what}"
        );
    }
}
