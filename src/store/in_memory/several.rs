//! One step on the cells of several keys of a namespace.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::cells::Cells;
use crate::Error;
use crate::store::notifier::Push;
use crate::store::operation::Cell;
use crate::sync::lock;

impl<C: Cell> Cells<C> {
    /// Like [`step`](Self::step), on the cells of several keys, which differ. Meanwhile all their shards are locked.
    ///
    /// # Errors
    ///
    /// [`is_overloaded`](Error::is_overloaded), as for one cell. Nothing has changed then.
    pub(crate) fn step_all<R>(
        &self,
        keys: &[impl AsRef<[u8]>],
        mut step: impl FnMut(&mut [C], i64) -> R,
    ) -> Result<R, Error> {
        let mut stepped = self.try_step_all(keys, &mut step);
        if let (Err((_, now)), Some(bound)) = (&stepped, &self.shared.bound) {
            bound.search(&self.shared.sweeper, *now);
            stepped = self.try_step_all(keys, &mut step);
        }
        let (reply, pushes) = stepped.map_err(|(error, _)| {
            self.tell_refused();
            error
        })?;
        pushes.into_iter().for_each(|push| self.shared.notifier.deliver(push));
        Ok(reply)
    }

    /// The error has the time of the step.
    fn try_step_all<R>(
        &self,
        keys: &[impl AsRef<[u8]>],
        step: &mut impl FnMut(&mut [C], i64) -> R,
    ) -> Result<(R, Vec<Push>), (Error, i64)> {
        let places: Vec<_> = keys.iter().map(|key| self.place(key.as_ref())).collect();
        // Each shard once, in one order for all callers: none waits for another that waits for it.
        let mut shards: BTreeMap<_, _> = places.iter().map(|(_, shard)| (*shard, None)).collect();
        let mut now = i64::MIN;
        for (shard, guard) in &mut shards {
            let guard: &mut MutexGuard<'_, _> = guard.insert(lock(&self.shards[*shard]));
            now = now.max(self.now(guard));
        }
        let placed = || keys.iter().zip(&places).map(|(key, (hash, shard))| (key.as_ref(), *hash, shard));
        let bound = self.shared.bound.as_ref();
        let (mut cells, mut is_new) = (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        for (key, hash, shard) in placed() {
            let shard = shards.get_mut(shard).and_then(Option::as_mut);
            let cell = match shard.and_then(|shard| shard.find(hash, key)) {
                // It would be swept when another one is inserted.
                Some(entry) if entry.get().cell.is_idle(now) => {
                    entry.remove();
                    bound.into_iter().for_each(|bound| bound.give_back(1));
                    None
                }
                entry => entry.map(|entry| entry.get().cell.clone()),
            };
            is_new.push(cell.is_none());
            cells.push(cell.unwrap_or_default());
        }
        let reply = step(&mut cells, now);
        let pushes = cells.iter_mut().flat_map(Cell::pushes).collect();
        let more = cells.iter().zip(&is_new).filter(|(cell, is_new)| **is_new && !cell.is_idle(now)).count();
        for taken in 0..more {
            if let Some(Err(error)) = bound.map(|bound| bound.take()) {
                bound.into_iter().for_each(|bound| bound.give_back(taken));
                return Err((error, now));
            }
        }
        let (mut expired, mut removed) = (Vec::new(), 0);
        for ((key, hash, shard), cell) in placed().zip(cells) {
            let Some(Some(shard)) = shards.get_mut(shard) else { continue };
            let is_idle = cell.is_idle(now);
            match shard.find(hash, key) {
                Some(entry) if is_idle && bound.is_some() => {
                    entry.remove();
                    removed += 1;
                }
                Some(mut entry) => entry.get_mut().cell = cell,
                None if !is_idle => expired.extend(shard.insert(hash, key, cell, now)),
                None => {}
            }
        }
        drop(shards);
        if let Some(bound) = bound {
            bound.give_back(removed + expired.len());
        }
        if more > 0 {
            self.is_not_empty();
        }
        Ok((reply, pushes))
    }
}
