//! A library of functions. Its text runs once in each machine, where it registers what may be called.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use mlua::{Error, Function, Lua, MultiValue, Table, Value};

use super::lua::text;
use super::reply::{Bytes, Reply};
use super::{coverage, faults, lock};

/// What a function may say about itself.
const FLAGS: &str = "no-writes allow-oom allow-stale no-cluster allow-cross-slot-keys";

const NO_NAME: &str = "Library names can only contain letters, numbers, or underscores(_) and must be at least one \
                       character long";
const NAMES: &str = "Invalid metadata value, name argument was given multiple times";
const NO_CALLBACK: &str = "callback argument given to redis.register_function must be a function";
const NO_TABLE: &str = "calling redis.register_function with a single argument is only applicable to Lua table \
                        (representing named arguments).";
const NO_FLAGS: &str =
    "flags argument to redis.register_function must be a table representing function flags";

/// What registers functions, and where a library finds its globals: while it is loaded, there is nothing but that.
const PRELUDE: &str = r#"
local register = ...
local guard, loading, running = getmetatable(_G), {redis = {}}, {}
for name, value in pairs(_G) do running[name] = value end
function loading.redis.register_function(...)
  local refusal = register(...)
  if refusal then error({err = 'ERR ' .. refusal}, 0) end
end
for _, one in ipairs({loading, loading.redis, running}) do setmetatable(one, guard) end
local own = {__newindex = guard.__newindex}
local globals = setmetatable({}, own)
running._G = globals
local error, pcall, setfenv = error, pcall, setfenv
return function(library)
  own.__index = loading
  local done, problem = pcall(setfenv(library, globals))
  own.__index = running
  if not done then error(problem, 0) end
end
"#;

/// A function of a library.
pub struct Registered {
    pub name: String,
    pub description: Option<Bytes>,
    pub flags: Vec<&'static str>,
    pub callback: Function,
}

/// Functions by their names in small letters, since calls ignore the case.
type Functions = BTreeMap<String, Registered>;

pub struct Library {
    pub name: String,
    pub text: Arc<[u8]>,
    pub digest: String,
    pub functions: Functions,
}

/// What loads the libraries of a machine.
pub struct Loader {
    load: Function,
    /// What the library has registered that is being loaded.
    registered: Arc<Mutex<Functions>>,
    /// All that were loaded, by digest.
    loaded: Mutex<BTreeMap<String, Arc<Library>>>,
}

impl Loader {
    pub fn new(lua: &Lua) -> mlua::Result<Self> {
        let registered = Arc::<Mutex<Functions>>::default();
        let own = Arc::clone(&registered);
        let register =
            move |_: &Lua, arguments: MultiValue| Ok(register(&mut lock(&own), arguments).err());
        let prelude = lua.load(PRELUDE).set_name("=prelude");
        Ok(Self {
            load: prelude.call(lua.create_function(register)?)?,
            registered,
            loaded: Mutex::default(),
        })
    }

    /// The library of a text. `run` calls a function with another one.
    pub fn library(
        &self,
        lua: &Lua,
        digest: &str,
        text: &[u8],
        run: impl FnOnce((Function, Function)) -> Reply,
    ) -> Result<Arc<Library>, String> {
        if let Some(library) = lock(&self.loaded).get(digest) {
            return Ok(Arc::clone(library));
        }
        let name = name(text)?;
        coverage::knows(digest, text);
        lock(&self.registered).clear();
        let compiled =
            compiled(lua, text).map_err(|error| format!("Error compiling function: {error}"))?;
        if let Reply::Error(error) = run((self.load.clone(), compiled)) {
            return Err(format!("Error registering functions: {error}"));
        }
        let functions = std::mem::take(&mut *lock(&self.registered));
        if functions.is_empty() {
            return Err("No functions registered".into());
        }
        let library = Arc::new(Library {
            name,
            text: text.into(),
            digest: digest.into(),
            functions,
        });
        lock(&self.loaded).insert(digest.into(), Arc::clone(&library));
        Ok(library)
    }
}

