//! The functions of a server: the commands on its libraries, and the calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::commands::keys::matches;
use super::commands::{integer, option, readable};
use super::library::{self, Library, Registered};
use super::lua::Limits;
use super::reply::{Bytes, Reply};
use super::{Parts, Server};

/// The texts of libraries.
pub type Texts = Vec<Arc<[u8]>>;

/// The libraries of a server, by name.
#[derive(Clone, Default)]
pub struct Libraries(BTreeMap<String, Arc<Library>>);

/// The number of arguments of a command, as in the table of commands.
pub fn arity(name: &str) -> Option<i32> {
    match name {
        "FUNCTION" => Some(-2),
        "FCALL" | "FCALL_RO" | "FUNCTION|LOAD" => Some(-3),
        "FUNCTION|DELETE" => Some(3),
        _ => None,
    }
}

impl Registered {
    fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    fn writes(&self) -> bool {
        !self.has("no-writes")
    }

    fn told(&self) -> Reply {
        let flags = self.flags.iter().map(|flag| Reply::Status((*flag).into()));
        Reply::map([
            ("name", Reply::bulk(self.name.as_str())),
            ("description", Reply::of(self.description.as_ref())),
            ("flags", Reply::Array(flags.collect())),
        ])
    }
}

impl Library {
    fn told(&self, has_code: bool) -> Reply {
        let functions = self.functions.values().map(Registered::told).collect();
        let told = [
            ("library_name", Reply::bulk(self.name.as_str())),
            ("engine", Reply::bulk("LUA")),
            ("functions", Reply::Array(functions)),
        ];
        let code = has_code.then(|| ("library_code", Reply::bulk(&*self.text)));
        Reply::map(told.into_iter().chain(code))
    }
}

impl Libraries {
    fn function(&self, name: &[u8]) -> Option<(&Library, &Registered)> {
        let name = readable(name).to_ascii_lowercase();
        let mut libraries = self.0.values();
        libraries.find_map(|library| Some((&**library, library.functions.get(&name)?)))
    }

    /// Whether a command writes, and whether it is refused when the memory is full.
    pub fn effects(&self, name: &str, arguments: &[Bytes]) -> Option<(bool, bool)> {
        match name {
            "FCALL" | "FCALL_RO" => {
                let (_, function) = self.function(&arguments[1])?;
                let writes = function.writes();
                Some((writes, writes && !function.has("allow-oom")))
            }
            "FUNCTION|LOAD" => Some((true, true)),
            "FUNCTION|DELETE" | "FUNCTION|FLUSH" => Some((true, false)),
            _ => None,
        }
    }

    pub fn texts(&self) -> Texts {
        let libraries = self.0.values();
        libraries.map(|library| Arc::clone(&library.text)).collect()
    }

    /// Adds a library, unless another one has a function of the same name.
    fn add(&mut self, library: Arc<Library>) -> Result<(), String> {
        let mut others = self.0.values().filter(|other| other.name != library.name);
        let shared = others.find_map(|other| {
            let mut functions = library.functions.iter();
            functions.find(|(name, _)| other.functions.contains_key(*name))
        });
        if let Some((_, function)) = shared {
            return Err(format!("Function {} already exists", function.name));
        }
        self.0.insert(library.name.clone(), library);
        Ok(())
    }

    /// `FUNCTION LIST`.
    fn list(&self, options: &[Bytes]) -> Result<Reply, String> {
        let (mut pattern, mut has_code) = (None, false);
        let mut options = options.iter();
        while let Some(word) = options.next() {
            match option(word).as_str() {
                "WITHCODE" if !has_code => has_code = true,
                "LIBRARYNAME" if pattern.is_none() => {
                    let given = options.next();
                    let given = given.ok_or("library name argument was not given")?;
                    pattern = Some(given.to_ascii_lowercase());
                }
                _ => return Err(format!("Unknown argument {}", readable(word))),
            }
        }
        let fits = |library: &&Arc<Library>| {
            let name = library.name.to_ascii_lowercase();
            let is_one = |pattern: &Bytes| matches(pattern, name.as_bytes());
            pattern.as_ref().is_none_or(is_one)
        };
        let listed = self.0.values().filter(fits);
        Ok(Reply::Array(
            listed.map(|library| library.told(has_code)).collect(),
        ))
    }
}

