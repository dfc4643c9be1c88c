//! What the histories of a fault say, in figures.

use std::time::Duration;

use super::history::{Event, History, Hold, Operation, Primitive};
use super::worker::{ALONE, BURST, LASTING, PERMITS, TTL, oldest};
use super::{answers, claims, linearizable};

/// A row of the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) primitive: Primitive,
    pub(crate) operations: usize,
    pub(crate) refused: usize,
    pub(crate) failed: usize,
    /// Refusals for longer than the quota can owe, and answers that are older than their ttl.
    pub(crate) overdue: usize,
    /// Answers that no run of their key has made.
    pub(crate) invented: usize,
    /// Grants to a second holder, tokens above the burst or the rate, items that were new more than once, flights that ran twice.
    pub(crate) double: usize,
    /// Those whose fencing token shows which holder is the later one. `None` where there are no tokens.
    pub(crate) caught: Option<usize>,
    /// Those who were alone beside another holder, with a token that was not the highest.
    pub(crate) unfenced: usize,
    /// Releases that say that the lease was not held, although it cannot have expired.
    pub(crate) denied: usize,
    /// The longest time until an operation succeeded again in each process.
    pub(crate) recovery: Duration,
    /// What stays in Redis for longer than it should.
    pub(crate) leaked: usize,
    pub(crate) longest: Duration,
    /// The keys whose history no sequential order explains. `None` where there is no such specification.
    pub(crate) unordered: Option<Vec<String>>,
}

impl Row {
    pub(crate) fn of(primitive: Primitive, history: &History) -> Self {
        let mut row = Self {
            primitive,
            ..Self::default()
        };
        let mut doubles = Vec::new();
        // A lease that is handed on within a process has half of its ttl left, or more.
        let lasts = u64::try_from(TTL.as_nanos() / 2).unwrap();
        for (key, (operations, holds)) in history.keys(primitive) {
            for operation in &operations {
                row.count(operation);
            }
            match primitive {
                // It refills, which the other buckets do not.
                Primitive::TokenBucket if key == LASTING => continue,
                Primitive::TokenBucket => {
                    row.double += admitted(&operations).saturating_sub(BURST as usize)
                }
                Primitive::BloomFilter => row.double += admitted(&operations).saturating_sub(1),
                Primitive::Budget => row.double += captured(&holds).saturating_sub(BURST as usize),
                _ => doubles.extend(double_grants(primitive, &operations, &holds)),
            }
            row.denied += holds
                .iter()
                .filter(|hold| hold.denied().is_some_and(|at| at < hold.call + lasts))
                .count();
            if primitive.is_flight() {
                row.invented += answers::invented(&operations, &holds);
                row.overdue += answers::overdue(&operations, oldest(primitive));
            }
            // The histories of lasting keys are too long to be searched.
            if matches!(primitive, Primitive::BloomFilter | Primitive::Budget) || key == LASTING {
                continue;
            }
            let unordered = row.unordered.get_or_insert_default();
            let is_ordered = match primitive {
                Primitive::SingleFlight | Primitive::StaleFlight => {
                    answers::check(primitive, &operations, &holds)
                }
                Primitive::Dedupe | Primitive::FilterDedupe => claims::check(&operations, &holds),
                _ => linearizable::check(primitive, &operations, &holds),
            };
            if !is_ordered {
                unordered.push(key.to_owned());
            }
        }
        row.double += doubles.len();
        let caught = doubles.iter().filter(|double| double.is_caught).count();
        row.unfenced = doubles
            .iter()
            .filter(|double| double.is_alone && !double.is_caught)
            .count();
        let has_fences =
            matches!(primitive, Primitive::Mutex | Primitive::RwLock) || primitive.is_dedupe();
        row.caught = has_fences.then_some(caught);
        row
    }

    /// Whether its histories are worth a look.
    pub(crate) fn is_remarkable(&self) -> bool {
        let unordered = self.unordered.as_ref().map_or(0, Vec::len);
        self.double + self.invented + self.overdue + self.denied + self.leaked + unordered > 0
    }

