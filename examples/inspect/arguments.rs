//! The arguments of the command line.

use std::path::PathBuf;

use clap::Parser;
use tower_distributed::operator::Kind;

/// Shows what a store of tower-distributed holds in Redis, and changes single states
///
/// Without an option that changes something, --top or --libraries it lists what is stored. Keys are
/// shown, and given, with %, control characters and bytes that are not UTF-8 as %XX, and keys of more
/// than 256 bytes as %# and their SHA-256 digest.
#[derive(Debug, Parser)]
#[command(name = "inspect", verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// The server; with --cluster or --sentinel, the URLs of some nodes
    #[arg(value_name = "REDIS_URL", required = true)]
    pub(crate) urls: Vec<String>,

    /// The URLs are those of a Cluster
    #[arg(long, conflicts_with = "sentinel")]
    pub(crate) cluster: bool,

    /// The URLs are those of Sentinels, and this is the name of the master
    #[arg(long, value_name = "MASTER")]
    pub(crate) sentinel: Option<String>,

    /// The prefix of the store
    #[arg(long, default_value = "td")]
    pub(crate) prefix: String,

    /// A file with the password of the user in the URL, so that the list of processes does not show it
    #[arg(long, value_name = "PATH")]
    pub(crate) password_file: Option<PathBuf>,

    /// Lists only this namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Lists or changes only this kind, such as mutex
    #[arg(long)]
    pub(crate) kind: Option<Kind>,

    /// Shows which keys of this namespace all processes together have refused most, by RefusedKeys
    #[arg(long, value_name = "NAMESPACE", conflicts_with_all = ["change", "namespace", "kind"])]
    pub(crate) top: Option<String>,

    /// Lists the libraries of functions that versions of this crate have loaded on each server
    #[arg(long, conflicts_with_all = ["change", "namespace", "kind", "top"])]
    pub(crate) libraries: bool,

    /// The most entries to list, or keys with --top
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: usize,

    /// Cuts no name or key, and shows up to 1000 holders of each
    #[arg(long)]
    pub(crate) full: bool,

    /// Fills a bucket and unblocks it
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "KEY"], group = "change")]
    reset: Vec<String>,

    /// Takes a lease from its holder: of a lock, a permit, a claim or a running flight
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "KEY"], group = "change")]
    revoke: Vec<String>,

    /// Forgets an answer or a response that is stored, or a handled item
    #[arg(long, num_args = 2, value_names = ["NAMESPACE", "KEY"], group = "change")]
    forget: Vec<String>,

    /// Sets quotas of the fleet, such as api "100/min, burst 20"; with --kind fleet_table or
    /// fleet_limit a table of quotas or a limit of permits
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"], group = "change", requires = "by")]
    set: Vec<String>,

    /// Sets again what quotas, a table or a limit of the fleet was before; --kind as for --set
    #[arg(long, value_name = "NAME", group = "change", requires = "by")]
    undo: Option<String>,

    /// Deletes a library of functions from all servers; a process that still uses it loads it again
    #[arg(long, value_name = "LIBRARY", group = "change")]
    pub(crate) delete_library: Option<String>,

    /// Who sets or undoes it, for the history
    #[arg(long, value_name = "WHO", requires = "change")]
    by: Option<String>,

    /// Which holder to revoke, if there are several
    #[arg(long, value_name = "TOKEN", requires = "revoke")]
    pub(crate) holder: Option<String>,

    /// Does not ask
    #[arg(long, requires = "change")]
    pub(crate) yes: bool,

    /// Prints the command that gives a user of Redis the permissions for this tool
    #[arg(long, value_name = "USER", conflicts_with = "change")]
    pub(crate) acl: Option<String>,
}

/// A change that is asked for.
pub(crate) struct Change<'a> {
    pub(crate) verb: Verb,
    pub(crate) namespace: &'a str,
    pub(crate) key: &'a str,
}

/// A change of a setting of the fleet that is asked for.
pub(crate) struct Setting<'a> {
    pub(crate) name: &'a str,
    /// `None`: that of the version before.
    pub(crate) value: Option<&'a str>,
    pub(crate) by: &'a str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Reset,
    Revoke,
    Forget,
}

impl Arguments {
    pub(crate) fn change(&self) -> Option<Change<'_>> {
        let verbs = [
            (Verb::Reset, &self.reset),
            (Verb::Revoke, &self.revoke),
            (Verb::Forget, &self.forget),
        ];
        verbs.into_iter().find_map(|(verb, of)| match &of[..] {
            [namespace, key] => Some(Change {
                verb,
                namespace,
                key,
            }),
            _ => None,
        })
    }

    pub(crate) fn setting(&self) -> Option<Setting<'_>> {
        let by = self.by.as_deref()?;
        match (&self.set[..], &self.undo) {
            ([name, value], _) => Some(Setting {
                name,
                value: Some(value),
                by,
            }),
            (_, Some(name)) => Some(Setting {
                name,
                value: None,
                by,
            }),
            _ => None,
        }
    }
}
