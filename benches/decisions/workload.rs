//! Which keys are asked for, under which quota.
//!
//! All contestants have the same quota, one that tower-rate-limit-redis can express: a token every
//! millisecond, at most 65 535 at once.

use std::sync::LazyLock;

use tower_distributed::Quota;

const KEYS: usize = 100_000;

/// Keys of 20 bytes.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| (0..KEYS).map(|i| &*format!("key-{i:016}").leak()).collect());

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// One key, whose bucket holds one token: nearly everything is refused, nothing is written.
    HotRefused,
    /// One key at a time, replaced by a fresh one before its bucket is empty: everything is admitted.
    HotAdmitted,
    /// Uniformly random keys: everything is admitted.
    Many,
}

impl Workload {
    pub const ALL: [Self; 3] = [Self::HotRefused, Self::HotAdmitted, Self::Many];

    pub fn title(self) -> &'static str {
        match self {
            Self::HotRefused => "one key, refused (a token every ms, burst 1)",
            Self::HotAdmitted => {
                "one key, admitted (a token every ms, burst 60 000; a fresh key per 60 000 decisions)"
            }
            Self::Many => "100 000 keys, uniformly random (a token every ms, burst 60 000)",
        }
    }

    pub fn short(self) -> &'static str {
        match self {
            Self::HotRefused => "one key, refused",
            Self::HotAdmitted => "one key, admitted",
            Self::Many => "100 000 keys",
        }
    }

    pub fn burst(self) -> u16 {
        match self {
            Self::HotRefused => 1,
            Self::HotAdmitted | Self::Many => 60_000,
        }
    }

    pub fn quota(self) -> Quota {
        Quota::per_second(1000).burst(self.burst().into())
    }

    /// The keys that one of so many callers asks for, without end.
    pub fn keys(self, caller: usize, callers: usize) -> Keys {
        let names: &'static [_] = &NAMES;
        Keys {
            names,
            workload: self,
            share: usize::from(self.burst()) / callers,
            asked: 0,
            random: caller as u64,
        }
    }
}

pub struct Keys {
    names: &'static [&'static str],
    workload: Workload,
    /// How many decisions of a hot key fall to one caller.
    share: usize,
    asked: usize,
    random: u64,
}

impl Keys {
    pub fn next(&mut self) -> &'static str {
        let at = match self.workload {
            Workload::HotRefused => 0,
            Workload::HotAdmitted => self.asked / self.share,
            Workload::Many => self.draw(),
        };
        self.asked += 1;
        self.names[at % KEYS]
    }

    /// SplitMix64 (Steele, Lea, Flood 2014): a random number for less than any contestant's smallest step.
    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) as usize
    }
}
