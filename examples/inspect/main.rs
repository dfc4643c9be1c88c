//! Shows what a store in Redis holds, and changes single states: resets a bucket, revokes a lease, forgets an answer, sets
//! quotas for the whole fleet.
//!
//! ```sh
//! cargo run --features operator --example inspect -- redis://127.0.0.1/                                     # lists all
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --namespace reports --full
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --revoke reports 2026-11            # asks first
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --set api "100/min, burst 20" --by ann
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --top api                           # who is refused most
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --libraries                         # of functions, on each server
//! cargo run --features operator --example inspect -- redis://127.0.0.1/ --acl ops                           # the permissions that it needs
//! cargo run --features operator,cluster --example inspect -- --cluster redis://10.0.0.1/ redis://10.0.0.2/
//! ```

mod act;
mod arguments;
mod connect;
mod libraries;
mod list;
mod set;
mod show;
mod top;

use std::process::ExitCode;

use clap::Parser as _;
use tower_distributed::operator::Operator;

use self::arguments::{Arguments, Change};

/// Why the tool ends without success, as it is printed.
type Failure = String;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("inspect: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let store = connect::store(arguments)?;
    let operator = Operator::new(&store);
    if let Some(user) = &arguments.acl {
        println!("{}", operator.acl_rule(user).map_err(told)?);
        return Ok(());
    }
    if let Some(namespace) = &arguments.top {
        return top::show(&operator, arguments, namespace).await;
    }
    if arguments.libraries {
        return libraries::list(&operator).await;
    }
    if let Some(name) = &arguments.delete_library {
        return libraries::delete(&operator, arguments, name).await;
    }
    if let Some(setting) = arguments.setting() {
        return set::change(&store, arguments, &setting).await;
    }
    match arguments.change() {
        Some(Change {
            verb,
            namespace,
            key,
        }) => act::act(&operator, arguments, verb, namespace, key).await,
        None => list::list(&operator, arguments).await,
    }
}

fn told(error: tower_distributed::Error) -> Failure {
    error.to_string()
}
