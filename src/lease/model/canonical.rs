//! When two worlds are equal: times are relative to now, fences count by their order, and lines without a difference
//! can be swapped. So clocks may run without bound, and the number of states is finite.

use std::hash::{Hash, Hasher};

use tokio::time::Instant;

use crate::lease::key_state::Position;
use crate::lease::model::Modelled;
use crate::lease::model::client::Client;
use crate::lease::model::properties::NOTED;
use crate::lease::model::rules::{Flaw, TICK};
use crate::lease::model::server::Verb;
use crate::lease::model::world::{Message, What, World, in_ticks};
use crate::lease::process::entry::Stage;
use crate::lease::queue::{BEHIND, Queue};
use crate::store::notifier::PushKind;
use crate::store::validity::Anchor;

/// A state in numbers.
type Form = Vec<i16>;

impl<H: Modelled> Hash for World<H> {
    fn hash<S: Hasher>(&self, hasher: &mut S) {
        self.form().hash(hasher);
    }
}

impl<H: Modelled> PartialEq for World<H> {
    fn eq(&self, other: &Self) -> bool {
        self.form() == other.form()
    }
}

/// Numbers that are too large are equal, such as the remaining time of a tombstone that never ends.
fn number(number: i64) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

impl<H: Modelled> World<H> {
    fn form(&self) -> Form {
        let fences = self.fences();
        let mut lines: Vec<Form> = (0..self.clients.len())
            .map(|line| self.line_form(line, &fences))
            .collect();
        if (0..lines.len()).all(|line| self.rules.process(line) == Some(line)) {
            lines.sort_unstable();
        }
        let mut form = lines.concat();
        let (server, seen) = (&self.server, &self.seen);
        let ahead = in_ticks(self.next_fence() - server.now).max(0);
        form.extend([
            number(ahead),
            self.rank(&fences, self.next_fence()),
            self.rank(&fences, seen.fence),
        ]);
        form.extend([
            self.rank(&fences, server.fence),
            number(server.state.holders.row()),
        ]);
        form.extend([self.again, self.crashes, self.evictions].map(i16::from));
        form.push(number(
            in_ticks(server.state.kept_until - server.now).max(0),
        ));
        if self.rules.newest > 0 {
            let known = server
                .state
                .queue
                .waits(0)
                .filter(|_| server.state.queue.has_places());
            let waited = |since: i64| in_ticks(server.now - since).min(self.rules.newest);
            form.extend([known, server.seen.waits].map(|since| number(since.map_or(-1, waited))));
        }
        let flags = [
            server.entered,
            server.seen.aged,
            server.seen.newest,
            self.jumps,
        ];
        form.extend(flags.map(i16::from));
        form.extend(NOTED.map(|property| i16::from(self.keeps(property))));
        form
    }

    /// Returns the fence of the next grant.
    fn next_fence(&self) -> i64 {
        let mut holders = self.server.state.holders.clone();
        for token in self.rules.tokens() {
            holders.forget(self.rules.name(token));
        }
        // The fence of an exclusive holder, if the setting has one.
        let alone = self
            .rules
            .tokens()
            .max_by_key(|token| self.rules.of(*token).weight)
            .unwrap_or(0);
        holders.hold(
            self.rules.name(alone),
            0,
            self.server.now,
            &Queue::default(),
        )
    }

    /// Returns all fences that may still be observed, in order.
    fn fences(&self) -> Vec<i64> {
        if !H::FENCED {
            return Vec::new();
        }
        let mut fences = vec![self.next_fence(), self.server.fence, self.seen.fence];
        fences.extend(
            self.clients
                .iter()
                .filter_map(|client| client.held.as_ref())
                .map(|held| held.fence),
        );
        for Message { what, .. } in &self.messages {
            match what {
                What::Reply {
                    standing: Position::Held { fence, .. },
                    ..
                }
                | What::Push(PushKind::Granted { fence, .. }) => fences.push(*fence),
                _ => {}
            }
        }
        fences.sort_unstable();
        fences.dedup();
        fences
    }

    fn rank(&self, fences: &[i64], fence: i64) -> i16 {
        fences
            .iter()
            .position(|other| *other == fence)
            .map_or(-1, |rank| number(rank as i64))
    }