/// The text without its first line, whose number is that of a line nevertheless.
fn compiled(lua: &Lua, text: &[u8]) -> Result<Function, String> {
    let text = faults::put_back(text);
    let line = text.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let function = lua.load(&text[line..]).set_name("=user_function");
    function.into_function().map_err(|error| match error {
        Error::SyntaxError { message, .. } => message,
        error => error.to_string(),
    })
}

/// The name that the first line of a text gives the library.
pub fn name(text: &[u8]) -> Result<String, String> {
    if !text.starts_with(b"#!") {
        return Err("Missing library metadata".into());
    }
    let end = text.iter().position(|byte| *byte == b'\n');
    let line = String::from_utf8_lossy(&text[2..end.ok_or("Invalid library metadata")?]);
    let (engine, parts) = line.split_once(' ').unwrap_or((&line, ""));
    let mut name = None;
    for part in parts.split_whitespace() {
        match part.strip_prefix("name=") {
            None => return Err(format!("Invalid metadata value given: {part}")),
            Some(_) if name.is_some() => return Err(NAMES.into()),
            given => name = given,
        }
    }
    let name = checked(name.ok_or("Library name was not given")?.as_bytes())?;
    match engine.eq_ignore_ascii_case("lua") {
        true => Ok(name),
        false => Err(format!("Engine '{engine}' not found")),
    }
}

/// The name of a library or a function, if it may have it.
fn checked(name: &[u8]) -> Result<String, &'static str> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match !name.is_empty() && name.iter().all(fits) {
        true => Ok(String::from_utf8_lossy(name).into_owned()),
        false => Err(NO_NAME),
    }
}

/// `redis.register_function`: a name and a callback, or a table of what is given by name.
fn register(functions: &mut Functions, arguments: MultiValue) -> Result<(), String> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let function = match &arguments[..] {
        [Value::Table(named)] => by_name(named)?,
        [_] => return Err(NO_TABLE.into()),
        [name, Value::Function(callback)] => {
            let name =
                text(name).ok_or("first argument to redis.register_function must be a string")?;
            Registered {
                name: checked(&name)?,
                description: None,
                flags: vec![],
                callback: callback.clone(),
            }
        }
        [_, _] => {
            return Err("second argument to redis.register_function must be a function".into());
        }
        _ => return Err("wrong number of arguments to redis.register_function".into()),
    };
    match functions.insert(function.name.to_ascii_lowercase(), function) {
        None => Ok(()),
        Some(_) => Err("Function already exists in the library".into()),
    }
}

fn by_name(named: &Table) -> Result<Registered, String> {
    let (mut name, mut description, mut flags, mut callback) = (None, None, vec![], None);
    let string = |what: &str, value: &Value| {
        let refused =
            || format!("{what} argument given to redis.register_function must be a string");
        text(value).ok_or_else(refused)
    };
    for pair in named.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|error| error.to_string())?;
        let key = text(&key)
            .ok_or("named argument key given to redis.register_function is not a string")?;
        match (key.to_ascii_lowercase().as_slice(), value) {
            (b"function_name", value) => name = Some(string("function_name", &value)?),
            (b"description", value) => description = Some(string("description", &value)?),
            (b"callback", Value::Function(function)) => callback = Some(function),
            (b"callback", _) => return Err(NO_CALLBACK.into()),
            (b"flags", Value::Table(given)) => flags = self::flags(&given)?,
            (b"flags", _) => return Err(NO_FLAGS.into()),
            _ => return Err("unknown argument given to redis.register_function".into()),
        }
    }
    let name = name.ok_or("redis.register_function must get a function name argument")?;
    let callback = callback.ok_or("redis.register_function must get a callback argument")?;
    Ok(Registered {
        name: checked(&name)?,
        description,
        flags,
        callback,
    })
}

fn flags(given: &Table) -> Result<Vec<&'static str>, String> {
    let known = |value: mlua::Result<Value>| {
        let flag = text(&value.ok()?)?;
        let mut flags = FLAGS.split(' ');
        flags.find(|known| known.as_bytes().eq_ignore_ascii_case(&flag))
    };
    let flags: Option<Vec<_>> = given.sequence_values().map(known).collect();
    flags.ok_or_else(|| "unknown flag given".into())
}
