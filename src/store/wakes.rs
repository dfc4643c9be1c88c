//! Wake-ups: what is granted to a waiter is pushed to the process that it waits in.
//!
//! Each store has a process of its own name, by which it is told apart from all others, and gives numbers to its
//! waiters, none of them twice. A waiter [listens](Wakes::listen) before it asks, since the push may come before
//! the answer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{oneshot, watch};

use super::in_process::lock;

/// What was granted to a waiter of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) number: u64,
    /// By the server's clock, µs.
    pub(crate) expiry: i64,
    pub(crate) fence: i64,
}

/// Those of one store who wait for a push.
#[derive(Debug)]
pub(crate) struct Wakes {
    process: String,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Push>>>,
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

impl Wakes {
    pub(crate) fn new(link: Link) -> Self {
        // The seeds of the standard hasher are random and differ from each other.
        let process = format!("{:016x}", RandomState::new().build_hasher().finish());
        Self { process, next: AtomicU64::new(0), waiting: Mutex::default(), link: watch::Sender::new(link), #[cfg(test)] delivered: Mutex::default() }
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
        Listener { wakes: Arc::clone(self), number, push }
    }

    /// Hands a push to whom it is for. Where nobody listens any more, whoever went away has seen to it.
    pub(crate) fn deliver(&self, push: Push) {
        #[cfg(test)]
        lock(&self.delivered).push(push);
        let listener = lock(&self.waiting).remove(&push.number);
        if let Some(listener) = listener {
            let _ = listener.send(push);
        }
    }

    /// All that was delivered so far.
    #[cfg(test)]
    pub(crate) fn take_delivered(&self) -> Vec<Push> {
        std::mem::take(&mut lock(&self.delivered))
    }

    /// Reads `expiry fence number` and delivers it.
    pub(super) fn deliver_text(&self, text: &str) {
        let mut numbers = text.split(' ').map(str::parse::<i64>);
        if let (Some(Ok(expiry)), Some(Ok(fence)), Some(Ok(number))) =
            (numbers.next(), numbers.next(), numbers.next())
        {
            self.deliver(Push { number: number.unsigned_abs(), expiry, fence });
        }
    }
}

/// The number in a token: hexadecimal digits behind the name of the process and a sign.
pub(crate) fn number_of(token: &str) -> Option<u64> {
    let rest = token.get(PROCESS + 1..)?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    u64::from_str_radix(&rest[..end], 16).ok()
}

/// One who waits for a push; listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    wakes: Arc<Wakes>,
    number: u64,
    push: oneshot::Receiver<Push>,
}

impl Listener {
    /// The push. Cancel safe.
    pub(crate) async fn heard(&mut self) -> Push {
        match (&mut self.push).await {
            Ok(push) => push,
            // Not while it is among those who listen.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.wakes.waiting).remove(&self.number);
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
        for none in ["", "0123456789abcdef", "0123456789abcdef+", "0123456789abcdef+/1/1", "äääääääääääää"] {
            assert_eq!(number_of(none), None, "{none:?}");
        }
    }

    #[tokio::test]
    async fn a_push_reaches_who_listens_and_nobody_else() {
        let wakes = Arc::new(Wakes::new(Link::Down));
        let mut first = wakes.listen(wakes.number());
        let second = wakes.listen(wakes.number());
        wakes.deliver_text("77 3 0");
        wakes.deliver_text("nonsense");
        assert_eq!(first.heard().await.expiry, 77);
        assert!(lock(&wakes.waiting).contains_key(&1));
        drop(second);
        assert!(lock(&wakes.waiting).is_empty());
    }
}
