//! Wake-ups: what is granted to a waiter is pushed to the process that it waits in.
//!
//! Each store has a process of its own name, by which it is told apart from all others, and gives numbers to its
//! waiters, none of them twice. A waiter [listens](Notifier::listen) before it asks, since the push may come before
//! the answer.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{oneshot, watch};

use super::in_memory::lock;

/// What was granted to a waiter of this process; or, without an expiry, that it and those who follow are to ask anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) number: u64,
    /// By the server's clock, µs; 0: nothing was granted.
    pub(crate) expiry: i64,
    pub(crate) fence: i64,
    /// Who waited right behind it here: it is to be handed on to them.
    pub(crate) followers: Vec<u64>,
    /// Where nothing was granted: all there is to know instead.
    pub(crate) told: Option<Arc<[u8]>>,
}

impl Push {
    /// Reads `expiry fence number followers…`, and on another line what is told.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = text.splitn(2, |byte| *byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let mut numbers = first.split(' ').map(|number| number.parse::<i64>().ok());
        Some(Self {
            expiry: numbers.next()??,
            fence: numbers.next()??,
            number: numbers.next()??.unsigned_abs(),
            followers: numbers.map(|number| number.map(i64::unsigned_abs)).collect::<Option<_>>()?,
            told: lines.next().map(Arc::from),
        })
    }
}

/// What a waiter hears.
#[derive(Debug)]
pub(crate) enum Woken {
    Granted {
        /// By the server's clock, µs.
        expiry: i64,
        fence: i64,
        line: HandOff,
    },
    /// Something was handed on to it within the process.
    Handed(Box<dyn Any + Send>),
    /// Its place is gone: it is to ask anew.
    Gone,
    /// Its place is gone, and this is all there is to know.
    Told(Arc<[u8]>),
}

/// Those of one process to whom something is handed on in turn. If it is dropped, those left hear that they have
/// lost their places.
#[derive(Debug)]
pub(crate) struct HandOff {
    numbers: VecDeque<u64>,
    notifier: Weak<Notifier>,
}

impl HandOff {
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.numbers.iter().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Takes the first who still listens.
    pub(crate) fn next(&mut self) -> Option<Next> {
        let notifier = self.notifier.upgrade()?;
        while let Some(number) = self.numbers.pop_front() {
            if let Some(sender) = lock(&notifier.waiting).remove(&number)
                && !sender.is_closed()
            {
                return Some(Next { number, sender });
            }
        }
        None
    }
}

impl Drop for HandOff {
    fn drop(&mut self) {
        while let Some(next) = self.next() {
            next.wake(Woken::Gone);
        }
    }
}

/// The next in a line.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) number: u64,
    sender: oneshot::Sender<Woken>,
}

impl Next {
    /// Where it has gone away, what it should have heard is dropped.
    pub(crate) fn wake(self, woken: Woken) {
        let _ = self.sender.send(woken);
    }
}

/// Those of one store who wait for a push.
#[derive(Debug)]
pub(crate) struct Notifier {
    process: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Woken>>>,
    link: watch::Sender<Link>,
    #[cfg(test)]
    delivered: Mutex<Vec<Push>>,
}

/// Whether pushes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Those who wait must ask.
    Down,
    /// They do. Counted, since between two links some may have been missed.
    Up(u64),
}

/// How many characters name a process.
const PROCESS: usize = 16;

impl Notifier {
    pub(crate) fn new(link: Link) -> Self {
        // The seeds of the standard hasher are random and differ from each other.
        let process = format!("{:016x}", RandomState::new().build_hasher().finish());
        Self {
            process,
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
            link: watch::Sender::new(link),
            #[cfg(test)]
            delivered: Mutex::default(),
        }
    }

    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Pushes arrive from now on.
    pub(super) fn relink(&self) {
        self.link.send_replace(Link::Up(self.number()));
    }

    /// Pushes no longer arrive.
    pub(super) fn unlink(&self) {
        self.link.send_replace(Link::Down);
    }

    /// Waits for the push to a number.
    pub(crate) fn listen(self: &Arc<Self>, number: u64) -> Listener {
        let (sender, push) = oneshot::channel();
        lock(&self.waiting).insert(number, sender);
        Listener { notifier: Arc::clone(self), number, push }
    }

