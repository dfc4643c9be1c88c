//! The listing.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write as _};

use futures::{StreamExt as _, TryStreamExt as _};
use tower_distributed::operator::{Entry, Operator};

use crate::arguments::Arguments;
use crate::show::Table;
use crate::{Failure, told};

/// How many entries are looked at at the same time.
const AT_ONCE: usize = 32;

pub(crate) async fn list(operator: &Operator, arguments: &Arguments) -> Result<(), Failure> {
    let (entries, more) = find(operator, arguments).await?;
    let inspect = async |entry: Entry| {
        // A key that holds something else is told in its row.
        let state = match operator.inspect(&entry).await {
            Err(error) if !error.is_wrong_type() => return Err(error),
            state => state.transpose(),
        };
        Ok(state.map(|state| (entry, state)))
    };
    let states = futures::stream::iter(entries)
        .map(inspect)
        .buffered(AT_ONCE);
    let rows: Vec<_> = states
        .try_filter_map(async |row| Ok(row))
        .try_collect()
        .await
        .map_err(told)?;
    let mut table = Table::new(arguments.full);
    rows.iter()
        .for_each(|(entry, state)| table.add(entry, state.as_ref()));
    let mut text = table.to_string();
    if more {
        text += &format!(
            "There are more: choose a --namespace, or raise --limit {}.\n",
            arguments.limit
        );
    }
    print(&text)
}

/// Prints a text. A reader such as `head` may end before it has read all.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot print: {error}"))
        }
        _ => Ok(()),
    }
}

/// Returns the entries to list, sorted, and whether there are more.
async fn find(
    operator: &Operator,
    arguments: &Arguments,
) -> Result<(BTreeSet<Entry>, bool), Failure> {
    let mut entries = BTreeSet::new();
    let mut scan = match &arguments.namespace {
        Some(namespace) => operator.scan_namespace(namespace).map_err(told)?,
        None => operator.scan(),
    };
    while let Some(page) = scan.next().await.map_err(told)? {
        entries.extend(
            page.into_iter()
                .filter(|entry| arguments.kind.is_none_or(|kind| kind == entry.kind())),
        );
        if entries.len() > arguments.limit {
            return Ok((entries.into_iter().take(arguments.limit).collect(), true));
        }
    }
    Ok((entries, false))
}