    fn count(&mut self, operation: &Operation) {
        self.operations += 1;
        let Some((end, answer)) = &operation.answer else {
            return;
        };
        self.longest = self.longest.max(Duration::from_nanos(end - operation.call));
        match answer {
            Event::Refused | Event::Duplicate => self.refused += 1,
            Event::Failed(_) => self.failed += 1,
            Event::Overdue(_) => self.overdue += 1,
            _ => {}
        }
    }
}

fn admitted(operations: &[&Operation]) -> usize {
    let is_admitted =
        |operation: &&&Operation| matches!(operation.answer, Some((_, Event::Admitted(_))));
    operations.iter().filter(is_admitted).count()
}

fn captured(holds: &[&Hold]) -> usize {
    let is_captured = |hold: &&&Hold| {
        hold.released().is_some() && hold.ending.is_some_and(|ending| ending.confirms)
    };
    holds.iter().filter(is_captured).count()
}

/// A grant beside holders who still believed in theirs.
struct Double {
    /// It is for one holder alone.
    is_alone: bool,
    /// Its fencing token says that it is the later one.
    is_caught: bool,
}

fn double_grants(primitive: Primitive, operations: &[&Operation], holds: &[&Hold]) -> Vec<Double> {
    // An item that was forgotten is new, and `claim_anyway` claims what is known.
    let claims_again =
        |operation: &&Operation| matches!(operation.asked, Event::Forget | Event::AcquireAnyway);
    let is_once = primitive.is_dedupe() && !operations.iter().any(claims_again);
    let limit = if primitive == Primitive::WaitGroup {
        PERMITS
    } else {
        ALONE
    };
    let mut holds = holds.to_vec();
    holds.retain(|hold| hold.held >= hold.granted);
    holds.sort_by_key(|hold| hold.granted);
    let mut found = Vec::new();
    let mut believing: Vec<&Hold> = Vec::new();
    // Of a dedupe: what was handled is not to be granted again.
    let mut handled: Vec<&Hold> = Vec::new();
    for hold in holds {
        believing.retain(|other| other.held >= hold.granted);
        let used: u32 = believing.iter().map(|other| other.share).sum();
        let is_alone = hold.share == limit;
        // Only holders that share the key have the same token. Calls at the same time are granted in any order.
        let is_later = |other: &&Hold| match is_alone || other.share == limit {
            true if hold.call <= other.granted => hold.fence != other.fence,
            true => hold.fence > other.fence,
            false => hold.fence >= other.fence,
        };
        if used + hold.share > limit || !handled.is_empty() {
            let is_caught = believing.iter().chain(&handled).all(is_later);
            found.push(Double {
                is_alone,
                is_caught,
            });
        }
        believing.push(hold);
        if is_once && hold.released().is_some() && hold.ending.is_some_and(|ending| ending.confirms)
        {
            handled.push(hold);
        }
    }
    found
}

/// A fault in one row, over all primitives, as the guarantees of the documentation have it.
pub(crate) fn summary(fault: &str, rows: &[Row]) -> String {
    let sum = |count: fn(&Row) -> usize| rows.iter().map(count).sum::<usize>();
    let doubles: Vec<_> = rows.iter().filter(|row| row.double > 0).collect();
    let told = |row: &&Row| {
        let caught = row
            .caught
            .map(|caught| format!(" ({caught} caught)"))
            .unwrap_or_default();
        format!("{} {:?}{caught}", row.double, row.primitive)
    };
    let doubles = doubles.iter().map(told).collect::<Vec<_>>().join(", ");
    let recovery = rows
        .iter()
        .map(|row| row.recovery)
        .max()
        .unwrap_or_default();
    format!(
        "| {fault} | {} | {} | {} | {} | {:.1} s | {} |\n",
        sum(|row| row.operations),
        sum(|row| row.refused),
        sum(|row| row.failed),
        if doubles.is_empty() { "0" } else { &doubles },
        recovery.as_secs_f64(),
        sum(|row| row.leaked),
    )
}
