//! The keys that are refused most.

use tower_distributed::operator::Operator;

use crate::arguments::Arguments;
use crate::show::refused;
use crate::{Failure, list, told};

pub(crate) async fn show(
    operator: &Operator,
    arguments: &Arguments,
    namespace: &str,
) -> Result<(), Failure> {
    let top = operator
        .top_refused(namespace, arguments.limit)
        .await
        .map_err(told)?;
    let lines: String = top
        .iter()
        .map(|key| format!("{}\n", refused(key)))
        .collect();
    let nothing = "Nothing is stored: nothing was refused, or no process counts it.\n";
    list::print(if top.is_empty() { nothing } else { &lines })
}
