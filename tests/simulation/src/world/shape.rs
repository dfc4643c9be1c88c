//! What a world consists of: drawn from its seed, so that no two are alike.

use std::time::Duration;

use crate::network::{Network, Wakes, Weather};
use crate::os;

/// What it takes until a process has heard of something besides the delays of messages.
const HEARD: Duration = Duration::from_millis(50);
/// What it takes besides until a replica has something.
const REPLICATED: Duration = Duration::from_millis(400);

/// An enum, and a list of all that it has.
macro_rules! listed {
    ($(#[$about:meta])* $name:ident, $all:ident: $($(#[$of_one:meta])* $one:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$of_one])* $one,)*
        }

        const $all: &[$name] = &[$($name::$one,)*];
    };
}

listed! {
    /// The primitives of a world.
    Kind, KINDS:
    Bucket, Buckets, Hold, Mutex, Mutexes, Permit, RwLock, Flight, Claim, FilterClaim, Adaptive, Learned, FleetQuotas, FleetLimit,
    Calendar, Looks, Operator, Quorum, Shares, Holds,
}

/// The servers of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    One,
    /// A master and a replica, which Sentinels watch.
    Sentinel,
    /// Three masters.
    Cluster,
}

listed! {
    /// What goes wrong in a world.
    Fault, FAULTS:
    Cut, Stall, Restart, RestartEmpty, Stop, Flush, Full, Deny, Clock, Kill,
    /// A replica takes the place of its master; in a Cluster, a slot moves.
    Move,
    /// A process stands still, where each has a runtime of its own.
    Freeze,
    /// A key is evicted.
    Evict,
    /// A server starts with what it had some time ago.
    RestartOld,
    /// A process reaches nothing for a while.
    Part,
    /// What is counted upwards was counted for years.
    Age,
}

#[derive(Clone, Debug)]
pub struct Shape {
    pub servers: Servers,
    pub processes: usize,
    /// Callers of each process.
    pub callers: usize,
    pub kinds: Vec<Kind>,
    pub keys: u64,
    /// The longest pause of a caller between two calls, in ms.
    pub idle: u64,
    /// How long what was acquired is usually held, in ms.
    pub held: u64,
    pub ttl: Duration,
    pub max_wait: Duration,
    /// Of 1 000 calls, so many are dropped at one of their polls.
    pub dropped: u64,
    /// Of 1 000 calls that wait for a lease, so many are not polled for a while.
    pub neglected: u64,
    pub faults: Vec<Fault>,
    /// The longest pause between two faults, in ms.
    pub calm: u64,
    pub weather: Weather,
    /// Whether each process has a runtime of its own.
    pub has_runtimes: bool,
    /// Numbers for the settings of the primitives.
    pub settings: u64,
    /// How many times as long as others it lasts.
    pub times: u32,
    /// Whether other programs have keys of our names.
    pub has_foreign_keys: bool,
}