    /// Hands a push to whom it is for. Where nobody listens any more, whoever went away has seen to it.
    pub(crate) fn deliver(self: &Arc<Self>, push: Push) {
        #[cfg(test)]
        lock(&self.delivered).push(push.clone());
        let Push { number, expiry, fence, followers, told } = push;
        let mut line = HandOff { numbers: followers.into(), notifier: Arc::downgrade(self) };
        if expiry == 0 {
            line.numbers.push_front(number);
            while let Some(told) = &told
                && let Some(next) = line.next()
            {
                next.wake(Woken::Told(Arc::clone(told)));
            }
            // Where nothing is told, the line tells those in it that their places are gone.
            return;
        }
        let listener = lock(&self.waiting).remove(&number);
        if let Some(listener) = listener {
            let _ = listener.send(Woken::Granted { expiry, fence, line });
        }
    }

    /// All that was delivered so far.
    #[cfg(test)]
    pub(crate) fn take_delivered(&self) -> Vec<Push> {
        std::mem::take(&mut lock(&self.delivered))
    }
}

/// The name of the process in a token.
pub(crate) fn process_of(token: &str) -> &str {
    token.get(..PROCESS).unwrap_or(token)
}

/// The number in a token: hexadecimal digits behind the name of the process and a sign.
pub(crate) fn number_of(token: &str) -> Option<u64> {
    Some(hex(token.get(PROCESS + 1..)?)?.0)
}

/// The span in a token, µs: hexadecimal digits behind its number and a dot.
pub(crate) fn span_of(token: &str) -> Option<i64> {
    let (_, rest) = hex(token.get(PROCESS + 1..)?)?;
    i64::try_from(hex(rest.strip_prefix('.')?)?.0).ok()
}

/// The number that a text begins with, and the rest.
fn hex(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
    Some((u64::from_str_radix(&text[..end], 16).ok()?, &text[end..]))
}

/// One who waits for a push; listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    notifier: Arc<Notifier>,
    number: u64,
    push: oneshot::Receiver<Woken>,
}

impl Listener {
    /// What there is to hear. Cancel safe.
    pub(crate) async fn heard(&mut self) -> Woken {
        match (&mut self.push).await {
            Ok(woken) => woken,
            // Not while it is among those who listen.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.notifier.waiting).remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_out_of_tokens() {
        assert_eq!(number_of("0123456789abcdef+1f"), Some(0x1f));
        assert_eq!(number_of("0123456789abcdef-0/2/5"), Some(0));
        assert_eq!(number_of("0123456789abcdef+a:b"), Some(10));
        for none in ["", "0123456789abcdef", "0123456789abcdef+", "0123456789abcdef+/1/1", "äääääääääääää"]
        {
            assert_eq!(number_of(none), None, "{none:?}");
        }
    }

    #[test]
    fn only_messages_are_read() {
        let push = Push { expiry: 77, fence: 3, number: 5, followers: vec![6, 9], told: None };
        assert_eq!(Push::parse(b"77 3 5 6 9"), Some(push));
        let told =
            Push { number: 5, expiry: 0, fence: 0, followers: vec![6], told: Some(b"a\nb"[..].into()) };
        assert_eq!(Push::parse(b"0 0 5 6\na\nb"), Some(told));
        for nonsense in [&b""[..], b"77 3", b"77 3 x", b"77 3 5 ", b"\xff"] {
            assert_eq!(Push::parse(nonsense), None);
        }
    }

    #[tokio::test]
    async fn a_line_that_is_dropped_tells_those_in_it() {
        let notifier = Arc::new(Notifier::new(Link::Down));
        let mut follower = notifier.listen(1);
        // Number 0 listens no longer.
        notifier.deliver(Push { number: 0, expiry: 77, fence: 3, followers: vec![1], told: None });
        assert!(matches!(follower.heard().await, Woken::Gone));
    }

    #[tokio::test]
    async fn a_push_reaches_who_listens_and_nobody_else() {
        let notifier = Arc::new(Notifier::new(Link::Down));
        let mut first = notifier.listen(notifier.number());
        let second = notifier.listen(notifier.number());
        notifier.deliver(Push::parse(b"77 3 0").unwrap());
        assert!(matches!(first.heard().await, Woken::Granted { expiry: 77, fence: 3, .. }));
        assert!(lock(&notifier.waiting).contains_key(&1));
        drop(second);
        assert!(lock(&notifier.waiting).is_empty());
    }
}
