//! The holders of permits in the in-memory store. It does the same as `lua/permits.lua`.

use std::convert::Infallible;

use crate::lease::holders::Ends;
use crate::lease::kind::{At, Completing, Entered, Holders, Kind, Look, Outcome};
use crate::lease::order::{Flow, Order};
use crate::lease::queue::Queue;
use crate::lease::settings::CallerSettings;
use crate::lease::token::{Ending, Token};
use crate::store::operation::{Arguments, Field, Garbled};

/// The rank of tokens that wait until no permit is held.
pub(super) const IDLE: i64 = 8;

/// The kind of lease of which several can be held at once, up to a limit.
#[derive(Clone, Debug)]
pub(crate) enum Permits {}

impl Kind for Permits {
    type Holders = PermitHolders;
    type Outcome = Tells;
    const PARTS: &'static [&'static str] = &[
        "permits:holders",
        "permits:flows",
        "permits:waiters",
        "permits:beats",
    ];
    const NAME: &'static str = "permits";
    const PIECES: &'static [&'static str] = &["permits", "settings", "flows", "turns"];
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

/// Permits have no outcomes. Each acquire carries the settings that may change while it waits.
#[derive(Clone, Debug)]
pub(crate) enum Tells {}

impl Outcome<PermitHolders> for Tells {
    const KEPT: bool = false;
    // A waiter may be refused.
    const HEARS: bool = true;
    type Scope = ();
    type Query = CallerSettings;
    type Found = Infallible;
    type Entry = Infallible;

    fn told(query: &CallerSettings) -> Option<&CallerSettings> {
        Some(query)
    }

    fn write_scope((): &(), _: &mut Arguments<'_>) {}

    fn write_query(query: &CallerSettings, call: &mut Arguments<'_>) {
        call.text(query.text().into());
    }

    fn write_entry(entry: &Infallible, _: &mut Arguments<'_>) {
        match *entry {}
    }

    fn decode(_: Field<'_>) -> Result<Infallible, Garbled> {
        Err(Garbled(
            "the script replied with an outcome for permits, which keep none",
        ))
    }

    fn look(_: &PermitHolders, (): &(), _: &CallerSettings, _: bool, _: i64) -> Look<Infallible> {
        Look::Open(None)
    }

    fn enter(
        _: &mut PermitHolders,
        (): &(),
        entry: &Infallible,
        _: Completing,
        _: i64,
    ) -> Result<Entered, Infallible> {
        match *entry {}
    }
}

/// The weight and the limit in a token. `None` for a token that waits until no permit is held.
pub(super) fn size(token: &Token) -> Option<(i64, i64)> {
    let mut numbers = [0_i64; 2];
    let mut nth = 0;
    let mut digits = 0;
    let text = match token.ending() {
        Ok(Ending::Permit { weight, limit }) => return Some((weight.into(), limit.into())),
        Ok(_) => return None,
        Err(text) => text,
    };
    for byte in text.bytes() {
        match byte {
            b'/' if nth == 1 && digits > 0 => break, // then comes its order
            b'0'..=b'9' => {
                numbers[nth] = numbers[nth]
                    .checked_mul(10)?
                    .checked_add(i64::from(byte - b'0'))?;
                digits += 1;
            }
            b'/' if nth == 0 && digits > 0 => (nth, digits) = (1, 0),
            _ => return None,
        }
    }
    (nth == 1 && digits > 0).then_some((numbers[0], numbers[1]))
}

/// The part of a token after its limit.
fn order(token: &Token) -> Order {
    let ending = token.ending().err();
    let Some(text) = ending.and_then(|ending| ending.splitn(3, '/').nth(2)) else {
        return Order::ARRIVAL;
    };
    let mut parts = text.split('.');
    let (Some(name), Some(share), Some(reserve), Some(bound), None) = (
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
        parts.next(),
    ) else {
        return Order::ARRIVAL;
    };
    let is_hex = |text: &&str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if ![name, share, reserve, bound].iter().all(is_hex) {
        return Order::ARRIVAL;
    }
    let read = |text: &str| i64::from_str_radix(text, 16).unwrap_or(i64::MAX);
    let name = u128::from_str_radix(name, 16)
        .ok()
        .filter(|_| name.len() <= 32 && !share.is_empty());
    let weight = size(token).map_or(1, |(weight, _)| weight);
    let flow = name.map(|name| Flow {
        name,
        share: read(share).max(1),
        weight,
    });
    let number = |text: &str| (!text.is_empty()).then(|| read(text).min(u32::MAX.into()));
    Order {
        flow,
        reserve: number(reserve).unwrap_or(0),
        bound: number(bound),
    }
}

fn limit_for(
    token: &Token,
    limit: i64,
    At {
        rank,
        settings,
        now,
    }: At<'_>,
) -> i64 {
    settings.limit_for(&order(token), rank, limit, now)
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

    fn fits(&self, token: &Token, of: At<'_>) -> bool {
        match size(token) {
            None => self.used() == 0,
            // If the weight is above the limit, the permit is held alone.
            Some((weight, limit)) => {
                let limit = limit_for(token, limit, of);
                limit > 0 && (self.used() == 0 || self.used() + weight <= limit)
            }
        }
    }

    fn is_closed(token: &Token, of: At<'_>) -> bool {
        size(token).is_some_and(|(_, limit)| limit_for(token, limit, of) == 0)
    }

    fn weight(token: &Token) -> i64 {
        Permits::weight(token)
    }

    fn counted(queue: &Queue, rank: i64) -> i64 {
        // Waiters of the last rank take no permit.
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

    fn granted(&mut self, token: &Token) {
        self.0.granted(token);
    }

    fn is_granted(&self, token: &Token) -> bool {
        self.0.is_granted(token)
    }

    fn confirm(&mut self, token: &Token) {
        self.0.confirm(token);
    }

    fn lapsed(&mut self) -> Vec<(Token, i64)> {
        self.0.lapsed()
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

    fn head(&self, queue: &mut Queue, _: &mut bool, now: i64) -> Option<Token> {
        queue.first(now)
    }

    fn is_idle(&self, now: i64) -> bool {
        self.0.have_ended(now)
    }
}
