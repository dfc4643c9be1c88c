//! Wake-ups: a grant is pushed to the process of its waiter.
//!
//! Each store has a unique random process name. A recipient of pushes [joins](Notifier::join), and gives each of its
//! waiters an [id](Ids::next). An id is never used twice, and it identifies its recipient. So a push reaches its
//! recipient even if the future of the waiter is not polled.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// The upper bound of times (µs) and fences: larger integers are not exact in Lua.
pub(crate) const END: i64 = 1 << 53;

/// A message for waiters of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    /// The ids of the waiters.
    pub(crate) ids: Vec<u64>,
    pub(crate) news: PushKind,
}

/// The content of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PushKind {
    /// The waiter holds the lease until `expiry`, in µs of the server's clock.
    Granted { expiry: i64, fence: i64 },
    /// The waiter lost its place in the queue and must acquire again. Or the lease of a holder was revoked, and the
    /// holder must look it up.
    Gone,
    /// The waiter left the queue. The bytes are its final reply.
    Told(Arc<[u8]>),
    /// The waiter lost its place, and is refused.
    Refused(Refusal),
}

/// Why a waiter is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue is full, and this waiter was in the longest line.
    QueueFull,
    /// The limit is 0.
    Closed,
}

impl Push {
    /// Parses `expiry fence ids…`, optionally followed by a line break and the bytes of [`PushKind::Told`]. An `expiry`
    /// of 0 means that nothing was granted, and its fence is then the reason: 1 and 2 are refusals. The ids are
    /// hexadecimal, as in tokens. Any client with the permission to publish can send arbitrary messages: numbers that
    /// cannot be times or fences are rejected.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = text.splitn(2, |byte| *byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let mut words = first.split(' ');
        let number = |word: &str| word.parse().ok().filter(|number| (0..END).contains(number));
        let expiry = number(words.next()?)?;
        let fence = number(words.next()?)?;
        let ids: Vec<_> = words
            .map(|id| Some(hex(id).filter(|(_, rest)| rest.is_empty())?.0))
            .collect::<Option<_>>()?;
        let news = match (expiry, lines.next()) {
            (0, None) => match fence {
                1 => PushKind::Refused(Refusal::QueueFull),
                2 => PushKind::Refused(Refusal::Closed),
                _ => PushKind::Gone,
            },
            (0, Some(told)) => PushKind::Told(told.into()),
            _ => PushKind::Granted { expiry, fence },
        };
        (!ids.is_empty()).then_some(Self { ids, news })
    }
}

/// Receives pushes for its waiters.
pub(crate) trait Recipient: Send + Sync {
    /// Handles a push to one of the waiters. If the waiter no longer waits, the code that removed it has handled its
    /// grant.
    fn hear(self: Arc<Self>, id: u64, news: PushKind);
}

/// Receives the messages that are sent to all processes.
pub(crate) trait Listener: Send + Sync {
    fn hear(&self, message: &[u8]);
}

/// Distributes the pushes to one process.
pub(crate) struct Notifier {
    number: u64,
    process: String,
    next: Arc<AtomicU64>,
    recipients: Mutex<HashMap<u64, Weak<dyn Recipient>>>,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    link: watch::Sender<Link>,
    links: AtomicU64,
    /// Since when pushes arrive, by the clock of leases. Only valid while they arrive.
    since: Mutex<Instant>,
    #[cfg(test)]
    delivered: Mutex<Vec<Push>>,
}

/// Creates the ids of a recipient's waiters.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    recipient: u64,
    /// Shared by all recipients of a process.
    next: Arc<AtomicU64>,
}

/// The maximum number of recipients in a process. It is above the number of namespaces that a process can use.
const RECIPIENTS: u64 = 1 << 20;

impl Ids {
    /// Returns an id that was never used, even if the number of this recipient was used before. After 2^44 ids, which
    /// at 20 000 a second takes 28 years, the first ones are used again: their waiters have left by then.
    pub(crate) fn next(&self) -> u64 {
        (self.next.fetch_add(1, Ordering::Relaxed) << RECIPIENTS.ilog2()) | self.recipient
    }
}

