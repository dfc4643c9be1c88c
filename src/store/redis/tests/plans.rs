//! Which operations leave in one call, and with what arguments.

use redis::Arg;

use super::*;
use crate::store::redis::plan::Plan;

const MOST_PAYLOAD: usize = 64 << 10;

/// The calls for operations. For each call: the number of keys, the keys, the arguments, and the operations by run.
fn planned<const ONE_KEY: bool>(items: &[Item<Ask<false, ONE_KEY>>]) -> Vec<String> {
    let client = client::<Ask<false, ONE_KEY>>(Store::builder());
    let plan = Plan::new(&client.script, &client.keys, items);
    let calls = plan.calls.iter().map(|call| {
        let texts = call.command.args_iter().skip(2).filter_map(|text| match text {
            Arg::Simple(bytes) => Some(std::str::from_utf8(bytes).unwrap().to_owned()),
            _ => None,
        });
        let key = |text: String| text.replace("td:{n:", "").replace("}:x", "");
        let texts: Vec<_> = texts.map(key).collect();
        let runs: Vec<_> = call.runs.iter().map(|run| format!("{:?}", &plan.order[run.at.clone()])).collect();
        format!("{} {}", texts.join(" "), runs.concat())
    });
    calls.collect()
}

fn asks<const N: usize>(asks: [(&str, i64); N]) -> Vec<Item<Ask>> {
    asks.map(|(key, word)| waiting(key, ask(word))).into()
}

#[test]
fn equal_operations_on_a_key_are_a_run_and_others_runs_of_their_own() {
    assert_eq!(planned(&asks([("a", 5)])), ["1 a shared 0 5 1 [0]"]);
    assert_eq!(
        planned(&asks([("a", 5), ("b", 5)])),
        ["2 a b shared 0 5 1 [0][1]"],
        "equal arguments are there once"
    );
    assert_eq!(planned(&asks([("b", 5), ("a", 6)])), ["2 a b shared 0 6 1 5 1 [1][0]"]);
    assert_eq!(planned(&asks([("a", 5); 4])), ["2 a a shared 0 5 3 5 1 [0, 1, 2][3]"]);
    assert_eq!(
        planned(&asks([("a", 5), ("a", 6), ("a", 7)])),
        ["1 a shared 0 5 3 [0, 1, 2]"],
        "each continues the last"
    );
    assert_eq!(
        planned(&asks([("a", 5), ("b", 1), ("a", 8), ("a", 5)])),
        ["4 a a a b shared 0 5 1 8 1 5 1 1 1 [0][2][3][1]"]
    );
    let none = |key| waiting::<Ask>(key, Ask { word: None, ..ask(0) });
    assert_eq!(planned(&[none("a"), none("b")]), ["2 a b shared 0 [0][1]"]);
}

#[test]
fn a_call_has_a_bounded_number_of_runs() {
    let many = [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)];
    assert_eq!(planned(&asks(many)), ["4 a b c d shared 0 1 1 [0][1][2][3]", "1 e shared 0 1 1 [4]"]);
    let of = |key, size| waiting::<Ask>(key, Ask { size, ..ask(1) });
    assert_eq!(planned(&[of("a", 3), of("b", 1)]).len(), 1);
    assert_eq!(planned(&[of("a", 3), of("b", 2)]).len(), 2);
    assert_eq!(planned(&[of("a", 9), of("b", 1)]).len(), 2, "one that is too large leaves alone");
}

#[test]
fn a_call_carries_no_more_bytes_than_its_bound_but_for_one_operation() {
    let payloads = [MOST_PAYLOAD / 2, MOST_PAYLOAD / 2, 1, 2 * MOST_PAYLOAD, 1];
    let carry = |(key, payload)| waiting::<Ask>(&format!("{key}"), Ask { payload, ..ask(key) });
    let items: Vec<_> = (0..).zip(payloads).map(carry).collect();
    let client = client::<Ask>(Store::builder());
    let plan = Plan::new(&client.script, &client.keys, &items);
    let sizes: Vec<_> = plan.calls.iter().map(|call| call.size()).collect();
    assert_eq!(sizes, [2, 1, 1, 1]);
}

#[test]
fn operations_leave_with_those_of_their_slot_and_group() {
    let at = |slot, group, key| Item { slot: Some(slot), ..waiting::<Ask>(key, Ask { group, ..ask(5) }) };
    let two = [at(2, Some(1), "a"), at(1, Some(1), "b"), at(2, Some(1), "c")];
    assert_eq!(planned(&two), ["1 b shared 1 5 1 [1]", "2 a c shared 1 5 1 [0][2]"]);
    let groups = [at(1, Some(2), "a"), at(1, Some(1), "b"), at(1, Some(2), "c")];
    // The group that was submitted first leaves first.
    assert_eq!(planned(&groups), ["2 a c shared 2 5 1 [0][2]", "1 b shared 1 5 1 [1]"]);
    // One of no group takes the arguments of the group that leaves first.
    let any = [at(1, None, "a"), at(1, Some(2), "b"), at(1, Some(1), "c"), at(2, None, "d")];
    assert_eq!(planned(&any), ["2 a b shared 2 5 1 [0][1]", "1 c shared 1 5 1 [2]", "1 d shared -1 5 1 [3]"]);
    let ranks = [1, 0].map(|rank| waiting::<Ask>("a", Ask { rank, ..ask(10 * i64::from(rank)) }));
    assert_eq!(planned(&ranks), ["2 a a shared 0 0 1 10 1 [1][0]"]);
}

#[test]
fn a_script_of_one_key_has_its_name_once() {
    let of = |key, word| waiting::<Ask<false, true>>(key, ask(word));
    assert_eq!(
        planned(&[of("a", 5), of("b", 5), of("a", 8)]),
        ["1 a shared 0 5 1 8 1 [0][2]", "1 b shared 0 5 1 [1]"]
    );
}

#[test]
fn an_operation_without_a_caller_is_sent_only_if_it_is_owed() {
    let mut items = asks([("a", 1), ("b", 1), ("c", 1)]);
    items[0].phase = Phase::Left;
    (items[1].phase, items[1].owed) = (Phase::Left, true);
    assert_eq!(planned(&items), ["2 b c shared 0 1 1 [1][2]"]);
    items[2].operation = None;
    assert_eq!(planned(&items), ["1 b shared 0 1 1 [1]"]);
}
