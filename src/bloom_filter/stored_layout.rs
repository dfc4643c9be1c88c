//! The text that is stored beside the state of a name, and says how this state is laid out. All processes that use the
//! name must use the same layout.

use std::fmt;
use std::time::Duration;

use crate::Error;
use crate::store::{Field, Fields, Garbled};

/// The stored text of another layout with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch(pub(crate) String);

pub(crate) const UNREADABLE: Garbled = Garbled(
    "WRONGTYPE the stored layout is not one that this version reads: delete the key or use another name",
);

impl Mismatch {
    /// Returns the error for `what` has the name. `parse` reads a stored text; `None` if this version stores no such text.
    pub(crate) fn error<L: fmt::Display>(
        &self,
        what: fmt::Arguments<'_>,
        used: &L,
        parse: fn(&str) -> Option<L>,
    ) -> Error {
        let stored =
            parse(&self.0).map_or_else(|| format!("{:?}", self.0), |layout| layout.to_string());
        Error::invalid(format!(
            "{what} is stored with {stored}, but this process uses {used}: set the same in all processes, or choose another \
             name for the new settings"
        ))
    }
}

/// Reads a number, or the text of another layout.
pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Result<u64, Mismatch>, Garbled> {
    match fields.next()? {
        Field::Integer(-1) => Err(Garbled(
            "WRONGTYPE a key has a value of another type: delete the key or use another name",
        )),
        Field::Integer(number) => u64::try_from(number)
            .map(Ok)
            .map_err(|_| Garbled("a script returned a negative number")),
        Field::Text(stored) => Ok(Err(Mismatch(String::from_utf8_lossy(stored).into_owned()))),
        Field::List(_) => Err(Garbled("a script returned a list instead of a number")),
    }
}

/// Reads 1 or 0.
pub(crate) fn read_flag(fields: &mut Fields<'_>) -> Result<bool, Garbled> {
    read(fields)?
        .map(|number| number == 1)
        .map_err(|_| UNREADABLE)
}

/// Checks how long items are to be remembered.
pub(crate) fn check_remember_for(span: Duration) -> Result<Duration, Error> {
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
    if (SHORTEST..=LONGEST).contains(&span) && span.subsec_nanos().is_multiple_of(1_000_000) {
        return Ok(span);
    }
    Err(Error::invalid(format!(
        "remember_for must be 1 s to 10 years, in whole milliseconds, is {span:?}"
    )))
}
