//! Bits of strings.

use super::super::database::{Database, Outcome, SYNTAX};
use super::super::reply::{Bytes, Reply};
use super::{integer, option, part_of_text};

const BAD_TYPE: &str = "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";

pub fn count(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let Some(text) = database.text(&arguments[1])? else {
        return Ok(Reply::Int(0));
    };
    let (from, to) = match &arguments[2..] {
        [] => (0, -1),
        [from, to] => (integer(from)?, integer(to)?),
        [from, to, unit] => {
            let (from, to) = (integer(from)?, integer(to)?);
            // A server looks at the unit only if the range may have bits.
            let is_empty = from < 0 && to < 0 && from > to;
            if !is_empty && option(unit) != "BYTE" {
                return Err(SYNTAX.into());
            }
            (from, to)
        }
        _ => return Err(SYNTAX.into()),
    };
    let part = text[part_of_text(text.len(), from, to)].iter();
    let ones = part.map(|byte| i64::from(byte.count_ones()));
    Ok(Reply::Int(ones.sum()))
}

/// A number of some bits.
#[derive(Clone, Copy)]
struct Field {
    signed: bool,
    bits: u32,
    from: usize,
}

enum Step {
    Get(Field),
    Set(Field, i64),
}

fn field_of(kind: &[u8], at: &[u8]) -> Result<Field, String> {
    let signed = match kind.first().map(u8::to_ascii_lowercase) {
        Some(b'u') => false,
        Some(b'i') => true,
        _ => return Err(BAD_TYPE.into()),
    };
    let bits = integer(&kind[1..]).map_err(|_| BAD_TYPE)?;
    if bits < 1 || bits > if signed { 64 } else { 63 } {
        return Err(BAD_TYPE.into());
    }
    let (times, at) = at.strip_prefix(b"#").map_or((1, at), |at| (bits, at));
    let at = integer(at).map_err(|_| BAD_OFFSET)?;
    let from = at.checked_mul(times).ok_or(BAD_OFFSET)?;
    if !(0..(1_i64 << 32)).contains(&from) {
        return Err(BAD_OFFSET.into());
    }
    Ok(Field {
        signed,
        bits: bits as u32,
        from: from as usize,
    })
}

fn steps(arguments: &[Bytes], only_reads: bool) -> Result<Vec<Step>, String> {
    let (mut steps, mut rest) = (Vec::new(), arguments);
    while let Some(word) = rest.first() {
        let (step, used) = match (option(word).as_str(), &rest[1..]) {
            ("GET", [kind, at, ..]) => (Step::Get(field_of(kind, at)?), 3),
            ("SET", [kind, at, value, ..]) => (Step::Set(field_of(kind, at)?, integer(value)?), 4),
            _ => return Err(SYNTAX.into()),
        };
        steps.push(step);
        rest = &rest[used..];
    }
    if only_reads && steps.iter().any(|step| matches!(step, Step::Set(..))) {
        return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
    }
    Ok(steps)
}

/// `BITFIELD` and `BITFIELD_RO`, with `GET` and `SET`.
pub fn field(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let only_reads = option(&arguments[0]) == "BITFIELD_RO";
    let steps = steps(&arguments[2..], only_reads)?;
    let end = |step: &Step| match step {
        Step::Get(_) => 0,
        Step::Set(field, _) => (field.from + field.bits as usize).div_ceil(8),
    };
    let longest = steps.iter().map(end).max().unwrap_or(0);
    let empty = &mut Bytes::new();
    let text = match longest {
        0 => database.text(&arguments[1])?.unwrap_or(empty),
        _ => database.text_or_new(&arguments[1])?,
    };
    if text.len() < longest {
        text.resize(longest, 0);
    }
    let replies = steps.iter().map(|step| match step {
        Step::Get(field) => Reply::Int(field.read(text)),
        Step::Set(field, value) => {
            let before = field.read(text);
            field.write(text, *value);
            Reply::Int(before)
        }
    });
    Ok(Reply::Array(replies.collect()))
}

impl Field {
    fn read(self, text: &[u8]) -> i64 {
        let byte = |at: usize| text.get(at / 8).copied().unwrap_or(0);
        let bit = |at: usize| u64::from(byte(at) >> (7 - at % 8) & 1);
        let all = (self.from..self.from + self.bits as usize).fold(0, |all, at| all << 1 | bit(at));
        let unused = 64 - self.bits;
        if self.signed {
            (all << unused) as i64 >> unused
        } else {
            all as i64
        }
    }

    fn write(self, text: &mut [u8], value: i64) {
        for nth in 0..self.bits as usize {
            let (at, bit) = (self.from + nth, value >> (self.bits as usize - 1 - nth) & 1);
            let mask = 1 << (7 - at % 8);
            match bit {
                1 => text[at / 8] |= mask,
                _ => text[at / 8] &= !mask,
            }
        }
    }
}
