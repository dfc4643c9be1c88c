//! How many want to lock what, and how often.

use std::sync::LazyLock;

/// Keys of 20 bytes.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| (0..64).map(|i| &*format!("key-{i:016}").leak()).collect());

/// Those that are *greedy* lock again at once, as often as they can. That says little of a lock that is contended
/// but not fair: who has just unlocked it is alone awake and has it again, the others starve, and what is measured
/// is one caller without contention. So the others are *even*: each locks as often as its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// Everybody wants the same.
    OneKey,
    OneKeyGreedy,
    /// Everybody wants the same, in four processes.
    FourProcesses,
    FourProcessesGreedy,
    /// Everybody has a key of its own.
    KeyEachGreedy,
    /// So many that a lock for one at a time would not do.
    Crowd,
}

impl Load {
    pub fn title(self) -> &'static str {
        match self {
            Self::OneKey => "one key, 64 callers",
            Self::OneKeyGreedy => "one key, 64 callers, greedy",
            Self::FourProcesses => "one key, 4 processes of 16",
            Self::FourProcessesGreedy => "one key, 4 processes of 16, greedy",
            Self::KeyEachGreedy => "64 keys, 64 callers, greedy",
            Self::Crowd => "one key, 256 callers",
        }
    }

    pub fn processes(self) -> usize {
        match self {
            Self::FourProcesses | Self::FourProcessesGreedy => 4,
            Self::OneKey | Self::OneKeyGreedy | Self::KeyEachGreedy | Self::Crowd => 1,
        }
    }

    /// Of each process.
    pub fn callers(self) -> usize {
        match self {
            Self::OneKey | Self::OneKeyGreedy | Self::KeyEachGreedy => 64,
            Self::FourProcesses | Self::FourProcessesGreedy => 16,
            Self::Crowd => 256,
        }
    }

    /// How often each caller locks in a row before it waits until its neighbours have done so too; `None`: greedy.
    pub fn in_a_row(self) -> Option<usize> {
        match self {
            Self::OneKey | Self::FourProcesses | Self::Crowd => Some(4),
            Self::OneKeyGreedy | Self::FourProcessesGreedy | Self::KeyEachGreedy => None,
        }
    }

    /// The key that a caller wants.
    pub fn key(self, caller: usize) -> &'static str {
        match self {
            Self::KeyEachGreedy => NAMES[caller],
            _ => NAMES[0],
        }
    }
}
