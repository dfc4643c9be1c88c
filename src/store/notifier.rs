//! Wake-ups: what is granted to a waiter is pushed to the process that it waits in.
//!
//! Each store has a process of its own name, by which it is told apart from all others. Whoever has waiters
//! [joins](Notifier::join), and gives each an [id](Ids::next) that is never used twice, and that says whose it is. So a
//! push finds its recipient whether or not the waiter's future is polled.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use super::in_memory::lock;
use crate::random;

/// News for waiters of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    /// Whom it is for.
    pub(crate) ids: Vec<u64>,
    pub(crate) news: News,
}

/// What a waiter hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It holds, until `expiry` by the server's clock, µs.
    Granted { expiry: i64, fence: i64 },
    /// Its place is gone: it is to ask anew.
    Gone,
    /// Its place is gone, and this is all there is to know.
    Told(Arc<[u8]>),
}

impl Push {
    /// Reads `expiry fence ids…`, and on another line what is told. Without an expiry, nothing was granted.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = text.splitn(2, |byte| *byte == b'\n');
        let first = std::str::from_utf8(lines.next()?).ok()?;
        let mut numbers = first.split(' ').map(|number| number.parse::<i64>().ok());
        let (expiry, fence) = (numbers.next()??, numbers.next()??);
        let ids: Vec<_> = numbers.map(|id| id.map(i64::unsigned_abs)).collect::<Option<_>>()?;
        let news = match (expiry, lines.next()) {
            (0, None) => News::Gone,
            (0, Some(told)) => News::Told(told.into()),
            _ => News::Granted { expiry, fence },
        };
        (!ids.is_empty()).then_some(Self { ids, news })
    }
}

/// Has waiters.
pub(crate) trait Recipient: Send + Sync {
    /// Takes note of what one of them hears. Where it waits no longer, whoever took it away has seen to it.
    fn hear(self: Arc<Self>, id: u64, news: News);
}

/// Hears what is told to all processes.
pub(crate) trait Listener: Send + Sync {
    fn hear(&self, message: &[u8]);
}

/// Where pushes for one process arrive.
pub(crate) struct Notifier {
    process: String,
    next: Arc<AtomicU64>,
    recipients: Mutex<HashMap<u64, Weak<dyn Recipient>>>,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    link: watch::Sender<Link>,
    links: AtomicU64,
    #[cfg(test)]
    delivered: Mutex<Vec<Push>>,
}

/// The ids that a recipient gives.
#[derive(Debug)]
pub(crate) struct Ids {
    recipient: u64,
    /// Shared by all of a process.
    next: Arc<AtomicU64>,
}

/// So many recipients a process has at most: more than it can have namespaces in use.
const RECIPIENTS: u64 = 1 << 20;

impl Ids {
    /// An id that was never given, whoever had the number of this recipient before.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) * RECIPIENTS + self.recipient
    }
}

/// Whether pushes arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Those who wait must ask.
    Down,
    /// They do. Counted, since between two links some may have been missed.
    Up(u64),
}

/// What stands for all processes in the name of a channel.
pub(crate) const ALL: &str = "all";

/// How many characters name a process.
const PROCESS: usize = 16;

impl Notifier {
    pub(crate) fn new(link: Link) -> Self {
        let process = format!("{:016x}", random::bits());
        Self {
            process,
            next: Arc::default(),
            recipients: Mutex::default(),
            listeners: Mutex::default(),
            link: watch::Sender::new(link),
            links: AtomicU64::new(1),
            #[cfg(test)]
            delivered: Mutex::default(),
        }
    }

    pub(crate) fn process(&self) -> &str {
        &self.process
    }

    /// Makes a recipient, which lives as long as somebody else holds it.
    pub(crate) fn join<R: Recipient + 'static>(&self, make: impl FnOnce(Ids) -> Arc<R>) -> Arc<R> {
        let mut recipients = lock(&self.recipients);
        recipients.retain(|_, recipient| recipient.strong_count() > 0);
        let number = (0..RECIPIENTS).find(|number| !recipients.contains_key(number)).unwrap_or(0);
        let made = make(Ids { recipient: number, next: Arc::clone(&self.next) });
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

