//! The scripts, run by Lua 5.1 as a server runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_int};
use std::slice;
use std::sync::{Arc, Mutex};

use mlua::ffi::{self, lua_State};
use mlua::{Function, HookTriggers, IntoLuaMulti, Lua, Value, VmState};
use sha1_smol::Sha1;

use super::cluster::Topology;
use super::commands::{option, readable};
use super::database::{Database, command};
use super::library::{Library, Loader, Registered};
use super::reply::{Bytes, Reply, number};
use super::{FULL, Parts, READ_ONLY, coverage, faults, lock, structs};

/// Machines of servers that are gone, for those to come: making one and compiling its scripts takes longer than a small world.
static SPARE: Mutex<Vec<Arc<Machine>>> = Mutex::new(Vec::new());

/// Scripts and their digests, by the lengths of the texts: most texts begin alike.
static DIGESTS: Mutex<BTreeMap<usize, Vec<(Bytes, String)>>> = Mutex::new(BTreeMap::new());

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

/// What the commands of a script work on.
#[derive(Default)]
struct Scene {
    database: Arc<Mutex<Database>>,
    call: Arc<Mutex<Call>>,
}

/// A Lua that runs scripts on a database.
struct Machine {
    lua: Lua,
    scene: Box<Scene>,
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
        let scene = Box::<Scene>::default();
        let redis = lua.create_table()?;
        let digest = lua.create_function(|_, text: mlua::String| Ok(digest(&text.as_bytes())))?;
        redis.set("sha1hex", digest)?;
        lua.globals().set("redis", redis)?;
        structs::add(&lua)?;
        let place = std::ptr::from_ref::<Scene>(&scene).cast_mut().cast();
        // SAFETY: the scene lives as long as the machine, and nothing else is on the stack.
        let run: Function = unsafe {
            lua.exec_raw((), |lua| {
                ffi::lua_pushlightuserdata(lua, place);
                ffi::lua_pushcclosure(lua, run, 1);
            })?
        };
        let globals = lua.globals();
        let names = ["error", "type", "getmetatable"].map(|name| globals.get::<Value>(name));
        let [error, kind, metatable] = names;
        if coverage::is_on() {
            watch(&lua, Arc::clone(&scene.call))?;
        }
        let prelude = lua.load(PRELUDE).set_name("=prelude");
        Ok(Self {
            protect: prelude.call((run, error?, kind?, metatable?))?,
            loader: Loader::new(&lua)?,
            lua,
            scene,
            compiled: Mutex::default(),
        })
    }

    fn compiled(&self, digest: &str, text: &[u8]) -> mlua::Result<()> {
        let mut compiled = lock(&self.compiled);
        if !compiled.contains_key(digest) {
            coverage::knows(digest, text);
            let text = faults::put_back(text);
            let script = self.lua.load(&*text).set_name("=user_script");
            compiled.insert(digest.to_owned(), script.into_function()?);
        }
        Ok(())
    }

    fn script(&self, digest: &str, (keys, values): Parts<'_>, limits: Limits) -> Reply {
        let script = lock(&self.compiled).get(digest).cloned();
        self.run(digest, limits, script, |lua| {
            for (name, texts) in [(c"KEYS", keys), (c"ARGV", values)] {
                // SAFETY: the stack has room for some values.
                unsafe {
                    ffi::lua_pushstring(lua, name.as_ptr());
                    push_texts(lua, texts);
                    ffi::lua_rawset(lua, ffi::LUA_GLOBALSINDEX);
                }
            }
        })
    }

    /// Calls what is first with what follows it, and with what `adds` puts on the stack.
    fn run(
        &self,
        digest: &str,
        limits: Limits,
        called: impl IntoLuaMulti,
        adds: impl FnOnce(*mut lua_State),
    ) -> Reply {
        {
            let mut call = lock(&self.scene.call);
            (call.limits, call.has_written) = (limits, false);
            if coverage::is_on() {
                call.digest = digest.into();
            }
        }
        let mut reply = Reply::Nil;
        let called = called.into_lua_multi(&self.lua).map(|mut called| {
            called.push_front(Value::Function(self.protect.clone()));
            called
        });
        // SAFETY: the function is below its arguments, and nothing is left on the stack.
        let done = called.and_then(|called| unsafe {
            self.lua.exec_raw::<()>(called, |lua| {
                adds(lua);
                ffi::lua_call(lua, ffi::lua_gettop(lua) - 1, 1);
                reply = replied(lua, 1);
                ffi::lua_settop(lua, 0);
            })
        });
        done.map_or_else(|error| Reply::error(format!("ERR {error}")), |()| reply)
    }
}

