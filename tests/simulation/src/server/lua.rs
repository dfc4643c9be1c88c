//! The scripts, run by Lua 5.1 as a server runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use mlua::{Function, HookTriggers, IntoLuaMulti, Lua, MultiValue, Table, Value, VmState};
use sha1_smol::Sha1;

use super::cluster::Topology;
use super::database::{Database, command};
use super::library::{Library, Loader, Registered};
use super::reply::{Bytes, Reply, number};
use super::{FULL, Parts, READ_ONLY, coverage, faults, lock, structs};

/// Machines of servers that are gone, for those to come: making one and compiling its scripts takes longer than a small world.
static SPARE: Mutex<Vec<Arc<Machine>>> = Mutex::new(Vec::new());

/// The digests of scripts, by their texts.
static DIGESTS: Mutex<BTreeMap<Vec<u8>, String>> = Mutex::new(BTreeMap::new());

/// What the current script or function may do.
#[derive(Clone, Copy, Default)]
pub struct Limits {
    /// The memory is full.
    pub is_full: bool,
    /// This is a replica, or a master without enough replicas.
    pub is_read_only: bool,
    /// It has said that it does not write.
    pub is_reader: bool,
}

/// The slots of a Cluster, and the number of a node.
pub type Node = (Arc<Mutex<Topology>>, usize);

/// What happens during one call.
#[derive(Default)]
struct Call {
    limits: Limits,
    /// Which node of a Cluster this is.
    cluster: Option<Node>,
    /// Whether it has written, so that it may go on although the memory is full.
    has_written: bool,
    digest: String,
}

/// A Lua that runs scripts on a database.
struct Machine {
    lua: Lua,
    database: Arc<Mutex<Database>>,
    call: Arc<Mutex<Call>>,
    protect: Function,
    /// All that it has run, by digest.
    compiled: Mutex<BTreeMap<String, Function>>,
    loader: Loader,
}

/// The scripts that a server knows, and what runs them.
pub struct Scripts {
    machine: Arc<Machine>,
    known: BTreeSet<String>,
}

const PRELUDE: &str = r#"
local run, error, type, getmetatable = ...
function redis.pcall(...) return run(...) end
function redis.call(...)
  local reply = run(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
local pcall, tostring = pcall, tostring
setmetatable(_G, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})
return function(script, ...)
  local done, reply = pcall(script, ...)
  if done then return reply end
  if type(reply) == 'table' and reply.err then return {err = reply.err .. ' script: simulated'} end
  return {err = 'ERR ' .. tostring(reply) .. ' script: simulated'}
end
"#;

impl Machine {
    fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        let (call, database) = (Arc::<Mutex<Call>>::default(), Arc::<Mutex<Database>>::default());
        let redis = lua.create_table()?;
        let digest = lua.create_function(|_, text: mlua::String| Ok(digest(&text.as_bytes())))?;
        redis.set("sha1hex", digest)?;
        lua.globals().set("redis", redis)?;
        structs::add(&lua)?;
        let (current, own) = (Arc::clone(&call), Arc::clone(&database));
        let run = lua.create_function(move |lua, arguments: MultiValue| {
            let reply = run(&mut lock(&own), &mut lock(&current), arguments);
            to_lua(lua, reply)
        })?;
        let globals = lua.globals();
        let names = ["error", "type", "getmetatable"].map(|name| globals.get::<Value>(name));
        let [error, kind, metatable] = names;
        if coverage::is_on() {
            watch(&lua, Arc::clone(&call))?;
        }
        let protect = lua.load(PRELUDE).set_name("=prelude").call((run, error?, kind?, metatable?))?;
        let loader = Loader::new(&lua)?;
        Ok(Self { lua, database, call, protect, compiled: Mutex::default(), loader })
    }

    fn compiled(&self, digest: &str, text: &[u8]) -> mlua::Result<()> {
        let mut compiled = lock(&self.compiled);
        if !compiled.contains_key(digest) {
            coverage::knows(digest, text);
            let text = faults::put_back(text);
            let script = self.lua.load(&*text).set_name("=user_script").into_function()?;
            compiled.insert(digest.to_owned(), script);
        }
        Ok(())
    }

    fn script(&self, digest: &str, (keys, values): Parts<'_>, limits: Limits) -> mlua::Result<Value> {
        let script = lock(&self.compiled).get(digest).cloned();
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.table(keys)?)?;
        globals.raw_set("ARGV", self.table(values)?)?;
        self.run(digest, limits, script)
    }

    /// Calls what is first with what follows it.
    fn run(&self, digest: &str, limits: Limits, called: impl IntoLuaMulti) -> mlua::Result<Value> {
        {
            let mut call = lock(&self.call);
            (call.limits, call.has_written) = (limits, false);
            if coverage::is_on() {
                call.digest = digest.into();
            }
        }
        self.protect.call(called)
    }

    fn table(&self, texts: &[Bytes]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(texts.len(), 0)?;
        for (at, text) in texts.iter().enumerate() {
            table.raw_set(at + 1, self.lua.create_string(text)?)?;
        }
        Ok(table)
    }
}

