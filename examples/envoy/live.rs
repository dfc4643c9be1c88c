//! The rules in force: those of the files, which are read again when they change, with the quotas that the fleet agrees on.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use notify::{RecursiveMode, Watcher as _};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tower_distributed::fleet::FleetTable;
use tower_distributed::{Error, Quotas};

use crate::limits::{Limit, Limits};
use crate::rules::Domain;
use crate::yaml;

/// How often the files are read if no event tells of a change, as on a network file system, or if events never end.
const READ_EVERY: Duration = Duration::from_secs(1);
/// An editor may write a file in several steps: it is read once it has not changed for this time.
const SETTLED: Duration = Duration::from_millis(30);

/// The texts of the files, and when each was written.
type Files = Vec<(String, Option<SystemTime>)>;

pub(crate) type Domains = HashMap<String, Arc<Edition>>;

pub(crate) struct Live {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) domains: watch::Sender<Domains>,
}

/// The rules of a domain, as they were read.
pub(crate) struct Edition {
    pub(crate) domain: Domain,
    limits: Vec<Arc<Limit>>,
    /// `None` if the rules are too many for a setting of the fleet.
    fleet: Option<FleetTable>,
}

impl Live {
    pub(crate) fn read(&self) -> Result<Files, String> {
        let read = |file: &PathBuf| {
            let text = fs::read_to_string(file);
            let written = fs::metadata(file).and_then(|file| file.modified());
            let text = text.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            Ok((text, written.ok()))
        };
        self.files.iter().map(read).collect()
    }

    /// Applies the rules of all files, or none of them. Returns a line for each limit.
    pub(crate) fn apply(&self, files: &Files) -> Result<String, String> {
        let mut domains = Domains::new();
        let mut list = String::new();
        for (file, (text, _)) in self.files.iter().zip(files) {
            let file = file.display().to_string();
            let domain = yaml::parse(&file, text)?;
            let name = domain.name.clone();
            for rule in &domain.rules {
                list += &format!("{name}: {rule}\n");
            }
            let edition = Edition::new(&self.limits, domain);
            let edition = edition.map_err(|error| format!("{file}: {error}"))?;
            if domains.insert(name.clone(), Arc::new(edition)).is_some() {
                return Err(format!("{file}: another file has the domain {name:?}, too"));
            }
        }
        self.domains.send_replace(domains);
        Ok(list)
    }

    /// Follows the files, and tells the fleet of their quotas.
    pub(crate) async fn follow(&self, mut files: Files) {
        let changed = Arc::new(Notify::new());
        let changes = Arc::clone(&changed);
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // To read the files is an event, too.
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    changes.notify_one();
                }
            });
        for file in &self.files {
            // The folder, because a file that is replaced is another file.
            let folder = Path::new(".").join(file);
            if let (Ok(watcher), Some(folder)) = (&mut watcher, folder.parent()) {
                let _ = watcher.watch(folder, RecursiveMode::NonRecursive);
            }
        }
        // At the start, the newer of the files and the fleet's quotas apply; later, each change.
        let mut untold = Some(files.iter().filter_map(|(_, written)| *written).max());
        let mut said = String::new();
        let mut say = |text: String| {
            if said != text {
                eprintln!("{text}");
                said = text;
            }
        };
        loop {
            if let Some(written) = untold {
                let editions: Vec<_> = self.domains.borrow().values().cloned().collect();
                let tell = editions.iter().map(|edition| edition.tell_fleet(written));
                match try_join_all(tell).await {
                    Ok(_) => untold = None,
                    Err(error) => say(format!("the fleet does not know the rules yet: {error}")),
                }
            }
            let settled = async {
                changed.notified().await;
                while timeout(SETTLED, changed.notified()).await.is_ok() {}
            };
            let _ = timeout(READ_EVERY, settled).await;
            let applied = match self.read() {
                Ok(read) if read == files => continue,
                Ok(read) => {
                    files = read;
                    self.apply(&files)
                }
                Err(error) => Err(error),
            };
            match applied {
                Ok(rules) => {
                    untold = Some(None);
                    say(format!("new rules:\n{rules}"));
                }
                Err(error) => say(format!("{error}; the old rules stay")),
            }
        }
    }
}

impl Edition {
    fn new(limits: &Limits, domain: Domain) -> Result<Self, Error> {
        let name = yaml::name_of(&[&domain.name]);
        let fleet = FleetTable::new(&limits.store, &name, domain.table()?);
        let fleet = fleet.inspect_err(|error| eprintln!("each process follows its file: {error}"));
        let limits = domain.rules.iter().map(|rule| limits.get(&rule.bucket));
        let limits = limits.collect::<Result<_, _>>()?;
        Ok(Self {
            limits,
            fleet: fleet.ok(),
            domain,
        })
    }

    /// The limit of a rule: with the fleet's quotas, if the fleet knows the rule, otherwise with those of the file. This
    /// makes no call to the store. `None`: unlimited.
    pub(crate) fn limit(&self, at: usize) -> Option<(&Arc<Limit>, Quotas)> {
        let rule = &self.domain.rules[at];
        let table = self.fleet.as_ref().map(FleetTable::current);
        let fleet = table.as_ref().and_then(|table| table.get(&rule.path));
        let quotas = rule.quotas.as_ref().map(|own| fleet.unwrap_or(own));
        Some((&self.limits[at], quotas?.clone()))
    }

    /// Sets the quotas of the file for the fleet, unless the fleet's were set after the file was `written`.
    async fn tell_fleet(&self, written: Option<SystemTime>) -> Result<(), Error> {
        while let Some(fleet) = &self.fleet {
            let last = fleet.history().await?.into_iter().next();
            let table = fleet.current();
            let is_same = |(path, quotas): (&str, &Quotas)| table.get(path) == Some(quotas);
            let text = last.as_ref().and_then(|last| last.text.as_deref());
            let rows = text.map(|text| text.lines().count());
            if self.domain.rows().all(is_same) && rows == Some(self.domain.rows().count()) {
                break;
            }
            if let (Some(last), Some(written)) = (&last, written)
                && written <= last.at
            {
                let (name, who) = (&self.domain.name, &last.who);
                eprintln!(
                    "the limits of {name:?} that {who:?} set later apply; save the file to change them"
                );
                break;
            }
            let seen = last.map_or(0, |last| last.number);
            let host = std::env::var("HOSTNAME").unwrap_or_default();
            let who = format!("envoy {host:.58}");
            match fleet.set_if(seen, self.domain.table()?, &who).await {
                // Another process was faster, mostly with the same rules.
                Err(error) if error.is_conflict() => {}
                set => return set.map(drop),
            }
        }
        Ok(())
    }
}