    /// The form of a line, with its state on the server and its messages.
    fn line_form(&self, line: usize, fences: &[i64]) -> Form {
        let client = &self.clients[line];
        let Client {
            tokens,
            asker,
            held,
            crashed,
            ..
        } = client;
        let mut form = vec![number(tokens.party.asks as i64), i16::from(*crashed)];
        let seats = &self.rules.seats;
        let first = seats.iter().position(|seat| seat.line == line).unwrap_or(0);
        for seat in (0..seats.len()).filter(|seat| seats[*seat].line == line) {
            let of = seats[seat];
            let place = self
                .waiting
                .iter()
                .filter(|other| seats[**other].process == of.process);
            let place = place
                .clone()
                .position(|other| *other == seat)
                .map_or(-1, |place| place as i64);
            let flags = (self.came >> seat & 1) + 2 * (self.stalled >> seat & 1);
            form.extend([of.ttl, of.weight, of.rank, of.flow, flags.into(), place].map(number));
        }
        let token = |token: usize| number((token - first * self.rules.asks) as i64);
        if let Some((own, entry)) = client.entry() {
            form.push(token(own));
            form.extend(
                entry
                    .line
                    .iter()
                    .map(|waiter| number((waiter.seat - first) as i64)),
            );
            form.push(-1);
            let can_hand_over = entry.line.clone().hand_over(self.local).is_some();
            match &entry.stage {
                Stage::Acquiring {
                    in_background,
                    failed,
                    early,
                } => {
                    let asker = asker
                        .filter(|_| !in_background)
                        .map_or(-1, |seat| number((seat - first) as i64));
                    let flags = [*in_background, *failed, *early].map(i16::from);
                    form.extend([1000 + flags[0] + 2 * flags[1] + 4 * flags[2], asker]);
                }
                Stage::Held(held) => {
                    form.push(1010 + i16::from(can_hand_over));
                    form.push(held.offered.map_or(-1, |since| self.age(since)));
                }
                Stage::Queued { anchor, .. } => {
                    form.push(self.anchor(*anchor));
                    if self.rules.has(Flaw::PushCutAtAnchor) {
                        form.push(self.age(anchor.sent));
                    }
                }
            }
            form.push(i16::from(entry.twice));
        }
        form.push(-2);
        if let Some(held) = held {
            form.extend([token(held.token), number((held.seat - first) as i64)]);
            form.extend([
                self.until_form(held.validity.until()),
                self.rank(fences, held.fence),
            ]);
            form.push(i16::from(held.twice));
            form.extend([held.is_offered, held.by_push].map(i16::from));
        }
        form.push(-3);
        for own in self.rules.tokens_of(line) {
            self.token_form(own, &mut form);
        }
        let mut messages: Vec<Form> = Vec::new();
        for message in self
            .messages
            .iter()
            .filter(|message| self.rules.of(message.token).line == line)
        {
            let mut text = vec![token(message.token)];
            self.message_form(message, fences, &mut text);
            messages.push(text);
        }
        messages.sort_unstable();
        form.extend(messages.concat());
        form.push(-4);
        form
    }

    /// The form of a token on the server.
    fn token_form(&self, token: usize, form: &mut Form) {
        let (server, name) = (&self.server, self.rules.name(token));
        let (state, now) = (&server.state, server.now);
        let released = i16::from(server.released & (1 << token) != 0);
        let tombstone = state
            .tombstones
            .get(name)
            .map_or(0, |until| in_ticks(until - now));
        form.extend([released, number(tombstone)]);
        form.push(
            state
                .holders
                .held(name, now)
                .map_or(-1, |(expiry, _)| number(in_ticks(expiry - now))),
        );
        if state.queue.contains(name) || state.queue.has_place(name) {
            let until = state.queue.clone().leave(name).unwrap_or(0);
            let place = if state.queue.has_place(name) {
                state.queue.position(name)
            } else {
                -1
            };
            form.extend([number(in_ticks(until - now).max(0)), number(place)]);
            let is_behind = state.queue.rank_of(name) == Some(BEHIND);
            let has_lapsed = state.queue.has_lapsed(name, self.rules.alive * TICK, now);
            form.extend([is_behind, has_lapsed].map(i16::from));
            let (passed, since) = server.seen.of(token);
            let waited = since.map_or(0, |since| in_ticks(now - since).min(self.rules.aging));
            form.extend([number(passed), number(waited)]);
        }
        let seat = self.rules.of(token);
        if seat.flow == 0 && self.rules.seats.iter().any(|seat| seat.flow > 0) {
            form.push(number(state.queue.others_ahead(seat.rank)));
        }
        if seat.flow > 0 {
            form.push(number(state.queue.tag_ahead(seat.rank, seat.flow as u128)));
        }
    }

