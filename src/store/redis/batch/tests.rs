//! The parsing of replies.

use super::*;

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
