//! The reply of a script.

use std::ops::Range;

use redis::Value;

use crate::Error;
use crate::store::operation::{END, Fields};

/// The server's time, then the fields of the runs: the same number for each run, in the order of the call.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) now: i64,
    values: Vec<Value>,
    width: usize,
    /// Whether the call was sent twice. The other copy may still run later.
    twice: bool,
    /// Why the call does not count, although it has run: too few replicas have it.
    pub(super) unconfirmed: Option<Error>,
}

impl Reply {
    /// Parses the reply to a call of `runs` runs: a list, or what costs the server less: numbers in a text, or the time alone.
    pub(super) fn parse(reply: Value, runs: usize) -> Option<Self> {
        let values = match reply {
            Value::Array(values) => values,
            Value::BulkString(text) => numbers(&text)?,
            now @ Value::Int(_) => vec![now],
            _ => return None,
        };
        let Some(&Value::Int(now @ 0..END)) = values.first() else {
            return None;
        };
        Some(Self {
            now,
            width: (values.len() - 1) / runs.max(1),
            values,
            twice: false,
            unconfirmed: None,
        })
    }

    /// Marks the reply as one to a call that was sent twice.
    pub(super) fn sent_twice(self) -> Self {
        Self {
            twice: true,
            ..self
        }
    }

    /// The fields of these runs.
    pub(super) fn fields(&self, runs: Range<usize>) -> Fields<'_> {
        let range = 1 + runs.start * self.width..1 + runs.end * self.width;
        Fields::new(self.values.get(range).unwrap_or_default(), self.twice)
    }
}

/// Reads whole numbers with a space between them.
fn numbers(text: &[u8]) -> Option<Vec<Value>> {
    let mut values = Vec::with_capacity(8);
    for word in text.split(|byte| *byte == b' ') {
        let (sign, digits) = word
            .strip_prefix(b"-")
            .map_or((1, word), |digits| (-1, digits));
        // A number of at most 18 digits fits.
        if !(1..=18).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = digits
            .iter()
            .fold(0, |number, digit| 10 * number + i64::from(digit - b'0'));
        values.push(Value::Int(sign * number));
    }
    Some(values)
}

#[cfg(test)]
mod tests {
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
}
