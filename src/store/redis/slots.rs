//! The hash slots of a Redis Cluster: the slot of a key, the master of a slot, and the channels on which one master
//! wakes waiters.
//!
//! A message by `PUBLISH` goes to all nodes of a Cluster, one by `SPUBLISH` (Redis 7.0) only to the master and the
//! replicas that serve the slot of its channel. A script may publish to each channel whose slot its node serves. So the
//! slots are divided into groups, and each group has a hash tag with a slot in it. A script gets the tag of the group
//! of its keys. A process subscribes, at each master, to its channels of the groups whose tags are there.
//!
//! If the tag of a group is on another master than a key of the group, or if there is no subscriber, scripts publish to
//! all nodes: see `grants.publish` in `lua/grants.lua`. So two processes need not know the same masters.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{
    Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
// Not tokio's: a caller's runtime may have paused its clock, but the runtime that reads the masters has not.
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::background::Background;
use crate::store::redis::connection::Connection;
use crate::store::redis::errors;
use crate::store::redis::names::hash_tag;
use crate::sync::lock;

pub(super) const SLOTS: u16 = 16384;

/// The shortest interval between reads of the masters. It doubles while nothing changes.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The number that stands for no master.
const NONE: u16 = u16::MAX;

/// Returns the slot of a key, by its hash tag if it has one (Redis Cluster specification, "hash tags").
pub(super) fn slot(key: &[u8]) -> u16 {
    #[cfg(feature = "cluster")]
    return crc16::State::<crc16::XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS;
    #[cfg(not(feature = "cluster"))]
    0
}

/// The known masters of the slots. Outdated entries affect isolation, not correctness, because redirections are
/// followed.
#[derive(Debug)]
pub(crate) struct Masters {
    known: RwLock<Known>,
    /// The runtime on which they are read: a caller's runtime may be blocked meanwhile, and delay all others.
    home: Background,
    /// Held during a refresh.
    turn: tokio::sync::Mutex<()>,
    last: Mutex<Option<Refresh>>,
    /// The links of all runtimes, which leave the masters that no longer have slots.
    links: Mutex<Vec<Weak<dyn OnMasters>>>,
}

/// An observer of the masters.
pub(super) trait OnMasters: Send + Sync {
    /// Called when slots have moved to other masters.
    fn masters_changed(&self);
}

/// The last refresh.
#[derive(Debug)]
struct Refresh {
    ended: Instant,
    /// The pause before the next one.
    pause: Duration,
    /// Why no node replied, if so.
    outage: Option<Outage>,
}

impl Refresh {
    /// Whether the pause after it is not over yet.
    fn rests(&self) -> bool {
        self.ended.elapsed() < self.pause
    }
}

/// Ranges of slots (first, last), each with the address of its master.
pub(super) type Topology = Vec<(usize, usize, String)>;

#[derive(Debug, Default)]
struct Known {
    /// The addresses of the masters. A number that was given to a master does not change.
    masters: Vec<String>,
    /// The number of the master by slot, or [`NONE`]. Empty if nothing is known.
    by_slot: Vec<u16>,
}

impl Masters {
    pub(crate) fn new(home: &Background) -> Self {
        Self {
            known: RwLock::default(),
            home: home.clone(),
            turn: tokio::sync::Mutex::default(),
            last: Mutex::default(),
            links: Mutex::default(),
        }
    }