impl Scripts {
    pub fn new() -> mlua::Result<Self> {
        let spare = lock(&SPARE).pop();
        let machine = match spare {
            Some(machine) => machine,
            None => Arc::new(Machine::new()?),
        };
        *lock(&machine.call) = Call::default();
        *lock(&machine.database) = Database::default();
        Ok(Self { machine, known: BTreeSet::new() })
    }

    /// What the scripts work on.
    pub fn database(&self) -> Arc<Mutex<Database>> {
        Arc::clone(&self.machine.database)
    }

    /// Forgets all scripts, as `SCRIPT FLUSH` and a restart do.
    pub fn flush(&mut self) {
        self.known.clear();
    }

    /// From now on this is a node of a Cluster.
    pub fn join(&mut self, node: Node) {
        lock(&self.machine.call).cluster = Some(node);
    }

    /// `EVAL`: the arguments begin with that name.
    pub fn eval(&mut self, arguments: &[Bytes], limits: Limits) -> Reply {
        let digest = digest_of_script(&arguments[1]);
        if let Err(error) = self.machine.compiled(&digest, &arguments[1]) {
            return Reply::error(format!("ERR Error compiling script (new function): {error}"));
        }
        let reply = self.run(&digest, arguments, limits);
        self.known.insert(digest);
        reply
    }

    /// `EVALSHA`.
    pub fn eval_by_digest(&mut self, arguments: &[Bytes], limits: Limits) -> Reply {
        let digest = String::from_utf8_lossy(&arguments[1]).to_ascii_lowercase();
        match self.known.contains(&digest) {
            true => self.run(&digest, arguments, limits),
            false => Reply::error("NOSCRIPT No matching script. Please use EVAL."),
        }
    }

    fn run(&self, digest: &str, arguments: &[Bytes], limits: Limits) -> Reply {
        let Some(parts) = super::keys_of_call(arguments) else {
            return Reply::error("ERR Number of keys can't be greater than number of args");
        };
        replied(self.machine.script(digest, parts, limits))
    }

    /// The library of a text, which runs when the machine gets it for the first time.
    pub fn library(&self, text: &[u8]) -> Result<Arc<Library>, String> {
        let (machine, digest) = (&self.machine, digest_of_script(text));
        let run = |called| replied(machine.run(&digest, Limits::default(), called));
        machine.loader.library(&machine.lua, &digest, text, run)
    }

    /// Calls a function of a library.
    pub fn call(&self, library: &Library, function: &Registered, parts: Parts<'_>, limits: Limits) -> Reply {
        let (machine, (keys, values)) = (&self.machine, parts);
        let tables = machine.table(keys).and_then(|keys| Ok((keys, machine.table(values)?)));
        replied(tables.and_then(|(keys, values)| {
            machine.run(&library.digest, limits, (&function.callback, keys, values))
        }))
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            lock(&SPARE).push(Arc::clone(&self.machine));
        }
    }
}

