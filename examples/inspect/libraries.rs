//! The libraries of functions that versions of this crate have loaded.

use tower_distributed::operator::{Library, Operator};

use crate::act::{can_ask, confirmed};
use crate::arguments::Arguments;
use crate::show::printable;
use crate::{Failure, list, told};

pub(crate) async fn list(operator: &Operator) -> Result<(), Failure> {
    let libraries = operator.libraries().await.map_err(told)?;
    if libraries.is_empty() {
        return list::print("No library is loaded: the first call of a service loads it.\n");
    }
    list::print(&libraries.iter().map(line).collect::<String>())
}

/// Deletes it from each server that has it.
pub(crate) async fn delete(
    operator: &Operator,
    arguments: &Arguments,
    name: &str,
) -> Result<(), Failure> {
    can_ask(arguments)?;
    let mut libraries = operator.libraries().await.map_err(told)?;
    libraries.retain(|library| library.name == name);
    if libraries.is_empty() {
        return Err(format!(
            "no server has the library {name:?}: --libraries lists those of this crate"
        ));
    }
    list::print(&libraries.iter().map(line).collect::<String>())?;
    confirmed(
        arguments,
        "Delete it? A process that still uses it loads it again.",
    )?;
    for library in &libraries {
        let failed = |error| format!("{}: {}", library.server, told(error));
        operator.delete_library(library).await.map_err(failed)?;
    }
    list::print("The library is deleted.\n")
}

fn line(library: &Library) -> String {
    let of = if library.is_own {
        "of this build"
    } else {
        "of another build"
    };
    format!("{}  {}  {of}\n", printable(&library.name), library.server)
}
