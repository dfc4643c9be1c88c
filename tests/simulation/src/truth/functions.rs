//! Random commands on a few small libraries, and calls of their functions.

use super::random::Random;
use crate::server::reply::Bytes;

/// Libraries that can be loaded, and such that cannot. None passes nil to a command: at a flush after that, Redis 8.2.3 crashes.
const LIBRARIES: [&str; 24] = [
    "#!lua name=small\nredis.register_function('add', function(keys, args) return {#keys, #args, keys[1], args[1]} end)",
    "#!lua name=other\nredis.register_function('ADD', function() return 2 end)",
    WRITER,
    ENDS,
    "#!lua name=writer\nlocal calls = 0\nredis.register_function('calls', function() return KEYS end)",
    "",
    "return 1",
    "#!lua name=small",
    "#!lua name=small\n",
    "#!lua\nredis.register_function('a', function() end)",
    "#!lua name=a-b\nredis.register_function('a', function() end)",
    "#!lua name=small engine=lua\nredis.register_function('a', function() end)",
    "#!lua name=small name=other\nredis.register_function('a', function() end)",
    "#!js name=small\nredis.register_function('a', function() end)",
    "#!lua name=broken\n\nlocal = 3",
    "#!lua name=broken\nlocal call = redis.call",
    "#!lua name=broken\nlocal next = pairs",
    "#!lua name=broken\ncounter = 1",
    "#!lua name=broken\nredis.register_function('a', 3)",
    "#!lua name=broken\nredis.register_function('a.b', function() end)",
    "#!lua name=broken\nredis.register_function{function_name = 'a', callback = function() end, flags = {'writes'}}",
    "#!lua name=broken\nredis.register_function{function_name = 'a', callback = function() end, kind = 3}",
    "#!lua name=broken\nredis.register_function{function_name = 'a'}",
    "#!lua name=broken\nfor _ = 1, 2 do redis.register_function('a', function() end) end",
];

const WRITER: &str = "#!lua name=writer
local function register(name, flags)
  redis.register_function{function_name = name, flags = flags, description = 'Runs ' .. name, callback = function(keys, args)
    return redis[args[1] or 'call'](args[2] or 'GET', keys[1] or 'a', unpack(args, 3))
  end}
end
register('run', {})
register('read', {'no-writes'})
register('run_full', {'allow-oom'})
register('read_full', {'NO-WRITES', 'allow-oom', 'allow-stale'})
";

const ENDS: &str = "#!lua name=ends
local register = redis.register_function
register('ends_table', function() return {err = 'X y'} end)
register('ends_raised', function() error({err = 'X y'}) end)
register('ends_text', function() error('text') end)
register('ends_plain', function() error('text', 0) end)
register('ends_index', function() local none; return none.field end)
register('ends_global', function() return none end)
register('ends_argv', function() return ARGV end)
register('ends_globals', function() return {_G, _G.ARGV} end)
register('ends_set', function() none = 1 end)
register('ends_state', function() return {ok = 'X y'} end)
register('ends_number', function() return 3.9 end)
register('ends_nothing', function() end)
register('ends_false', function() return false end)
register('ends_nested', function(...) return {select('#', ...), {true, 'text', {}}, nil, 4} end)
register('ends_late', function(keys) redis.call('SET', keys[1] or 'a', 'late') error('late') end)
register('ends_loading', function() redis.register_function('late', function() end) end)
";

// Lists that commas divide.
const USUAL: &str = "add,calls,run,Run,read,run_full,read_full";
const FUNCTIONS: &str = "\
    add,calls,run,Run,read,run_full,read_full,none,,ends_table,ends_raised,ends_text,\
    ends_plain,ends_index,ends_global,ends_argv,ends_globals,ends_set,ends_state,\
    ends_number,ends_nothing,ends_false,ends_nested,ends_late,ends_loading";

const USUAL_LOADS: &str = "FUNCTION LOAD REPLACE,FUNCTION LOAD";
const LOADS: &str = "FUNCTION LOAD REPLACE,FUNCTION LOAD,FUNCTION LOAD ONCE";
const KEYS: &str = "0,1 a,1 a,1 b,2 a b,2 a,-1,01 a,x,9999999999999999999";
const ARGUMENTS: &str = "\
    ,call SET v,call GET,pcall SET w,pcall PUBLISH message,call DEL,call NONE,call ZADD,\
    call BITFIELD";
const OTHERS: &str = "\
    FUNCTION,FUNCTION NONE,FUNCTION LOAD,FUNCTION LIST,FUNCTION LIST WITHCODE,\
    FUNCTION LIST LIBRARYNAME *S* withcode,function list libraryname small,\
    FUNCTION LIST LIBRARYNAME,FUNCTION LIST WITHCODE WITHCODE,FUNCTION DELETE,\
    FUNCTION DELETE small,FUNCTION DELETE Writer,FUNCTION DELETE writer,\
    FUNCTION DELETE ends,FUNCTION FLUSH,FUNCTION FLUSH SYNC,FUNCTION FLUSH NOW,\
    FUNCTION FLUSH SYNC NOW,FCALL,FCALL run";

impl Random {
    pub fn on_functions(&mut self) -> Vec<Bytes> {
        let words = |text: String| text.split_whitespace().map(Bytes::from).collect::<Vec<_>>();
        match self.below(10) {
            0 => words(self.one(OTHERS)),
            which @ 1..=3 => {
                // Those that can be loaded are the first, and so are usual words.
                let (libraries, loads) = if which == 1 {
                    (LIBRARIES.len(), LOADS)
                } else {
                    (5, USUAL_LOADS)
                };
                let command = words(self.one(loads));
                [command, vec![LIBRARIES[self.below(libraries)].into()]].concat()
            }
            which => {
                let command = self.one("FCALL,FCALL,FCALL_RO");
                let function = self.one(if which < 7 { FUNCTIONS } else { USUAL });
                let function = vec![command.into(), function.into()];
                [function, words(self.one(KEYS)), words(self.one(ARGUMENTS))].concat()
            }
        }
    }
}