    /// Makes these links leave the masters that lose their slots.
    pub(super) fn add(&self, added: Weak<dyn OnMasters>) {
        let mut links = lock(&self.links);
        links.retain(|links| links.strong_count() > 0);
        links.push(added);
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the master of a slot; if it is not known, that of another master, which redirects.
    pub(super) fn of(&self, slot: u16) -> usize {
        let known = self.known();
        let master = known
            .by_slot
            .get(usize::from(slot))
            .filter(|master| **master != NONE);
        let master = master.or_else(|| known.by_slot.iter().find(|master| **master != NONE));
        master.map_or(0, |master| usize::from(*master))
    }

    /// Returns the number of the master at an address. A new address gets a new number.
    pub(super) fn number_of(&self, address: &str) -> Option<usize> {
        Some(self.known_mut().number_of(address.to_owned()))
            .filter(|number| *number < usize::from(NONE))
    }

    /// Returns the address of a master by its number.
    pub(super) fn address(&self, number: usize) -> Option<String> {
        self.known().masters.get(number).cloned()
    }

    /// Returns the addresses of the masters that have slots.
    pub(super) fn addresses(&self) -> Vec<String> {
        let known = self.known();
        known
            .current()
            .into_iter()
            .filter_map(|number| known.masters.get(number).cloned())
            .collect()
    }

    /// Returns the numbers of the masters that have slots.
    pub(super) fn numbers(&self) -> BTreeSet<usize> {
        self.known().current()
    }

    /// Whether a master has slots, as far as is known.
    pub(super) fn is_current(&self, number: usize) -> bool {
        let known = self.known();
        known.by_slot.is_empty()
            || known
                .by_slot
                .iter()
                .any(|master| usize::from(*master) == number)
    }

    /// Whether the masters may be read again now.
    pub(super) fn is_due(&self) -> bool {
        let rests = lock(&self.last).as_ref().is_some_and(Refresh::rests);
        !rests && self.turn.try_lock().is_ok()
    }

    /// Whether the user may not read the masters, according to a recent reply. No breaker prevents calls from trying
    /// again, since the nodes are up.
    pub(super) fn are_denied(&self) -> bool {
        let denied = |last: &Refresh| {
            last.outage
                .as_ref()
                .is_some_and(|outage| outage.cause == Cause::Denied)
        };
        lock(&self.last)
            .as_ref()
            .is_some_and(|last| last.rests() && denied(last))
    }

    /// Why no node replied at the last refresh.
    pub(super) fn outage(&self) -> Option<Outage> {
        lock(&self.last).as_ref()?.outage.clone()
    }

    /// Starts to read the masters again, or to wait until another task has done so. If no node replies, the known
    /// masters stay. The returned future completes when this is done; dropping it changes nothing.
    pub(super) fn refresh<A>(
        self: &Arc<Self>,
        answer: A,
    ) -> impl Future<Output = ()> + Send + use<A>
    where
        A: Future<Output = Result<Topology, Outage>> + Send + 'static,
    {
        let masters = Arc::clone(self);
        let reader = Arc::clone(self);
        let began = Instant::now();
        let task = self
            .home
            .handle()
            .map(|home| home.spawn(async move { reader.read(began, answer).await }));
        async move {
            let why: Cow<'static, str> = match task {
                Ok(task) => match task.await {
                    Ok(()) => return,
                    Err(error) if error.is_panic() => "reading the masters has panicked".into(),
                    Err(_) => {
                        "the masters cannot be read: the background runtime of the store has ended"
                            .into()
                    }
                },
                Err(error) => error.to_string().into(),
            };
            masters.ended(LONGEST_PAUSE, Some(errors::of(Cause::NotSent, why)));
        }
    }

    /// Records the end of a refresh.
    fn ended(&self, pause: Duration, outage: Option<Outage>) {
        *lock(&self.last) = Some(Refresh {
            ended: Instant::now(),
            pause,
            outage,
        });
    }

    async fn read(&self, began: Instant, answer: impl Future<Output = Result<Topology, Outage>>) {
        let _turn = self.turn.lock().await;
        if lock(&self.last)
            .as_ref()
            .is_some_and(|last| last.ended >= began)
        {
            return;
        }
        let (changed, outage) = match answer.await {
            Ok(reply) => (self.known_mut().learn(reply), None),
            Err(outage) => (false, Some(outage)),
        };
        let before = lock(&self.last).as_ref().map_or(PAUSE, |last| last.pause);
        let pause = if changed {
            PAUSE
        } else {
            (2 * before).min(LONGEST_PAUSE)
        };
        self.ended(pause, outage);
        if changed {
            let links: Vec<_> = lock(&self.links).iter().filter_map(Weak::upgrade).collect();
            links.iter().for_each(|links| links.masters_changed());
        }
    }
}

/// Reads the masters from a node. `own`: the host of the node.
pub(super) async fn ask(connection: &mut Connection, own: &str) -> Result<Topology, Outage> {
    let reply = connection
        .send(cmd("CLUSTER").arg("SLOTS"))
        .await
        .map_err(errors::outage)?;
    parse(&reply, own).ok_or_else(|| {
        errors::of(
            Cause::NotServing,
            format!("the node at {own:?} names no masters"),
        )
    })
}

