//! What a Sentinel answers: it names the master.

use super::commands::option;
use super::reply::{Bytes, Reply};
use super::{Session, host_and_port, subscribe, usual};

#[derive(Clone, Debug)]
pub struct Sentinel {
    pub name: String,
    pub master: String,
    /// The number of the failover that made it the master.
    pub epoch: u64,
}

/// The messages of a failover.
pub const SWITCHED: [&str; 2] = ["+promoted-slave", "+switch-master"];

impl Sentinel {
    pub fn run(&self, session: &mut Session, arguments: &[Bytes]) -> Vec<Reply> {
        let word = |at: usize| arguments.get(at).map(|word| option(word));
        let [host, port] = host_and_port(&self.master);
        match (word(0).as_deref(), word(1).as_deref()) {
            (Some(name @ "SUBSCRIBE"), _) => subscribe(session, name, &arguments[1..]),
            (Some("SENTINEL"), Some("MASTER")) => {
                let epoch = self.epoch.to_string();
                let pairs = [
                    ("name", self.name.as_str()),
                    ("ip", host),
                    ("port", port),
                    ("config-epoch", &epoch),
                ];
                vec![Reply::map(
                    pairs.map(|(key, value)| (key, Reply::bulk(value))),
                )]
            }
            (Some("SENTINEL"), Some("GET-MASTER-ADDR-BY-NAME")) => {
                vec![Reply::Array(vec![Reply::bulk(host), Reply::bulk(port)])]
            }
            (name, _) => vec![usual(name.unwrap_or_default(), session)],
        }
    }
}
