//! Two TUN devices, each in a namespace of its own, and a thread that carries packets between them with a fixed delay.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::thread::{gettid, set_current_timer_slack};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::common::server::{self, Server};
use crate::namespaces::{Namespace, run};

const NEAR: [&str; 2] = ["near", "10.77.0.1"];
const FAR: [&str; 2] = ["far", "10.77.0.2"];
/// Packets that a device keeps until they are read: more than there ever are, so that none is lost.
const QUEUE: &str = "10000";
/// Packets that are read from one device before the other has its turn.
const TURN: usize = 64;
const PACKET: usize = 1 << 16;

/// The link from the namespace of this process to another one. It lasts as long as the process.
pub struct Link {
    state: Arc<State>,
    far: Namespace,
}

/// What the thread of the link reads and writes. All times are nanoseconds.
#[derive(Default)]
struct State {
    /// Each way.
    delay: AtomicU64,
    carried: AtomicU64,
    /// Of all packets that were carried, together.
    late: AtomicU64,
}

impl Link {
    pub fn up() -> Result<Self, String> {
        let far = Namespace::new()?;
        let devices = [device(NEAR[0])?, device(FAR[0])?];
        run(Command::new("ip").args(["link", "set", FAR[0], "netns", &far.id().to_string()]))?;
        set_up(|| Command::new("ip"), NEAR, FAR[1])?;
        set_up(|| far.command("ip"), FAR, NEAR[1])?;
        let state = Arc::<State>::default();
        let shared = state.clone();
        let carry = move || {
            run_first();
            let error = carry(&devices, &shared);
            eprintln!("the link has ended: {error:?}");
        };
        thread::Builder::new()
            .name("link".into())
            .spawn(carry)
            .map_err(|error| format!("no thread: {error}"))?;
        Ok(Self { state, far })
    }

    /// A redis-server at the other end.
    pub fn server(&self) -> Result<Server, String> {
        let mut command = self.far.command(server::program());
        // By default it refuses clients of other hosts, unless there is a password.
        command.args(["--protected-mode", "no"]);
        Server::start_by(command, FAR[1])
    }

    /// Sets what the link adds to a round trip: half of it each way.
    pub fn set_round_trip(&self, round_trip: Duration) {
        self.state
            .delay
            .store(round_trip.as_nanos() as u64 / 2, Ordering::Relaxed);
    }

    /// Returns how late packets left since the last call of this function: the mean.
    pub fn mean_late_micros(&self) -> f64 {
        let [late, carried] = [&self.state.late, &self.state.carried]
            .map(|sum| sum.swap(0, Ordering::Relaxed) as f64);
        late / carried / 1e3
    }
}

fn device(name: &str) -> Result<SyncDevice, String> {
    // `ip` brings it up, once it has its address.
    let device = DeviceBuilder::new().name(name).enable(false).build_sync();
    let device = device.and_then(|device| device.set_nonblocking(true).map(|()| device));
    device.map_err(|error| format!("cannot make the TUN device {name}: {error}"))
}

fn set_up(ip: impl Fn() -> Command, [name, address]: [&str; 2], peer: &str) -> Result<(), String> {
    run(ip().args(["addr", "add", address, "peer", peer, "dev", name]))?;
    run(ip().args(["link", "set", name, "txqueuelen", QUEUE, "up"]))
}

struct Packet {
    due: Instant,
    bytes: Box<[u8]>,
}

/// Gives this thread priority over all others, so that packets leave in time on a busy machine.
fn run_first() {
    let thread = gettid().as_raw_nonzero().to_string();
    if let Err(error) = run(Command::new("chrt").args(["--fifo", "--pid", "1", &thread])) {
        eprintln!("packets leave late on a busy machine: {error}");
    }
}

/// Carries packets until a device fails.
fn carry(devices: &[SyncDevice; 2], state: &State) -> io::Result<()> {
    // The default lets timers fire 50 µs late.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let mut on_the_way: [VecDeque<Packet>; 2] = [VecDeque::new(), VecDeque::new()];
    let (mut late, mut buffer) = (Late::default(), vec![0; PACKET]);
    loop {
        let now = Instant::now();
        for (packets, to) in on_the_way.iter_mut().zip([&devices[1], &devices[0]]) {
            while packets.front().is_some_and(|packet| packet.due <= now) {
                let Some(packet) = packets.pop_front() else {
                    break;
                };
                // A packet that a device refuses is lost, and TCP sends it again.
                let _ = to.send(&packet.bytes);
                state.carried.fetch_add(1, Ordering::Relaxed);
                state
                    .late
                    .fetch_add((now - packet.due).as_nanos() as u64, Ordering::Relaxed);
            }
        }
        let next = on_the_way
            .iter()
            .filter_map(|packets| packets.front())
            .map(|packet| packet.due)
            .min();
        let ready = late.wait(devices, next)?;
        let delay = Duration::from_nanos(state.delay.load(Ordering::Relaxed));
        for (way, from) in devices.iter().enumerate().filter(|(way, _)| ready[*way]) {
            for _ in 0..TURN {
                match from.recv(&mut buffer) {
                    Ok(length) => {
                        let due = Instant::now() + delay;
                        on_the_way[way].push_back(Packet {
                            due,
                            bytes: buffer[..length].into(),
                        });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// How late timers fire: about 20 µs on a virtual machine. They are set that much earlier.
#[derive(Default)]
struct Late(Duration);

impl Late {
    const LIMIT: Duration = Duration::from_micros(100);

    /// Waits until a device has packets, or until a packet is nearly due, and returns which devices have packets.
    fn wait(&mut self, devices: &[SyncDevice; 2], due: Option<Instant>) -> io::Result<[bool; 2]> {
        let began = Instant::now();
        // Zero if a packet is nearly due: a poll that does not wait.
        let wait = due.map(|due| due.saturating_duration_since(began + self.0));
        let timeout = wait.map(|wait| Timespec::try_from(wait).unwrap());
        let mut polled = [0, 1].map(|from| PollFd::new(&devices[from], PollFlags::IN));
        let ready = retry_on_intr(|| poll(&mut polled, timeout.as_ref()))?;
        if let Some(wait) = wait.filter(|wait| ready == 0 && !wait.is_zero()) {
            let late = began.elapsed().saturating_sub(wait).min(Self::LIMIT);
            self.0 = (self.0 * 7 + late) / 8;
        }
        Ok(polled.map(|device| device.revents().contains(PollFlags::IN)))
    }
}