/// The keys and the other arguments of a call.
fn parts(arguments: &[Bytes]) -> Result<Parts<'_>, &'static str> {
    let count = integer(&arguments[2]).map_err(|_| "Bad number of keys provided")?;
    let count = usize::try_from(count).map_err(|_| "Number of keys can't be negative")?;
    arguments[3..]
        .split_at_checked(count)
        .ok_or("Number of keys can't be greater than number of args")
}

fn refused(error: String) -> Reply {
    Reply::Error(format!("ERR {error}"))
}

impl Server {
    /// `FUNCTION`.
    pub(super) fn function(&mut self, name: &str, arguments: &[Bytes]) -> Reply {
        let reply = match name {
            "FUNCTION|LOAD" => self.load(&arguments[2..]),
            "FUNCTION|LIST" => self.libraries.list(&arguments[2..]),
            "FUNCTION|DELETE" => self.delete(&arguments[2]),
            "FUNCTION|FLUSH" => self.flush(arguments),
            _ => {
                let part = readable(&arguments[1]);
                Err(format!("unknown subcommand '{part}'. Try FUNCTION HELP."))
            }
        };
        reply.unwrap_or_else(refused)
    }

    fn load(&mut self, arguments: &[Bytes]) -> Result<Reply, String> {
        let (text, options) = arguments.split_last().ok_or("Missing library metadata")?;
        if let Some(unknown) = options.iter().find(|word| option(word) != "REPLACE") {
            return Err(format!("Unknown option given: {}", readable(unknown)));
        }
        let name = library::name(text)?;
        if options.is_empty() && self.libraries.0.contains_key(&name) {
            return Err(format!("Library '{name}' already exists"));
        }
        self.libraries.add(self.scripts.library(text)?)?;
        self.log.note_libraries(self.texts());
        Ok(Reply::bulk(name))
    }

    fn delete(&mut self, name: &Bytes) -> Result<Reply, String> {
        let name = readable(name);
        self.libraries.0.remove(&*name).ok_or("Library not found")?;
        self.log.note_libraries(self.texts());
        Ok(Reply::ok())
    }

    fn flush(&mut self, arguments: &[Bytes]) -> Result<Reply, String> {
        match &arguments[2..] {
            [] => {}
            [how] if matches!(option(how).as_str(), "ASYNC" | "SYNC") => {}
            [_] => return Err("FUNCTION FLUSH only supports SYNC|ASYNC option".into()),
            _ => {
                let part = readable(&arguments[1]);
                let what = format!("unknown subcommand or wrong number of arguments for '{part}'");
                return Err(format!("{what}. Try FUNCTION HELP."));
            }
        }
        self.flush_functions();
        Ok(Reply::ok())
    }

    /// Loses its functions. A replica has those of its master.
    pub fn flush_functions(&mut self) {
        if self.master.is_none() {
            self.libraries = Libraries::default();
            self.log.note_libraries(self.texts());
        }
    }

    /// The texts of its libraries.
    pub fn texts(&self) -> Texts {
        self.libraries.texts()
    }

    /// Has these libraries from now on: those of another server.
    pub fn take_over(&mut self, texts: &[Arc<[u8]>]) {
        let libraries = texts.iter().filter_map(|text| {
            let library = self.scripts.library(text).ok()?;
            Some((library.name.clone(), library))
        });
        self.libraries = Libraries(libraries.collect());
    }

    /// `FCALL` and `FCALL_RO`.
    pub(super) fn call(&self, name: &str, arguments: &[Bytes]) -> Reply {
        self.called(name, arguments).unwrap_or_else(refused)
    }

    fn called(&self, name: &str, arguments: &[Bytes]) -> Result<Reply, String> {
        let found = self.libraries.function(&arguments[1]);
        let (library, function) = found.ok_or("Function not found")?;
        let parts = parts(arguments)?;
        if function.has("no-cluster") && self.cluster.is_some() {
            return Err("Can not run script on cluster, 'no-cluster' flag is set.".into());
        }
        if name == "FCALL_RO" && function.writes() {
            return Err("Can not execute a script with write flag using *_ro command.".into());
        }
        // Who may not write, or not when the memory is full, was refused before.
        let limits = Limits {
            is_reader: !function.writes(),
            ..Limits::default()
        };
        Ok(self.scripts.call(library, function, parts, limits))
    }
}
