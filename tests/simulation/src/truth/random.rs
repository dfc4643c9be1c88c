//! Random commands: each command of the simulated server, with arguments of few values, so that they meet.

use crate::os;
use crate::server::database::COMMANDS;
use crate::server::reply::Bytes;

pub struct Random(pub u64);

// Lists of words, divided by commas.
const KEYS: &str = "a,b,c,{a}d";
const SMALL: &str = "0,1,2,-1,-2,3,7,100";
const NUMBERS: &str = "0,1,2,-1,-2,3,7,100,1.5,x,,9007199254740991,01,99999999999999999999";
const SCORES: &str = "0,1,2,2.5,-3,inf,-inf,1e15,9007199254740993,0.1,x,-0,4503599627370496,3.0e-7";
const MEMBERS: &str = "m,n,o,,long member";
const WORDS: &str =
    "NX,XX,GT,LT,CH,GET,PX,KEEPTTL,PXAT,BYSCORE,REV,LIMIT,WITHSCORES,BYTE,SET,u1,#3,EX";

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        (os::draw(&mut self.0) % end as u64) as usize
    }

    /// One of some words that commas divide.
    pub fn one(&mut self, all: &str) -> String {
        let all: Vec<_> = all.split(',').collect();
        all[self.below(all.len())].to_owned()
    }

    /// One to three of them.
    fn some(&mut self, all: &str) -> Vec<String> {
        (0..1 + self.below(3)).map(|_| self.one(all)).collect()
    }

    fn edge(&mut self) -> String {
        let score = self.one(SCORES);
        if self.below(3) == 0 {
            format!("({score}")
        } else {
            score
        }
    }

    /// A span of time in ms: hardly ever one that is over at the next command.
    fn span(&mut self) -> String {
        match self.below(8) {
            0 => self.one(NUMBERS),
            _ => (1 + self.below(5000)).to_string(),
        }
    }

    /// A command, sometimes as that of a script.
    pub fn command(&mut self, now: i64) -> Vec<Bytes> {
        let mut words = self.plain(now);
        match self.below(40) {
            0 if words.len() > 1 => drop(words.pop()),
            // Its options differ between versions.
            1 if words[0] != "PEXPIRE" => words.push(self.one(WORDS)),
            _ => {}
        }
        let words = words.into_iter().map(String::into_bytes);
        if self.below(3) > 0 {
            return words.collect();
        }
        let script = format!("return redis.{}(unpack(ARGV))", self.one("call,pcall"));
        let called = [b"EVAL".to_vec(), script.into(), b"0".to_vec()];
        called.into_iter().chain(words).collect()
    }

    fn plain(&mut self, now: i64) -> Vec<String> {
        let name = loop {
            let name = COMMANDS[self.below(COMMANDS.len())].name;
            // Cursors are the server's own, and so is the order of the fields of a hash.
            if !matches!(name, "SCAN" | "HGETALL") {
                break name;
            }
        };
        let key = self.one(KEYS);
        let mut words = vec![name.to_owned()];
        match name {
            "TIME" => return words,
            "MGET" | "EXISTS" | "DEL" | "UNLINK" => {
                words.extend(self.some(KEYS));
                return words;
            }
            _ => words.push(key),
        }
        let more = match name {
            "BITCOUNT" if self.below(2) == 0 => vec![],
            // Versions differ in what they say first about a wrong number.
            "BITCOUNT" => vec![self.one(SMALL), self.one(SMALL)],
            "GETRANGE" | "LRANGE" | "LTRIM" => vec![self.one(NUMBERS), self.one(NUMBERS)],
            "BITFIELD" | "BITFIELD_RO" => self.fields(),
            "HGET" | "HEXISTS" | "ZSCORE" | "ZRANK" => vec![self.one(MEMBERS)],
            "HDEL" | "RPUSH" | "ZREM" | "ZMSCORE" => self.some(MEMBERS),
            "HSET" => (0..2 + 2 * self.below(2))
                .map(|_| self.one(MEMBERS))
                .collect(),
            "PEXPIRE" => vec![self.span()],
            "PUBLISH" | "SPUBLISH" => vec![self.one(MEMBERS)],
            "SET" => self.set(now),
            "SETRANGE" => vec![self.one(SMALL), self.one(MEMBERS)],
            "ZADD" => self.add(),
            "ZINCRBY" => vec![self.one(SCORES), self.one(MEMBERS)],
            "ZCOUNT" | "ZREMRANGEBYSCORE" => vec![self.edge(), self.edge()],
            "ZRANGE" | "ZRANGEBYSCORE" => self.range(),
            _ => vec![],
        };
        words.extend(more);
        words
    }

    fn fields(&mut self) -> Vec<String> {
        let fields = (0..1 + self.below(3)).flat_map(|_| {
            let kind = self.one("u1,u5,i8,i64,u63,u64,x");
            let at = self.one("0,1,7,13,#0,#2,-1,100,x");
            match self.below(2) {
                0 => vec!["GET".to_owned(), kind, at],
                _ => vec!["SET".to_owned(), kind, at, self.one("0,1,5,200")],
            }
        });
        fields.collect()
    }

    fn set(&mut self, now: i64) -> Vec<String> {
        let mut words = vec![self.one(MEMBERS)];
        for _ in 0..self.below(3) {
            match self.below(6) {
                0 => words.extend(["PX".to_owned(), self.span()]),
                1 => {
                    let until = now / 1000 + self.below(5000) as i64 - 10;
                    words.extend(["PXAT".to_owned(), until.to_string()]);
                }
                which => words.push(["GET", "KEEPTTL", "XX", "NX"][which - 2].into()),
            }
        }
        words
    }

    fn add(&mut self) -> Vec<String> {
        let mut words: Vec<_> = (0..self.below(3))
            .map(|_| self.one("NX,XX,GT,LT,CH"))
            .collect();
        for _ in 0..1 + self.below(3) {
            words.extend([self.one(SCORES), self.one(MEMBERS)]);
        }
        words
    }

    fn range(&mut self) -> Vec<String> {
        let mut words = match self.below(2) {
            0 => vec![self.edge(), self.edge()],
            _ => vec![self.one(NUMBERS), self.one(NUMBERS)],
        };
        for _ in 0..self.below(4) {
            match self.below(4) {
                3 => words.extend(["LIMIT".to_owned(), self.one(SMALL), self.one(SMALL)]),
                which => words.push(["BYSCORE", "REV", "WITHSCORES"][which].into()),
            }
        }
        words
    }
}