impl Scripts {
    pub fn new() -> mlua::Result<Self> {
        let spare = lock(&SPARE).pop();
        let machine = spare.map_or_else(|| Machine::new().map(Arc::new), Ok)?;
        *lock(&machine.scene.call) = Call::default();
        *lock(&machine.scene.database) = Database::default();
        Ok(Self {
            machine,
            known: BTreeSet::new(),
        })
    }

    /// What the scripts work on.
    pub fn database(&self) -> Arc<Mutex<Database>> {
        Arc::clone(&self.machine.scene.database)
    }

    /// Forgets all scripts, as `SCRIPT FLUSH` and a restart do.
    pub fn flush(&mut self) {
        self.known.clear();
    }

    /// From now on this is a node of a Cluster.
    pub fn join(&mut self, node: Node) {
        lock(&self.machine.scene.call).cluster = Some(node);
    }

    /// `EVAL`: the arguments begin with that name.
    pub fn eval(&mut self, arguments: &[Bytes], limits: Limits) -> Reply {
        let digest = digest_of_script(&arguments[1]);
        if let Err(error) = self.machine.compiled(&digest, &arguments[1]) {
            let what = "ERR Error compiling script (new function)";
            return Reply::Error(format!("{what}: {error}"));
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
        self.machine.script(digest, parts, limits)
    }

    /// The library of a text, which runs when the machine gets it for the first time.
    pub fn library(&self, text: &[u8]) -> Result<Arc<Library>, String> {
        let (machine, digest) = (&self.machine, digest_of_script(text));
        let run = |called| machine.run(&digest, Limits::default(), called, |_| {});
        machine.loader.library(&machine.lua, &digest, text, run)
    }

    /// Calls a function of a library.
    pub fn call(
        &self,
        library: &Library,
        function: &Registered,
        parts: Parts<'_>,
        limits: Limits,
    ) -> Reply {
        let adds = |lua| {
            let (keys, values) = parts;
            // SAFETY: the stack has room for some values.
            unsafe {
                push_texts(lua, keys);
                push_texts(lua, values);
            }
        };
        let (machine, digest) = (&self.machine, &library.digest);
        machine.run(digest, limits, &function.callback, adds)
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
        let name = source.short_src.as_deref();
        if let (Some("user_script" | "user_function"), Some(line)) = (name, debug.current_line()) {
            coverage::runs(&lock(&call).digest, line, source.line_defined.unwrap_or(0));
        }
        Ok(VmState::Continue)
    })
}

pub fn digest(text: &[u8]) -> String {
    Sha1::from(text).digest().to_string()
}

