//! Which operations are sent in one call, and with which arguments.

use redis::Arg;

use super::*;
use crate::store::redis::command::Calls;

const MOST_PAYLOAD: usize = 64 << 10;

/// The calls for operations: the number of keys, the keys, the arguments, and the operations by run.
fn planned<const ONE_KEY: bool>(items: &[Item<Ask<false, ONE_KEY>>]) -> String {
    let client = client::<Ask<false, ONE_KEY>>(Store::builder());
    let calls = Calls::new(&client.script, &client.keys, items);
    let texts = calls.list.iter().map(|call| {
        let texts = call
            .command
            .args_iter()
            .skip(2)
            .filter_map(|text| match text {
                Arg::Simple(bytes) => Some(std::str::from_utf8(bytes).unwrap().to_owned()),
                _ => None,
            });
        let key = |text: String| text.replace("td:{n:", "").replace("}:x", "");
        let texts: Vec<_> = texts.map(key).collect();
        let runs: Vec<_> = call
            .runs
            .iter()
            .map(|run| format!("{:?}", &calls.order[run.at.clone()]).replace(' ', ""))
            .collect();
        format!("{} {}", texts.join(" "), runs.concat())
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Parses texts such as `a5`: a key of one letter, and a word.
fn asks(texts: &str) -> Vec<Item<Ask>> {
    texts
        .split(' ')
        .map(|text| waiting(&text[..1], ask(text[1..].parse().unwrap())))
        .collect()
}

#[test]
fn a_call_has_a_bounded_number_of_runs_of_operations_on_a_key_that_continue_each_other() {
    for (operations, calls) in [
        ("a5", "1 a shared 0 5 1 [0]"),
        // Equal arguments occur once.
        ("a5 b5", "2 a b shared 0 5 1 [0][1]"),
        ("b5 a6", "2 a b shared 0 6 1 5 1 [1][0]"),
        ("a5 a5 a5 a5", "2 a a shared 0 5 3 5 1 [0,1,2][3]"),
        ("a5 a6 a7", "1 a shared 0 5 3 [0,1,2]"),
        ("a5 b1 a8", "3 a a b shared 0 5 1 8 1 1 1 [0][2][1]"),
        (
            "a1 b1 c1 d1 e1",
            "4 a b c d shared 0 1 1 [0][1][2][3], 1 e shared 0 1 1 [4]",
        ),
    ] {
        assert_eq!(planned(&asks(operations)), calls, "{operations}");
    }
    let none = |key| {
        waiting::<Ask>(
            key,
            Ask {
                word: None,
                ..ask(0)
            },
        )
    };
    assert_eq!(planned(&[none("a"), none("b")]), "2 a b shared 0 [0][1]");
    let of = |key, size| waiting::<Ask>(key, Ask { size, ..ask(1) });
    for (one, other, calls) in [(3, 1, 1), (3, 2, 2), (9, 1, 2)] {
        assert_eq!(
            planned(&[of("a", one), of("b", other)])
                .matches("shared")
                .count(),
            calls
        );
    }
}

#[test]
fn a_call_carries_no_more_bytes_than_its_bound_but_for_one_operation() {
    let payloads = [MOST_PAYLOAD / 2, MOST_PAYLOAD / 2, 1, 2 * MOST_PAYLOAD, 1];
    let carry = |(key, payload)| {
        waiting::<Ask>(
            &format!("{key}"),
            Ask {
                payload,
                ..ask(key)
            },
        )
    };
    let items: Vec<_> = (0..).zip(payloads).map(carry).collect();
    let client = client::<Ask>(Store::builder());
    let calls = Calls::new(&client.script, &client.keys, &items);
    let sizes: Vec<_> = calls.list.iter().map(|call| call.size()).collect();
    assert_eq!(sizes, [2, 1, 1, 1]);
}

#[test]
fn operations_leave_with_those_of_their_slot_and_group() {
    let at = |slot, group, key| Item {
        slot: Some(slot),
        ..waiting::<Ask>(key, Ask { group, ..ask(5) })
    };
    let two = [
        at(2, Some(1), "a"),
        at(1, Some(1), "b"),
        at(2, Some(1), "c"),
    ];
    assert_eq!(
        planned(&two),
        "1 b shared 1 5 1 [1], 2 a c shared 1 5 1 [0][2]"
    );
    // An operation without a group takes the arguments of the group that is sent first, which was submitted first.
    let any = [
        at(1, None, "a"),
        at(1, Some(2), "b"),
        at(1, Some(1), "c"),
        at(2, None, "d"),
    ];
    let calls = "2 a b shared 2 5 1 [0][1], 1 c shared 1 5 1 [2], 1 d shared -1 5 1 [3]";
    assert_eq!(planned(&any), calls);
    let ranks = [1, 0].map(|rank| {
        waiting::<Ask>(
            "a",
            Ask {
                rank,
                ..ask(10 * i64::from(rank))
            },
        )
    });
    assert_eq!(planned(&ranks), "2 a a shared 0 0 1 10 1 [1][0]");
    // A script for one key has its name once.
    let of = |key, word| waiting::<Ask<false, true>>(key, ask(word));
    let calls = "1 a shared 0 5 1 8 1 [0][2], 1 b shared 0 5 1 [1]";
    assert_eq!(planned(&[of("a", 5), of("b", 5), of("a", 8)]), calls);
    // Without a caller it is sent only if it is owed.
    let mut left = asks("a1 b1 c1 d1");
    left[0].phase = Phase::Left;
    (left[1].phase, left[1].owed) = (Phase::Left, true);
    left[3].operation = None;
    assert_eq!(planned(&left), "2 b c shared 0 1 1 [1][2]");
}