/// Notes what runs.
fn watch(lua: &Lua, call: Arc<Mutex<Call>>) -> mlua::Result<()> {
    let triggers = HookTriggers::new().every_line();
    lua.set_hook(triggers, move |_, debug| {
        let source = debug.source();
        if !matches!(source.short_src.as_deref(), Some("user_script" | "user_function")) {
            return Ok(VmState::Continue);
        }
        let call = lock(&call);
        if let Some(line) = debug.current_line() {
            coverage::runs(&call.digest, line, source.line_defined.unwrap_or(0));
        }
        Ok(VmState::Continue)
    })
}

pub fn digest(text: &[u8]) -> String {
    Sha1::from(text).digest().to_string()
}

/// The digest of a script, which is known after the first time.
fn digest_of_script(text: &[u8]) -> String {
    let known = lock(&DIGESTS).get(text).cloned();
    known.unwrap_or_else(|| {
        let digest = digest(text);
        lock(&DIGESTS).insert(text.to_vec(), digest.clone());
        digest
    })
}

/// A string, or a number as one.
pub fn text(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(whole) => Some(whole.to_string().into()),
        Value::Number(real) => Some(number(*real).into()),
        _ => None,
    }
}

/// A command of a script.
fn run(database: &mut Database, call: &mut Call, arguments: MultiValue) -> Reply {
    let Some(arguments) = arguments.iter().map(text).collect::<Option<Vec<Bytes>>>() else {
        return Reply::error("ERR Lua redis lib command arguments must be strings or integers");
    };
    let Some(name) = arguments.first().map(|name| String::from_utf8_lossy(name).to_ascii_uppercase()) else {
        return Reply::error("ERR Please specify at least one argument for this redis.call() call");
    };
    let Some(command) = command(&name) else {
        return Reply::error("ERR Unknown Redis command called from script");
    };
    if !command.fits(&arguments) {
        return Reply::error("ERR Wrong number of args calling Redis command from script");
    }
    if call.limits.is_reader && (command.writes || command.name.ends_with("PUBLISH")) {
        return Reply::error("ERR Write commands are not allowed from read-only scripts.");
    }
    if command.writes && call.limits.is_read_only {
        return Reply::error(READ_ONLY);
    }
    if command.grows && call.limits.is_full && !call.has_written {
        return Reply::error(FULL);
    }
    if let Some((topology, own)) = &call.cluster
        && !super::keys(&name, &arguments).iter().all(|key| lock(topology).serves(*own, key))
    {
        return Reply::error("ERR Script attempted to access a non local key in a cluster node");
    }
    call.has_written |= command.writes;
    command.run(database, &arguments)
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let single = |field: &str, text: String| {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(field, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Int(whole) => Ok(Value::Number(whole as f64)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Status(text) => single("ok", text),
        Reply::Error(text) => single("err", text),
        Reply::Array(all) | Reply::Push(all) => {
            let table = lua.create_table_with_capacity(all.len(), 0)?;
            for (at, one) in all.into_iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, one)?)?;
            }
            Ok(Value::Table(table))
        }
        Reply::Map(pairs) => {
            let flat = pairs.into_iter().flat_map(|(key, value)| [key, value]).collect();
            to_lua(lua, Reply::Array(flat))
        }
    }
}

fn replied(value: mlua::Result<Value>) -> Reply {
    value.map_or_else(|error| Reply::error(format!("ERR {error}")), from_lua)
}

fn from_lua(value: Value) -> Reply {
    match value {
        Value::Integer(whole) => Reply::Int(whole),
        Value::Number(real) => Reply::Int(real as i64),
        Value::String(text) => Reply::bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => {
            if let Ok(Value::String(text)) = table.raw_get("err") {
                return Reply::error(text.to_string_lossy());
            }
            if let Ok(Value::String(text)) = table.raw_get("ok") {
                return Reply::Status(text.to_string_lossy());
            }
            let elements = (1..).map_while(|at| match table.raw_get(at) {
                Ok(Value::Nil) | Err(_) => None,
                Ok(value) => Some(from_lua(value)),
            });
            Reply::Array(elements.collect())
        }
        _ => Reply::Nil,
    }
}
