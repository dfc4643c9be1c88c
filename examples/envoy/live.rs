//! The rules in force: those of the files, which are read again when they change, with the quotas that the fleet agrees on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tower_distributed::fleet::FleetTable;
use tower_distributed::{Error, Quotas};

use crate::limits::{Limit, Limits};
use crate::rules::{Domain, Rule};
use crate::yaml;

/// How often the files are read if no event tells of a change, as on a network file system.
const READ_EVERY: Duration = Duration::from_secs(1);
/// An editor may write a file in several steps: it is read once it has not changed for this time.
const SETTLED: Duration = Duration::from_millis(30);

type Domains = HashMap<String, Arc<Edition>>;

pub(crate) struct Live {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) domains: RwLock<Arc<Domains>>,
}

/// The rules of a domain, as they were read.
pub(crate) struct Edition {
    pub(crate) domain: Domain,
    limits: Vec<Limit>,
    /// `None` if the rules are too many for a setting of the fleet.
    fleet: Option<FleetTable>,
}

impl Live {
    pub(crate) fn domain(&self, name: &str) -> Option<Arc<Edition>> {
        self.domains().get(name).cloned()
    }

    fn domains(&self) -> Arc<Domains> {
        Arc::clone(&self.domains.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies the rules of all files, or none of them. Returns a line for each limit.
    pub(crate) fn apply(&self, texts: &[String]) -> Result<String, String> {
        let mut domains = Domains::new();
        let mut list = String::new();
        for (file, text) in self.files.iter().zip(texts) {
            let file = file.display().to_string();
            let domain = yaml::parse(&file, text)?;
            let name = domain.name.clone();
            for Rule {
                path,
                bucket,
                quotas,
                is_shadow,
                ..
            } in &domain.rules
            {
                let quotas = quotas
                    .as_ref()
                    .map_or("unlimited".to_owned(), Quotas::to_string);
                let shadow = if *is_shadow { ", shadow mode" } else { "" };
                list += &format!("{name}: {path}: {quotas}{shadow}, bucket {bucket}\n");
            }
            let edition = Edition::new(&self.limits, domain);
            let edition = edition.map_err(|error| format!("{file}: {error}"))?;
            if domains.insert(name.clone(), Arc::new(edition)).is_some() {
                return Err(format!("{file}: another file has the domain {name:?}, too"));
            }
        }
        *self.domains.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(domains);
        Ok(list)
    }

    /// Follows the files, and tells the fleet of their quotas.
    pub(crate) async fn follow(&self, mut texts: Vec<String>) {
        let (changes, mut changed) = mpsc::channel(1);
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // To read the files is an event, too.
                if event.is_ok_and(|event| !event.kind.is_access()) {
                    let _ = changes.try_send(());
                }
            });
        for file in &self.files {
            // The folder, because a file that is replaced is another file.
            let folder = file
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            if let Ok(watcher) = &mut watcher {
                let _ = watcher.watch(
                    folder.unwrap_or(Path::new(".")),
                    RecursiveMode::NonRecursive,
                );
            }
        }
        let written = self
            .files
            .iter()
            .filter_map(|file| file.metadata().ok()?.modified().ok());
        // At the start, the newer of the files and the fleet's quotas apply; later, each change.
        let mut untold = Some(written.max());
        let mut said = String::new();
        let mut say = |text: String| {
            if said != text {
                eprintln!("{text}");
                said = text;
            }
        };
        loop {
            if let Some(written) = untold {
                match self.tell_fleet(written).await {
                    Ok(()) => untold = None,
                    Err(error) => say(format!("the fleet does not know the rules yet: {error}")),
                }
            }
            match timeout(READ_EVERY, changed.recv()).await {
                Ok(Some(())) => while let Ok(Some(())) = timeout(SETTLED, changed.recv()).await {},
                Ok(None) => sleep(READ_EVERY).await,
                Err(_) => {}
            }
            let applied = match yaml::read(&self.files) {
                Ok(read) if read == texts => continue,
                Ok(read) => {
                    texts = read;
                    self.apply(&texts)
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

    /// Sets the quotas of the files for the fleet, unless the fleet's were set after the files were `written`.
    async fn tell_fleet(&self, written: Option<SystemTime>) -> Result<(), Error> {
        for edition in self.domains().values() {
            edition.tell_fleet(written).await?;
        }
        Ok(())
    }
}

impl Edition {
    fn new(limits: &Limits, domain: Domain) -> Result<Self, Error> {
        let name = yaml::name_of(&[&domain.name]);
        let fleet = FleetTable::new(&limits.store, &name, domain.table()?);
        let fleet =
            fleet.inspect_err(|error| eprintln!("each process follows its own files: {error}"));
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
    pub(crate) fn limit(&self, rule: usize) -> Option<(Limit, Quotas)> {
        let Rule { path, quotas, .. } = &self.domain.rules[rule];
        let own = quotas.as_ref()?;
        let table = self.fleet.as_ref().map(FleetTable::current);
        let quotas = table
            .as_ref()
            .and_then(|table| table.get(path))
            .unwrap_or(own);
        Some((self.limits[rule].clone(), quotas.clone()))
    }

    async fn tell_fleet(&self, written: Option<SystemTime>) -> Result<(), Error> {
        while let Some(fleet) = &self.fleet {
            let last = fleet.history().await?.into_iter().next();
            let table = fleet.current();
            let differing = self
                .domain
                .rows()
                .find(|(path, quotas)| table.get(path) != Some(quotas));
            let text = last.as_ref().and_then(|last| last.text.as_deref());
            let rows = text.map(|text| text.lines().count());
            if differing.is_none() && rows == Some(self.domain.rows().count()) {
                break;
            }
            if let (Some(last), Some(written)) = (&last, written)
                && written <= last.at
            {
                let name = &self.domain.name;
                let set = format!("{:?} has set others after that, which apply", last.who);
                eprintln!(
                    "the rules of {name:?} are not the fleet's: {set}. Save the file to set its own"
                );
                break;
            }
            let seen = last.map_or(0, |last| last.number);
            match fleet.set_if(seen, self.domain.table()?, &who()).await {
                // Another process was faster, mostly with the same rules.
                Err(error) if error.is_conflict() => {}
                set => return set.map(drop),
            }
        }
        Ok(())
    }
}

/// Who sets the fleet's quotas.
fn who() -> String {
    let host = std::env::var("HOSTNAME").unwrap_or_default();
    let who = format!("envoy, process {} {host}", std::process::id());
    who.chars()
        .filter(|c| c.is_ascii_graphic() || *c == ' ')
        .take(64)
        .collect()
}