/// The digest of a script, which is known after the first time.
fn digest_of_script(text: &[u8]) -> String {
    let mut digests = lock(&DIGESTS);
    let alike = digests.entry(text.len()).or_default();
    if let Some((_, digest)) = alike.iter().find(|(other, _)| other == text) {
        return digest.clone();
    }
    let digest = digest(text);
    alike.push((text.to_vec(), digest.clone()));
    digest
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

/// `redis.pcall`: a command of a script.
unsafe extern "C-unwind" fn run(lua: *mut lua_State) -> c_int {
    // SAFETY: the value is the scene of the machine, see `Machine::new`, and the arguments are on the stack.
    unsafe {
        let scene = &*ffi::lua_touserdata(lua, ffi::lua_upvalueindex(1)).cast::<Scene>();
        let arguments = (1..=ffi::lua_gettop(lua)).map(|at| argument(lua, at));
        let reply = match arguments.collect::<Option<Vec<_>>>() {
            Some(all) => ran(&mut lock(&scene.database), &mut lock(&scene.call), &all),
            None => Reply::error("ERR Lua redis lib command arguments must be strings or integers"),
        };
        push(lua, &reply);
    }
    1
}

/// A string of the stack, or a number as one.
///
/// # Safety
///
/// The stack must have a value there.
unsafe fn argument(lua: *mut lua_State, at: c_int) -> Option<Bytes> {
    // SAFETY: as the caller says.
    unsafe {
        match ffi::lua_type(lua, at) {
            ffi::LUA_TSTRING => Some(string(lua, at).to_vec()),
            ffi::LUA_TNUMBER => {
                let real = ffi::lua_tonumber(lua, at);
                let whole = real as i64;
                Some(match (real - whole as f64).abs() < f64::EPSILON {
                    true => whole.to_string().into(),
                    false => number(real).into(),
                })
            }
            _ => None,
        }
    }
}

/// The bytes of a string of the stack, as long as it is there.
///
/// # Safety
///
/// The stack must have a string there.
unsafe fn string<'a>(lua: *mut lua_State, at: c_int) -> &'a [u8] {
    let mut length = 0;
    // SAFETY: as the caller says.
    unsafe { slice::from_raw_parts(ffi::lua_tolstring(lua, at, &mut length).cast(), length) }
}

fn ran(database: &mut Database, call: &mut Call, arguments: &[Bytes]) -> Reply {
    let Some(name) = arguments.first() else {
        return Reply::error("ERR Please specify at least one argument for this redis.call() call");
    };
    let Some(command) = command(&option(name)) else {
        return Reply::error("ERR Unknown Redis command called from script");
    };
    if !command.fits(arguments) {
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
    let mut keys = super::keys(command.name, arguments).iter();
    if let Some((topology, own)) = &call.cluster
        && !keys.all(|key| lock(topology).serves(*own, key))
    {
        return Reply::error("ERR Script attempted to access a non local key in a cluster node");
    }
    call.has_written |= command.writes;
    command.run(database, arguments)
}

/// Pushes a string.
///
/// # Safety
///
/// The stack must have room for it. The same is true of the next three.
unsafe fn push_text(lua: *mut lua_State, text: &[u8]) {
    // SAFETY: as the caller says.
    unsafe { ffi::lua_pushlstring(lua, text.as_ptr().cast(), text.len()) };
}

/// Pushes a table of strings.
unsafe fn push_texts(lua: *mut lua_State, texts: &[Bytes]) {
    // SAFETY: as the caller says.
    unsafe { push_all(lua, texts, |text| push_text(lua, text)) }
}

/// Pushes a table.
unsafe fn push_all<T>(lua: *mut lua_State, all: &[T], push: impl Fn(&T)) {
    // SAFETY: as the caller says.
    unsafe {
        ffi::lua_createtable(lua, all.len() as c_int, 0);
        for (at, one) in (1..).zip(all) {
            push(one);
            ffi::lua_rawseti(lua, -2, at);
        }
    }
}

/// Pushes a reply as a script gets it.
unsafe fn push(lua: *mut lua_State, reply: &Reply) {
    // SAFETY: the stack has room for what this pushes.
    let push_one = |reply: &Reply| unsafe { push(lua, reply) };
    let single = |field: &CStr, text: &str| {
        // SAFETY: the same.
        unsafe {
            ffi::lua_createtable(lua, 0, 1);
            push_text(lua, text.as_bytes());
            ffi::lua_setfield(lua, -2, field.as_ptr());
        }
    };
    // SAFETY: the same.
    unsafe {
        ffi::luaL_checkstack(lua, 4, std::ptr::null());
        match reply {
            Reply::Nil => ffi::lua_pushboolean(lua, 0),
            Reply::Int(whole) => ffi::lua_pushnumber(lua, *whole as f64),
            Reply::Bulk(bytes) => push_text(lua, bytes),
            Reply::Status(text) => single(c"ok", text),
            Reply::Error(text) => single(c"err", text),
            Reply::Array(all) | Reply::Push(all) => push_all(lua, all, push_one),
            Reply::Map(pairs) => {
                let flat: Vec<_> = pairs.iter().flat_map(|(key, value)| [key, value]).collect();
                push_all(lua, &flat, |one| push_one(one));
            }
        }
    }
}

/// The reply that a script has returned.
///
/// # Safety
///
/// The stack must have a value there, and room for some more.
unsafe fn replied(lua: *mut lua_State, at: c_int) -> Reply {
    // SAFETY: as the caller says.
    unsafe {
        match ffi::lua_type(lua, at) {
            ffi::LUA_TNUMBER => Reply::Int(ffi::lua_tonumber(lua, at) as i64),
            ffi::LUA_TSTRING => Reply::bulk(string(lua, at)),
            ffi::LUA_TBOOLEAN if ffi::lua_toboolean(lua, at) != 0 => Reply::Int(1),
            ffi::LUA_TTABLE => {
                for (field, told) in [
                    (c"err", Reply::Error as fn(String) -> Reply),
                    (c"ok", Reply::Status),
                ] {
                    ffi::lua_pushstring(lua, field.as_ptr());
                    ffi::lua_rawget(lua, at);
                    let is_text = ffi::lua_type(lua, -1) == ffi::LUA_TSTRING;
                    let text = is_text.then(|| readable(string(lua, -1)).into_owned());
                    ffi::lua_pop(lua, 1);
                    if let Some(text) = text {
                        return told(text);
                    }
                }
                ffi::luaL_checkstack(lua, 4, std::ptr::null());
                let elements = (1..).map_while(|nth| {
                    ffi::lua_rawgeti(lua, at, nth);
                    let is_one = ffi::lua_type(lua, -1) != ffi::LUA_TNIL;
                    let one = is_one.then(|| replied(lua, ffi::lua_gettop(lua)));
                    ffi::lua_pop(lua, 1);
                    one
                });
                Reply::Array(elements.collect())
            }
            _ => Reply::Nil,
        }
    }
}