    fn message_form(&self, message: &Message, fences: &[i64], form: &mut Form) {
        match &message.what {
            What::Call {
                verb,
                sent,
                twice,
                latest,
            } => {
                let dated = !matches!(verb, Verb::Release | Verb::Withdraw);
                let sent = sent.map_or(-1, |sent| if dated { self.age(sent) } else { 0 });
                let latest = latest.map_or(-1, |latest| self.until_form(latest));
                form.extend([*verb as i16, i16::from(*twice), sent, latest]);
            }
            What::Reply {
                verb,
                anchor,
                standing,
                twice,
            } => {
                form.extend([10 + *verb as i16, i16::from(*twice)]);
                match standing {
                    Position::Held { expiry, fence } => {
                        let left = in_ticks(expiry - anchor.now);
                        let ttl = self.rules.of(message.token).ttl;
                        let cut = if self.rules.has(Flaw::BeliefIsNotCut) {
                            left
                        } else {
                            left.min(ttl)
                        };
                        let until = (cut - i64::from(self.age(anchor.sent))).max(0);
                        form.extend([number(until), self.rank(fences, *fence)]);
                        if self.rules.has(Flaw::ReplyValidFromArrival) {
                            form.push(number(left));
                        }
                    }
                    Position::Queued { .. } => form.push(self.anchor(*anchor)),
                    Position::Refused { .. } | Position::Withdrawn | Position::Done => {
                        form.push(1000)
                    }
                }
            }
            What::Push(news) => form.extend([20, self.news(news, fences)]),
        }
        form.push(-5);
    }

    fn news(&self, news: &PushKind, fences: &[i64]) -> i16 {
        match news {
            // An expired lease does not change any more.
            PushKind::Granted { expiry, fence } => {
                let left = in_ticks(expiry - self.server.now).max(-self.rules.longest());
                number(left) * 16 + self.rank(fences, *fence)
            }
            PushKind::Gone | PushKind::Told(_) | PushKind::Refused(_) => 1000,
        }
    }

    /// Returns how far the server's clock is ahead of the time that an anchor gives.
    fn anchor(&self, anchor: Anchor) -> i16 {
        let age =
            i64::try_from(self.local.duration_since(anchor.sent).as_micros()).unwrap_or(i64::MAX);
        number(in_ticks(age - (self.server.now - anchor.now)).min(self.rules.longest()))
    }

    /// Returns how long ago something was sent. Anything older than the longest lease counts as equally old.
    fn age(&self, sent: Instant) -> i16 {
        let age = i64::try_from(self.local.duration_since(sent).as_micros()).unwrap_or(i64::MAX);
        number((age / TICK).min(self.rules.longest()))
    }

    fn until_form(&self, until: Instant) -> i16 {
        number(self.left(until))
    }

    /// Drops the messages that no process handles any more.
    pub(super) fn prune(&mut self) {
        let Self {
            messages,
            clients,
            rules,
            ..
        } = self;
        let answers = rules.has(Flaw::HolderAnswersPush);
        messages.retain(|Message { token, what }| {
            let client = &clients[rules.of(*token).line];
            let entry = client.entry().filter(|(own, _)| own == token);
            let waits =
                entry.is_some_and(|(_, entry)| answers || !matches!(entry.stage, Stage::Held(_)));
            let holds = client
                .held
                .as_ref()
                .is_some_and(|held| held.token == *token);
            match what {
                What::Call { .. } => true,
                What::Reply {
                    verb: Verb::Renew, ..
                } => holds,
                What::Reply { .. } | What::Push(_) => waits,
            }
        });
    }
}