/// Mostly few: a world of one kind sees more of it.
fn some<T: Copy + Ord>(all: &[T], mut draw: impl FnMut(u64) -> u64) -> Vec<T> {
    let count = all.len() as u64;
    let most = [1, 1, 2, 3, 5, count][draw(6) as usize];
    let mut chosen: Vec<_> = (0..most).map(|_| all[draw(count) as usize]).collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

impl Shape {
    pub fn new(seed: u64) -> Self {
        let mut state = seed ^ 0x5eed_0f5a_9e00_0000;
        let mut draw = move |end: u64| os::draw(&mut state) % end;
        let kinds = some(KINDS, &mut draw);
        let faults = if draw(5) == 0 {
            vec![]
        } else {
            some(FAULTS, &mut draw)
        };
        let weather = match draw(4) {
            0 => Weather {
                usual: 0,
                often_slow: 0,
                slow: 1,
                often_late: 0,
            },
            1 => Weather {
                usual: 3,
                often_slow: 50,
                slow: 40,
                often_late: 0,
            },
            2 => Weather {
                usual: 2,
                often_slow: 100,
                slow: 300,
                often_late: 1,
            },
            _ => Weather {
                usual: 30,
                often_slow: 20,
                slow: 200,
                often_late: 3,
            },
        };
        let processes = [1, 2, 2, 2, 3, 4][draw(6) as usize];
        let most = [2, 6, 16][draw(3) as usize];
        let callers = 1 + draw(most) as usize;
        // Crowds that never pause take as long as a hundred other worlds, so they are rare.
        let least = if draw(50) == 0 {
            1
        } else {
            200 * (processes * callers) as u64
        };
        let idle = [5, 100, 1000, 4000][draw(4) as usize].max(least);
        let keys = [1, 2, 5][draw(3) as usize];
        // What a process leaves that is killed ends after half a minute.
        let is_long = faults.contains(&Fault::Kill) && draw(8) == 0;
        Self {
            servers: match draw(5) {
                0 => Servers::Sentinel,
                1 => Servers::Cluster,
                _ => Servers::One,
            },
            processes,
            callers,
            kinds,
            keys: 1 + draw(keys),
            idle,
            held: [1, 30, 300, 2000][draw(4) as usize],
            ttl: Duration::from_millis([1000, 1500, 3000, 30_000][draw(4) as usize]),
            max_wait: Duration::from_millis([50, 500, 3000, 20_000][draw(4) as usize]),
            dropped: [0, 0, 30, 300][draw(4) as usize],
            neglected: [0, 0, 0, 200][draw(4) as usize],
            faults,
            calm: [300, 1000, 4000][draw(3) as usize],
            weather,
            has_runtimes: draw(20) == 0,
            settings: draw(u64::MAX),
            times: if is_long { 4 } else { 1 },
            has_foreign_keys: true,
        }
    }

    /// Whether some of these are in the world.
    pub fn has(&self, kinds: &[Kind]) -> bool {
        self.kinds.iter().any(|kind| kinds.contains(kind))
    }

    /// A number below `end` for a setting, which is the same for all processes.
    pub fn setting(&self, which: u64, end: u64) -> u64 {
        let mut state = self
            .settings
            .wrapping_add(which.wrapping_mul(0x1234_5678_9abc_def1));
        os::draw(&mut state) % end
    }

    /// The most requests that a process sends in a second: some for each call, and some for what goes on beside them. That is wide:
    /// who spins sends many times as much.
    pub fn busiest(&self) -> u64 {
        let calls = self.callers as u64 * (2000 / (self.idle + 1)).max(1);
        // At each master of a Cluster it subscribes to the channels of each group of slots, 256 in all, and again after each cut.
        let channels = if self.servers == Servers::Cluster {
            1200
        } else {
            0
        };
        // A step has many callers at once.
        let of_steps = if self.has(&[Kind::Shares]) {
            100 * self.callers as u64
        } else {
            0
        };
        200 + channels + (12 * calls + of_steps) * self.requests_of_a_call()
    }

    /// Behind a call that waits for the replica, a mark is set and awaited.
    pub fn requests_of_a_call(&self) -> u64 {
        if self.waits_for_replica() { 3 } else { 1 }
    }

    /// Whether calls wait until the replica has what they have written.
    pub fn waits_for_replica(&self) -> bool {
        self.servers == Servers::Sentinel && self.setting(20, 2) == 0
    }

    /// Whether the permits `g` are given in the order in which they are asked for.
    pub fn is_fifo(&self) -> bool {
        !self.has_classes() && !self.is_fair() && !self.is_newest_first()
    }

    /// Whether those who wait for these permits have classes.
    pub fn has_classes(&self) -> bool {
        self.setting(4, 3) == 0
    }

    pub fn is_fair(&self) -> bool {
        self.setting(5, 3) == 0
    }

    pub fn is_newest_first(&self) -> bool {
        !self.is_fair() && self.setting(7, 3) == 0
    }

    /// How long it takes at most until a process has heard of what another one did, where no message is late: each tells the
    /// server, which tells the other, and that may ask the server once more.
    pub fn hears_within(&self) -> Duration {
        let Weather {
            usual,
            often_slow,
            slow,
            ..
        } = self.weather;
        let slowest = usual.max(if often_slow > 0 { slow } else { 0 });
        let waits = if self.waits_for_replica() {
            REPLICATED
        } else {
            Duration::ZERO
        };
        HEARD + Duration::from_millis(4 * slowest) + waits
    }

    /// The judge of those that wait, where nothing keeps them from being woken.
    pub fn wakes(&self) -> Option<Wakes> {
        let is_well = self.faults.iter().all(|fault| *fault == Fault::Age);
        // Calls that wait for a replica leave one after the other: who is woken may have to wait behind many.
        let is_busy = self.waits_for_replica() && self.weather.often_slow > 0;
        if !is_well || is_busy || self.weather.often_late > 0 || self.neglected > 0 {
            return None;
        }
        // Layers show no leases. Who locks several keys shows none of them before it has all.
        let mut besides: Vec<&[u8]> = vec![b"a:", b"cs:"];
        if self.has(&[Kind::Mutexes]) {
            besides.push(b"m:");
        }
        let mut in_order: Vec<&[u8]> = vec![b"rw:", b"lg:"];
        if self.is_fifo() {
            in_order.push(b"g:");
        }
        Some(Wakes::new(self.hears_within(), besides, in_order))
    }

    /// A key of a caller.
    pub fn key(&self, network: &Network) -> String {
        format!("k{}", network.draw(self.keys))
    }
}