/// Whether pushes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Pushes do not arrive: waiters must poll.
    Down,
    /// Pushes arrive. The number differs for each subscription, because pushes may be missed between two of them.
    Up(u64),
}

/// The name of the channel to all processes.
pub(crate) const ALL: &str = "all";

impl Notifier {
    pub(crate) fn new(link: Link) -> Self {
        let number = clock::bits();
        Self {
            number,
            process: format!("{number:016x}"),
            next: Arc::default(),
            recipients: Mutex::default(),
            listeners: Mutex::default(),
            link: watch::Sender::new(link),
            links: AtomicU64::new(1),
            since: Mutex::new(clock::now()),
            #[cfg(test)]
            delivered: Mutex::default(),
        }
    }

    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    /// The name of the process as a number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Creates a recipient and registers it until it is dropped.
    pub(crate) fn join<R: Recipient + 'static>(&self, make: impl FnOnce(Ids) -> Arc<R>) -> Arc<R> {
        let mut recipients = lock(&self.recipients);
        recipients.retain(|_, recipient| recipient.strong_count() > 0);
        let number = (0..RECIPIENTS)
            .find(|number| !recipients.contains_key(number))
            .unwrap_or(0);
        let made = make(Ids {
            recipient: number,
            next: Arc::clone(&self.next),
        });
        let recipient: Weak<dyn Recipient> = Arc::<R>::downgrade(&made);
        recipients.insert(number, recipient);
        made
    }

    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(crate) fn current_link(&self) -> Link {
        *self.link.borrow()
    }

    /// Returns whether pushes may have been missed since a time, even if they arrive now.
    pub(crate) fn may_have_missed(&self, since: Instant) -> bool {
        *lock(&self.since) > since
    }

    /// Records that pushes arrive from now on.
    pub(super) fn relink(&self) {
        *lock(&self.since) = clock::now();
        self.link
            .send_replace(Link::Up(self.links.fetch_add(1, Ordering::Relaxed)));
    }

    /// Records that pushes no longer arrive.
    pub(super) fn unlink(&self) {
        self.link.send_replace(Link::Down);
    }

    /// Passes a push to its recipients.
    pub(crate) fn deliver(&self, push: Push) {
        #[cfg(test)]
        lock(&self.delivered).push(push.clone());
        for id in push.ids {
            let recipient = lock(&self.recipients)
                .get(&(id % RECIPIENTS))
                .and_then(Weak::upgrade);
            if let Some(recipient) = recipient {
                recipient.hear(id, push.news.clone());
            }
        }
    }

    /// Registers a listener for messages to all processes until it is dropped.
    pub(crate) fn listen<T: Listener + 'static>(&self, listener: &Arc<T>) {
        let listener: Weak<dyn Listener> = Arc::<T>::downgrade(listener);
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Passes a message to all listeners.
    pub(crate) fn broadcast(&self, message: &[u8]) {
        let listeners: Vec<_> = lock(&self.listeners)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        listeners.iter().for_each(|listener| listener.hear(message));
    }

    /// Skips all ids before the `nth` of each recipient.
    #[cfg(test)]
    pub(crate) fn skip_ids(&self, nth: u64) {
        self.next.store(nth, Ordering::Relaxed);
    }

    /// Whether pushes were delivered since the last call of [`take_delivered`](Self::take_delivered).
    #[cfg(test)]
    pub(crate) fn was_delivered(&self) -> bool {
        !lock(&self.delivered).is_empty()
    }

    /// Returns all pushes since the last call.
    #[cfg(test)]
    pub(crate) fn take_delivered(&self) -> Vec<Push> {
        std::mem::take(&mut lock(&self.delivered))
    }
}

