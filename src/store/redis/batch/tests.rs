//! The bounds of the queue, and the parsing of replies.

use super::*;

#[test]
fn operations_and_bytes_are_bounded() {
    let budget = Budget::new(2, 10 * PLACE);
    assert!(budget.take(weight(0)) && budget.take(weight(0)));
    assert!(!budget.take(weight(0)), "two operations");
    budget.give_back(2 * weight(0));
    assert_eq!(budget.operations(), 0);
    assert!(budget.take(weight(9 * PLACE)));
    assert!(!budget.take(weight(0)), "ten places");
    budget.give_back(weight(9 * PLACE));
    assert!(budget.take(weight(0)));
}

#[test]
fn the_largest_operations_do_not_run_into_each_other() {
    let budget = Budget::new(MOST_OPERATIONS, MOST_BYTES);
    assert!(budget.take(weight(MOST_BYTES - PLACE)));
    assert!(!budget.take(weight(usize::MAX / 2)));
    assert_eq!(budget.operations(), 1);
}

#[test]
fn a_text_of_numbers_is_read_as_a_list() {
    let text = |text: &str| Reply::parse(Value::BulkString(text.into()), 1);
    let reply = text("1760000000123456 1 -2").unwrap();
    assert_eq!(reply.now, 1_760_000_000_123_456);
    let mut fields = reply.fields(0..1);
    assert_eq!(
        (fields.integer().unwrap(), fields.integer().unwrap()),
        (1, -2)
    );
    assert!(fields.next().is_err() && !fields.sent_twice());
    assert!(reply.sent_twice().fields(0..1).sent_twice());
    let alone = |now| Reply::parse(Value::Int(now), 2);
    assert!(alone(7).is_some_and(|reply| reply.now == 7 && reply.fields(1..2).len() == 0));
    assert!(alone(-1).is_none());
    for none in ["", "1 ", "1 x", "OK", "-1 1", "9007199254740992 1"] {
        assert!(text(none).is_none(), "{none:?}");
    }
}