/// Parses the reply to `CLUSTER SLOTS`: for each range its first and last slot, then its nodes, the master first. A
/// node that does not know its own host omits it: `own` is used instead. `?` is an unknown host. `None` if no slot has
/// a master.
fn parse(reply: &Value, own: &str) -> Option<Topology> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let mut topology = Topology::new();
    for range in ranges {
        let Value::Array(range) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &range[..]
        else {
            return None;
        };
        let first = usize::try_from(*first).ok()?;
        let last = usize::try_from(*last).ok()?;
        if last >= usize::from(SLOTS) || first > last {
            return None;
        }
        let [host, Value::Int(port), ..] = &master[..] else {
            return None;
        };
        let host = match host {
            Value::Nil => own.into(),
            Value::BulkString(host) => match &*String::from_utf8_lossy(host) {
                "" | "0.0.0.0" | "::" => own.to_owned(),
                host => host.to_owned(),
            },
            _ => return None,
        };
        if host != "?" && !host.is_empty() {
            topology.push((first, last, format!("{host}:{port}")));
        }
    }
    (!topology.is_empty()).then_some(topology)
}

impl Known {
    /// The numbers of the masters that have slots.
    fn current(&self) -> BTreeSet<usize> {
        self.by_slot
            .iter()
            .filter(|master| **master != NONE)
            .map(|master| usize::from(*master))
            .collect()
    }

    /// Returns the number of the master at an address. A new address gets a new number.
    fn number_of(&mut self, address: String) -> usize {
        self.masters
            .iter()
            .position(|known| *known == address)
            .unwrap_or_else(|| {
                self.masters.push(address);
                self.masters.len() - 1
            })
    }

    /// Stores the masters that a node has reported. Returns whether anything has changed.
    fn learn(&mut self, reply: Topology) -> bool {
        let mut by_slot = vec![NONE; usize::from(SLOTS)];
        for (first, last, address) in reply {
            by_slot[first..=last].fill(u16::try_from(self.number_of(address)).unwrap_or(NONE));
        }
        let changed = by_slot != self.by_slot;
        self.by_slot = by_slot;
        changed
    }
}

/// The calls that a node refuses because their slot is being moved, while they are being retried: the slot of each, and
/// the last reason. Almost always empty.
#[derive(Debug, Default)]
pub(in crate::store) struct Refused(Arc<Mutex<Vec<(u16, Outage)>>>);

/// Such a call. Dropping this value removes it.
pub(super) struct Refusal {
    calls: Arc<Mutex<Vec<(u16, Outage)>>>,
    slot: u16,
}

impl Refused {
    /// Records that a call was refused. `before`: its earlier refusal.
    pub(super) fn note(
        &self,
        slot: Option<u16>,
        why: &Outage,
        before: Option<Refusal>,
    ) -> Option<Refusal> {
        drop(before);
        let slot = slot?;
        lock(&self.0).push((slot, why.clone()));
        Some(Refusal {
            calls: Arc::clone(&self.0),
            slot,
        })
    }

    /// Returns why a call for a slot is currently refused.
    pub(in crate::store) fn why(&self, slot: u16) -> Option<Error> {
        let calls = lock(&self.0);
        calls
            .iter()
            .find(|(refused, _)| *refused == slot)
            .map(|(_, why)| why.clone().into())
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        let mut calls = lock(&self.calls);
        if let Some(position) = calls.iter().position(|(slot, _)| *slot == self.slot) {
            calls.swap_remove(position);
        }
    }
}

/// The number of groups. With more, the subscription would be longer; with fewer, more keys are in groups that two
/// masters share.
const GROUPS: u16 = 256;

const PER_GROUP: u16 = SLOTS / GROUPS;

/// The tag of each group, and its slot. Each tag is the first number with a slot in the group.
static TAGS: LazyLock<Vec<(String, u16)>> = LazyLock::new(|| {
    let mut tags = vec![None; GROUPS.into()];
    // All are found below 500.
    for number in 0..1000 {
        let tag = number.to_string();
        let slot = slot(tag.as_bytes());
        let group = tags.get_mut(usize::from(slot / PER_GROUP));
        group
            .into_iter()
            .for_each(|group| *group = group.take().or(Some((tag.clone(), slot))));
    }
    tags.into_iter().flatten().collect()
});

/// Returns the prefix of the channels for a slot, given that of all channels.
pub(super) fn prefix(channels: &str, slot: u16) -> Option<String> {
    let group = slot / PER_GROUP;
    let (tag, _) = TAGS.get(usize::from(group))?;
    Some(tagged(channels, tag))
}

fn tagged(channels: &str, tag: &str) -> String {
    format!("{channels}{{{tag}}}:")
}

/// Returns the prefixes of the channels, or keys, of all groups, and their slots.
pub(super) fn prefixes(channels: &str) -> impl Iterator<Item = (String, u16)> {
    TAGS.iter()
        .map(move |(tag, slot)| (tagged(channels, tag), *slot))
}

#[cfg(test)]
#[cfg(feature = "cluster")]
mod tests;