/// Splits off the hexadecimal number at the beginning of a text.
pub(crate) fn hex(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_hexdigit())
        .unwrap_or(text.len());
    Some((u64::from_str_radix(&text[..end], 16).ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_are_read() {
        let push = |ids: &[u64], news| {
            Some(Push {
                ids: ids.to_vec(),
                news,
            })
        };
        assert_eq!(
            Push::parse(b"77 3 5"),
            push(
                &[5],
                PushKind::Granted {
                    expiry: 77,
                    fence: 3
                }
            )
        );
        assert_eq!(Push::parse(b"0 0 5 6"), push(&[5, 6], PushKind::Gone));
        assert_eq!(
            Push::parse(b"0 1 5"),
            push(&[5], PushKind::Refused(Refusal::QueueFull))
        );
        assert_eq!(
            Push::parse(b"0 2 5 6"),
            push(&[5, 6], PushKind::Refused(Refusal::Closed))
        );
        assert_eq!(Push::parse(b"0 3 5"), push(&[5], PushKind::Gone));
        assert_eq!(
            Push::parse(b"0 0 5 6\na\nb"),
            push(&[5, 6], PushKind::Told(b"a\nb"[..].into()))
        );
        assert_eq!(
            Push::parse(b"0 0 10 ffffffffffffffff"),
            push(&[16, u64::MAX], PushKind::Gone)
        );
        let nonsense = "|77 3|77 3 x|77 3 5 |77 3 +5|0 0 10000000000000000|-1 3 5|-9223372036854775808 0 5|\
            9007199254740992 0 5|77 -1 5";
        for text in nonsense.split('|') {
            assert_eq!(Push::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Push::parse(b"\xff"), None);
    }

    struct Heard(Ids, Mutex<Vec<(u64, PushKind)>>);

    impl Recipient for Heard {
        fn hear(self: Arc<Self>, id: u64, news: PushKind) {
            lock(&self.1).push((id, news));
        }
    }

    #[test]
    fn a_push_reaches_its_recipient_and_nobody_else() {
        let notifier = Notifier::new(Link::Down);
        let join = || notifier.join(|ids| Arc::new(Heard(ids, Mutex::default())));
        let (first, second) = (join(), join());
        let (one, other) = (first.0.next(), second.0.next());
        notifier.deliver(Push {
            ids: vec![one, other, one],
            news: PushKind::Gone,
        });
        assert_eq!(
            *lock(&first.1),
            [(one, PushKind::Gone), (one, PushKind::Gone)]
        );
        assert_eq!(*lock(&second.1), [(other, PushKind::Gone)]);
        drop(second);
        let third = join();
        notifier.deliver(Push {
            ids: vec![other],
            news: PushKind::Gone,
        });
        assert!(third.0.next() != other, "an id that was given before");
        assert_eq!(
            third.0.recipient,
            other % RECIPIENTS,
            "the number is free again"
        );
    }

    impl Listener for Mutex<Vec<Vec<u8>>> {
        fn hear(&self, message: &[u8]) {
            lock(self).push(message.to_vec());
        }
    }

    #[test]
    fn all_that_listen_hear_a_message() {
        let notifier = Notifier::new(Link::Down);
        let listen = || {
            let listener = Arc::<Mutex<Vec<Vec<u8>>>>::default();
            notifier.listen(&listener);
            listener
        };
        let (first, dropped) = (listen(), listen());
        drop(dropped);
        let last = listen();
        assert_eq!(
            lock(&notifier.listeners).len(),
            2,
            "those that are gone are forgotten"
        );
        notifier.broadcast(b"x");
        assert_eq!(
            [&first, &last].map(|listener| lock(listener).clone()),
            [[b"x"], [b"x"]]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pushes_are_missed_until_they_arrive_again() {
        const LATER: std::time::Duration = std::time::Duration::from_secs(1);
        let notifier = Notifier::new(Link::Down);
        let made = clock::now();
        assert!(!notifier.may_have_missed(made + LATER));
        tokio::time::advance(2 * LATER).await;
        notifier.relink();
        assert!(matches!(notifier.current_link(), Link::Up(_)));
        assert!(
            notifier.may_have_missed(made + LATER) && !notifier.may_have_missed(made + 3 * LATER)
        );
        notifier.unlink();
        assert_eq!(notifier.current_link(), Link::Down);
    }
}
