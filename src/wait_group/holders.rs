//! The holders of permits in the in-memory store. It does the same as `lua/lib/permits.lua`.

use crate::lease::ends::Ends;
use crate::lease::flows::{Flow, Order};
use crate::lease::kind::{Holders, Kind, Scripts, scripts};
use crate::lease::queue::Queue;
use crate::lease::token::{Ending, Token};

/// The number of flows that are told apart.
pub(super) const MOST_FLOWS: i64 = 1 << 22;

/// The highest cost, and the longest aging and `newest` in µs. Higher ones count as these.
pub(super) const MOST: i64 = 1 << 42;

/// The rank of tokens that wait until no permit is held.
pub(super) const IDLE: i64 = 8;

/// The kind of lease of which several can be held at once, up to a limit.
#[derive(Clone, Debug)]
pub(crate) enum Permits {}

impl Kind for Permits {
    type Holders = PermitHolders;
    type Outcome = ();
    const PARTS: &'static [&'static str] =
        &["permits:holders", "permits:flows", "permits:waiters", "permits:beats"];
    const SCRIPTS: Scripts = scripts!("lib/quick_permits"; "lib/permits", "lib/flows", "lib/turns");
    const FENCED: bool = false;

    fn usual_fence(_: i64) -> i64 {
        0
    }

    fn weight(token: &Token) -> i64 {
        size(token).map_or(1, |(weight, _)| weight)
    }

    fn is_exclusive(_: &Token) -> bool {
        false
    }
}

/// The weight and the limit in a token. `None` for a token that waits until no permit is held.
pub(super) fn size(token: &Token) -> Option<(i64, i64)> {
    let (mut numbers, mut nth, mut digits) = ([0_i64; 2], 0, 0);
    let text = match token.ending() {
        Ok(Ending::Permit { weight, limit }) => return Some((weight.into(), limit.into())),
        Ok(_) => return None,
        Err(text) => text,
    };
    for byte in text.bytes() {
        match byte {
            b'/' if nth == 1 && digits > 0 => break, // then comes its order
            b'0'..=b'9' => {
                numbers[nth] = numbers[nth].checked_mul(10)?.checked_add(i64::from(byte - b'0'))?;
                digits += 1;
            }
            b'/' if nth == 0 && digits > 0 => (nth, digits) = (1, 0),
            _ => return None,
        }
    }
    (nth == 1 && digits > 0).then_some((numbers[0], numbers[1]))
}

/// The place in the queue that a token asks for: what is behind its limit.
fn order(token: &Token) -> Order {
    let ending = token.ending().err();
    let Some(text) = ending.and_then(|ending| ending.splitn(3, '/').nth(2)) else { return Order::default() };
    let mut parts = text.split('.');
    let (Some(number), Some(cost), Some(aging), newest, None) =
        (parts.next(), parts.next(), parts.next(), parts.next().unwrap_or_default(), parts.next())
    else {
        return Order::default();
    };
    let is_hex = |text: &&str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if ![number, cost, aging, newest].iter().all(is_hex) {
        return Order::default();
    }
    let read = |text: &str, most: i64| {
        let number = i64::from_str_radix(text, 16).map(|number| number.min(most));
        (!text.is_empty()).then(|| number.unwrap_or(most))
    };
    let (number, cost) = (read(number, MOST_FLOWS - 1), read(cost, MOST));
    let flow = number.zip(cost).map(|(number, cost)| Flow { number, cost: cost.max(1) });
    let newest = read(newest, MOST).filter(|_| flow.is_none());
    Order { flow, aging: read(aging, MOST), newest }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PermitHolders(Ends);

impl Holders for PermitHolders {
    const ORDERED: bool = true;

    fn clear(&mut self) {
        self.0.clear();
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }

    fn sweep(&mut self, now: i64) {
        self.0.sweep(now);
    }

    fn used(&self) -> i64 {
        self.0.used()
    }

    fn tokens(&self) -> Vec<Token> {
        self.0.tokens()
    }

    fn held(&self, token: &Token, _: i64) -> Option<(i64, i64)> {
        self.0.get(token).map(|expiry| (expiry, 0))
    }

    fn fits(&self, token: &Token) -> bool {
        size(token).map_or(self.used() == 0, |(weight, limit)| self.used() + weight <= limit)
    }

    fn counted(queue: &Queue, rank: i64) -> i64 {
        // Waiters of the last rank want no permit.
        queue.ahead(rank.min(IDLE - 1))
    }

    fn order(token: &Token) -> Order {
        order(token)
    }

    fn hold(&mut self, token: &Token, expiry: i64, _: i64, _: &Queue) -> i64 {
        if let Some((weight, _)) = size(token) {
            self.0.insert(token, expiry, weight);
        }
        0
    }

    fn hold_if_it_fits(&mut self, token: &Token, expiry: i64, _: i64, _: &Queue) -> Option<i64> {
        // Reads the token once.
        let Some((weight, limit)) = size(token) else { return (self.used() == 0).then_some(0) };
        (self.used() + weight <= limit).then(|| self.0.insert(token, expiry, weight)).map(|()| 0)
    }

    fn extend(&mut self, token: &Token, expiry: i64, _: i64) {
        self.0.extend(token, expiry);
    }

    fn forget(&mut self, token: &Token) -> bool {
        self.0.remove(token)
    }

    fn soonest(&mut self, now: i64) -> i64 {
        self.0.soonest(now)
    }

    fn head(&self, queue: &Queue, _: &mut bool, now: i64) -> Option<Token> {
        queue.first(now).cloned()
    }

    fn is_idle(&self, now: i64) -> bool {
        self.0.have_ended(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_a_permit_has_a_weight_and_a_limit() {
        for (ending, read) in [
            ("2/5", Some((2, 5))),
            ("2/5/1.2.3", Some((2, 5))),
            ("/5", None),
            ("2/", None),
            ("2", None),
            ("idle", None),
        ] {
            assert_eq!(size(&format!("0123456789abcdef-1/{ending}").into()), read, "{ending}");
        }
    }
}
