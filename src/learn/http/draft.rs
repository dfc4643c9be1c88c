//! The fields of draft-ietf-httpapi-ratelimit-headers-11: `RateLimit-Policy` and `RateLimit`.

use std::convert::Infallible;
use std::time::Duration;

use http::HeaderMap;
use sfv::visitor::{
    EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use sfv::{BareItemFromInput, KeyRef, Parser};

use crate::learn::{Learned, Policy};

/// The maximum length of a field. Longer fields, and further items, are not parsed.
const LONGEST: usize = 4096;
const MOST_ITEMS: usize = 16;

/// Reads both fields.
pub(super) fn read(headers: &HeaderMap, learned: &mut Learned) {
    for item in items(headers, "ratelimit-policy", learned) {
        // A policy needs a quota.
        let (Some(name), Some(limit)) = (&item.name, item.number(b'q')) else {
            learned.ignored += 1;
            continue;
        };
        let window = item
            .number(b'w')
            .filter(|window| *window > 0)
            .map(Duration::from_secs);
        learned.ignored += u64::from(window.is_none() && item.told(b'w').is_some());
        learned.policies.push(Policy {
            limit: Some(limit),
            window,
            unit: item.unit.unwrap_or_else(|| "requests".into()),
            partition: item.partition,
            ..Policy::named(name)
        });
    }
    for item in items(headers, "ratelimit", learned) {
        let (Some(name), Some(remaining)) = (&item.name, item.number(b'r')) else {
            learned.ignored += 1;
            continue;
        };
        learned.ignored += u64::from(item.told(b't') == Some(None));
        // The level of a policy that is not reported has no unit.
        let name = Policy::named(name).name;
        let of_policy = |policy: &&mut Policy| {
            policy.name == name && policy.remaining.is_none() && policy.partition == item.partition
        };
        if let Some(policy) = learned.policies.iter_mut().find(of_policy) {
            policy.remaining = Some(remaining);
            policy.reset = item.number(b't').map(Duration::from_secs);
        }
    }
}

/// An item of either field.
#[derive(Default)]
struct Item {
    name: Option<String>,
    /// The numeric parameters, by their names of one letter. The last one of a name counts.
    numbers: Vec<(u8, Option<u64>)>,
    unit: Option<String>,
    partition: Option<Vec<u8>>,
}

impl Item {
    fn number(&self, name: u8) -> Option<u64> {
        self.told(name)?
    }

    /// Returns a numeric parameter. `Some(None)`: it is present, but not a valid number.
    fn told(&self, name: u8) -> Option<Option<u64>> {
        self.numbers
            .iter()
            .rev()
            .find(|(other, _)| *other == name)
            .map(|(_, number)| *number)
    }
}

/// Returns the items of all lines of a field. A field that is not a list of structured items is ignored as a whole.
fn items(headers: &HeaderMap, name: &str, learned: &mut Learned) -> Vec<Item> {
    let mut field = Vec::new();
    for value in headers.get_all(name) {
        if field.len() + value.len() > LONGEST {
            learned.ignored += 1;
            return Vec::new();
        }
        field.extend_from_slice(if field.is_empty() { b"" } else { b", " });
        field.extend_from_slice(value.as_bytes());
    }
    let parsed = match field.is_empty() {
        true => return Vec::new(),
        false => Parser::new(&field).parse_list_with_visitor(Items::default()),
    };
    let mut items = parsed.unwrap_or_else(|_| {
        learned.ignored += 1;
        Vec::new()
    });
    learned.ignored += items.len().saturating_sub(MOST_ITEMS) as u64;
    items.truncate(MOST_ITEMS);
    items
}

#[derive(Default)]
struct Items(Vec<Item>);

/// Adds parameters to an item.
struct Parameters<'a>(&'a mut Item);

impl<'de> ListVisitor<'de> for Items {
    type Out = Vec<Item>;
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, Infallible> {
        self.0.push(Item::default());
        Ok(self.0.last_mut().map(Parameters))
    }

    fn finish(self) -> Result<Vec<Item>, Infallible> {
        Ok(self.0)
    }
}

impl<'de> EntryVisitor<'de> for Parameters<'_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        // An inner list has no name.
        Ok(Ignored)
    }
}

impl<'de> ItemVisitor<'de> for Parameters<'_> {
    type Out = ();
    type Error = Infallible;

    fn bare_item(
        self,
        name: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, Infallible> {
        self.0.name = match &name {
            BareItemFromInput::String(name) => Some(name.as_str().to_owned()),
            BareItemFromInput::Token(name) => Some(name.as_str().to_owned()),
            _ => None,
        };
        Ok(self)
    }
}

impl<'de> ParameterVisitor<'de> for Parameters<'_> {
    type Out = ();
    type Error = Infallible;

    fn parameter(
        &mut self,
        key: &'de KeyRef,
        value: BareItemFromInput<'de>,
    ) -> Result<(), Infallible> {
        match (key.as_str(), value) {
            ("qu", BareItemFromInput::String(unit)) => self.0.unit = Some(unit.as_str().to_owned()),
            ("qu", BareItemFromInput::Token(unit)) => self.0.unit = Some(unit.as_str().to_owned()),
            ("pk", BareItemFromInput::ByteSequence(partition)) => {
                self.0.partition = Some(partition.clone())
            }
            (name @ ("q" | "w" | "r" | "t"), value) => {
                let number = match value {
                    BareItemFromInput::Integer(number) => u64::try_from(i64::from(number)).ok(),
                    _ => None,
                };
                self.0.numbers.push((name.as_bytes()[0], number));
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Infallible> {
        Ok(())
    }
}
