//! Entering what came of a lease, which gives it back.

use std::sync::Arc;

use super::admission::Admission;
use super::held::Held;
use super::kind::{Entry, Found, Kind};
use super::operations::{Here, Scene, WRONG_TYPE, messages};
use super::record::Record;
use crate::Error;
use crate::store::{Arguments, Client, Field, Fields, Garbled, Never, Operation, Push, Script};

/// Where what came of the leases of a namespace is entered.
pub(crate) struct Settlement<K: Kind> {
    scene: Arc<Scene<K>>,
    client: Client<Settle<K>>,
}

impl<K: Kind> Settlement<K> {
    pub(crate) fn new(admission: &Admission<K>) -> Self {
        Self { scene: Arc::clone(&admission.scene), client: admission.namespace.client() }
    }

    /// Enters what came of a lease, gives it back to the store, and sends those who wait to ask anew. Whether it was
    /// still held; the same call twice says no the second time. Or else what keeps it from being entered: then nothing
    /// is changed.
    pub(crate) async fn settle(&self, held: &Held, entry: Entry<K>) -> Result<Result<bool, Found<K>>, Error> {
        let settle = Settle { scene: Arc::clone(&self.scene), token: Arc::clone(&held.token), entry };
        Ok(self.client.run(held.key.clone(), settle).await?.outcome)
    }
}

#[derive(Debug)]
pub(crate) struct Settle<K: Kind> {
    pub(crate) scene: Arc<Scene<K>>,
    pub(crate) token: Arc<str>,
    pub(crate) entry: Entry<K>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled<F> {
    /// Whether it was still held, or what is in the way.
    pub(crate) outcome: Result<bool, F>,
    /// What others of this process are to hear.
    pub(super) heard: Vec<Push>,
}

impl<K: Kind> Operation for Settle<K> {
    type Cell = Here<K>;
    type Reply = Settled<Found<K>>;
    type Undo = Never<Here<K>>;
    const SCRIPT: Script = K::SCRIPTS.settle;
    const PARTS: &'static [&'static str] = K::PARTS;
    const MOST_RUNS: usize = K::Record::MOST_RUNS;
    const SAME_ONCE: bool = false;
    const NOTIFIES: bool = true;
    const BULK: bool = K::Record::BULK;

    fn is_reserved(&self) -> bool {
        true
    }

    fn payload(&self) -> usize {
        K::Record::payload(&self.entry)
    }

    fn shared(&self, call: &mut Arguments<'_>) {
        self.scene.write(call);
        K::Record::write_scope(&self.scene.scope, call);
    }

    fn own(&self, _: usize, call: &mut Arguments<'_>) {
        call.text(Arc::clone(&self.token));
        K::Record::write_entry(&self.entry, call);
    }

    fn decode(self, _: usize, _: i64, mut fields: Fields<'_>) -> Result<Self::Reply, Garbled> {
        let status = fields.integer()?;
        if status < 0 {
            return Err(WRONG_TYPE);
        }
        for _ in 0..3 {
            fields.integer()?;
        }
        let last = fields.next()?;
        if let Field::Text(_) = &last {
            return Ok(Settled { outcome: Err(K::Record::decode(last)?), heard: Vec::new() });
        }
        Ok(Settled { outcome: Ok(status == 1), heard: messages(last)? })
    }

    fn apply(self, room: &mut Here<K>, now: i64) -> Self::Reply {
        let outcome = room.settle(&self.token, now, |holders, holding| {
            K::Record::enter(holders, &self.scene.scope, &self.entry, holding, now)
        });
        Settled { outcome, heard: Vec::new() }
    }

    fn pushes(reply: &mut Self::Reply) -> Vec<Push> {
        std::mem::take(&mut reply.heard)
    }
}