    /// Pushes arrive from now on.
    pub(super) fn relink(&self) {
        self.link.send_replace(Link::Up(self.links.fetch_add(1, Ordering::Relaxed)));
    }

    /// Pushes no longer arrive.
    pub(super) fn unlink(&self) {
        self.link.send_replace(Link::Down);
    }

    /// Hands a push to whom it is for.
    pub(crate) fn deliver(&self, push: Push) {
        #[cfg(test)]
        lock(&self.delivered).push(push.clone());
        for id in push.ids {
            let recipient = lock(&self.recipients).get(&(id % RECIPIENTS)).and_then(Weak::upgrade);
            if let Some(recipient) = recipient {
                recipient.hear(id, push.news.clone());
            }
        }
    }

    /// Has what is told to all processes heard as long as somebody else holds the listener.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Hands on what is told to all processes.
    pub(crate) fn broadcast(&self, message: &[u8]) {
        let listeners: Vec<_> = lock(&self.listeners).iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.hear(message));
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

/// The id in a token: hexadecimal digits behind the name of the process and a dash.
pub(crate) fn id_of(token: &str) -> Option<u64> {
    Some(hex(behind_process(token)?)?.0)
}

fn behind_process(token: &str) -> Option<&str> {
    let (process, rest) = token.split_at_checked(PROCESS)?;
    process.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| rest.strip_prefix('-'))?
}

/// The time to live in a token, µs: hexadecimal digits behind its id and a dot.
pub(crate) fn ttl_of(token: &str) -> Option<i64> {
    let (_, rest) = hex(behind_process(token)?)?;
    i64::try_from(hex(rest.strip_prefix('.')?)?.0).ok()
}

/// The number that a text begins with, and the rest.
fn hex(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
    Some((u64::from_str_radix(&text[..end], 16).ok()?, &text[end..]))
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("process", &self.process).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_times_to_live_are_read_out_of_tokens() {
        assert_eq!(id_of("0123456789abcdef-1f"), Some(0x1f));
        assert_eq!(id_of("0123456789abcdef-0.a/2/5"), Some(0));
        assert_eq!(id_of("0123456789abcdef-a:b"), Some(10));
        assert_eq!(ttl_of("0123456789abcdef-0.a/2/5"), Some(10));
        let nonsense =
            ["", "0123456789abcdef", "0123456789abcdef-", "0123456789abcdef-/1/1", "äääääääääääää"];
        for none in nonsense.into_iter().chain(["billing-service--1.5", "0123456789abcdef:1.5"]) {
            assert_eq!((id_of(none), ttl_of(none)), (None, None), "{none:?}");
        }
    }

    #[test]
    fn only_messages_are_read() {
        let push = |ids: &[u64], news| Some(Push { ids: ids.to_vec(), news });
        assert_eq!(Push::parse(b"77 3 5"), push(&[5], News::Granted { expiry: 77, fence: 3 }));
        assert_eq!(Push::parse(b"0 0 5 6"), push(&[5, 6], News::Gone));
        assert_eq!(Push::parse(b"0 0 5 6\na\nb"), push(&[5, 6], News::Told(b"a\nb"[..].into())));
        for nonsense in [&b""[..], b"77 3", b"77 3 x", b"77 3 5 ", b"\xff"] {
            assert_eq!(Push::parse(nonsense), None);
        }
    }

    struct Heard(Ids, Mutex<Vec<(u64, News)>>);

    impl Recipient for Heard {
        fn hear(self: Arc<Self>, id: u64, news: News) {
            lock(&self.1).push((id, news));
        }
    }

    #[test]
    fn a_push_reaches_its_recipient_and_nobody_else() {
        let notifier = Notifier::new(Link::Down);
        let join = || notifier.join(|ids| Arc::new(Heard(ids, Mutex::default())));
        let (first, second) = (join(), join());
        let (one, other) = (first.0.next(), second.0.next());
        notifier.deliver(Push { ids: vec![one, other, one], news: News::Gone });
        assert_eq!(*lock(&first.1), [(one, News::Gone), (one, News::Gone)]);
        assert_eq!(*lock(&second.1), [(other, News::Gone)]);
        drop(second);
        let third = join();
        notifier.deliver(Push { ids: vec![other], news: News::Gone });
        assert!(third.0.next() != other, "an id that was given before");
    }
}
