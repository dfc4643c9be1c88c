//! `struct` and `bit`, as far as the scripts use them: a format that they do not use is an error.

use mlua::{Error, Lua, MultiValue, Value};

use super::reply::Bytes;

/// A part of a format.
#[derive(Clone, Copy)]
enum Part {
    /// A whole number of so many bytes.
    Whole(usize),
    Double,
    Bytes(usize),
    Padding,
}

/// The name of an operation on bits, and the operation.
type Operation = (&'static str, fn(u32, u32) -> u32);

pub fn add(lua: &Lua) -> mlua::Result<()> {
    let structs = lua.create_table()?;
    structs.set("pack", lua.create_function(pack)?)?;
    structs.set("unpack", lua.create_function(unpack)?)?;
    lua.globals().set("struct", structs)?;

    let bits = lua.create_table()?;
    let operations: [Operation; 5] = [
        ("band", |a, b| a & b),
        ("bor", |a, b| a | b),
        ("bxor", |a, b| a ^ b),
        ("lshift", |a, n| a << (n & 31)),
        ("rshift", |a, n| a >> (n & 31)),
    ];
    for (name, operation) in operations {
        let run = move |_: &Lua, (a, b): (f64, f64)| {
            Ok(f64::from(operation(a as i64 as u32, b as i64 as u32) as i32))
        };
        bits.set(name, lua.create_function(run)?)?;
    }
    lua.globals().set("bit", bits)
}

fn parts(format: &[u8]) -> mlua::Result<Vec<Part>> {
    let readable = format.escape_ascii();
    let unknown = || Error::runtime(format!("simulated struct: format {readable}"));
    // Little-endian formats are not used.
    let mut rest = format.strip_prefix(b">").ok_or_else(unknown)?;
    let mut parts = Vec::new();
    while let [kind, after @ ..] = rest {
        let digits = after
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (size, after) = after.split_at(digits);
        rest = after;
        let size: Option<usize> = std::str::from_utf8(size)
            .ok()
            .and_then(|size| size.parse().ok());
        parts.push(match (kind, size) {
            (b'B', None) => Part::Whole(1),
            (b'H', None) => Part::Whole(2),
            (b'I', size) => Part::Whole(size.unwrap_or(4)),
            (b'd', None) => Part::Double,
            (b'c', Some(size)) => Part::Bytes(size),
            (b'x', None) => Part::Padding,
            _ => return Err(unknown()),
        });
    }
    Ok(parts)
}

impl Part {
    fn size(self) -> usize {
        match self {
            Self::Whole(size) | Self::Bytes(size) => size,
            Self::Double => 8,
            Self::Padding => 1,
        }
    }
}

/// What `struct.unpack` gets: a format, the data, and where it begins.
type Packed = (mlua::String, mlua::String, Option<f64>);

fn unpack(lua: &Lua, (format, data, from): Packed) -> mlua::Result<MultiValue> {
    let mut at = from.unwrap_or(1.0) as usize - 1;
    let (data, mut values) = (data.as_bytes(), MultiValue::new());
    for part in parts(&format.as_bytes())? {
        let Some(bytes) = data.get(at..at + part.size()) else {
            return Err(Error::runtime("data string too short"));
        };
        at += part.size();
        match part {
            Part::Whole(_) => {
                let append = |whole: u64, byte: &u8| whole << 8 | u64::from(*byte);
                values.push_back(Value::Number(bytes.iter().fold(0, append) as f64));
            }
            Part::Double => {
                let bytes = bytes.try_into().unwrap_or_default();
                values.push_back(Value::Number(f64::from_be_bytes(bytes)));
            }
            Part::Bytes(_) => values.push_back(Value::String(lua.create_string(bytes)?)),
            Part::Padding => {}
        }
    }
    values.push_back(Value::Number(at as f64 + 1.0));
    Ok(values)
}

fn pack(lua: &Lua, arguments: MultiValue) -> mlua::Result<mlua::String> {
    let mut arguments = arguments.into_iter();
    let Some(Value::String(format)) = arguments.next() else {
        return Err(Error::runtime("string expected"));
    };
    let mut packed = Bytes::new();
    for part in parts(&format.as_bytes())? {
        if let Part::Padding = part {
            packed.push(0);
            continue;
        }
        let value = arguments.next().unwrap_or(Value::Nil);
        if let Part::Bytes(size) = part {
            let text = lua.coerce_string(value)?;
            let text = text.ok_or_else(|| Error::runtime("string expected"))?;
            let text = text.as_bytes();
            let text = text.get(..size);
            packed.extend(text.ok_or_else(|| Error::runtime("string too short"))?);
            continue;
        }
        let number = lua.coerce_number(value)?;
        let number = number.ok_or_else(|| Error::runtime("number expected"))?;
        let whole = match number < 0.0 {
            true => number as i64 as u64,
            false => number as u64,
        };
        match part {
            Part::Whole(size) => packed.extend_from_slice(&whole.to_be_bytes()[8 - size..]),
            _ => packed.extend_from_slice(&number.to_be_bytes()),
        }
    }
    lua.create_string(packed)
}
