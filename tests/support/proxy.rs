//! A network between a client and its servers that fails on demand, is slow, or refuses and changes what passes.

mod connection;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::watch;

use self::connection::Connection;
use crate::resp;

const DEADLINE: Duration = Duration::from_secs(10);

/// What the proxy does with a command, in place of the server.
#[derive(Clone, Copy)]
pub enum Refusal {
    /// It answers this error, such as `ERR unsupported command`.
    Error(&'static str),
    /// It closes the connection.
    Close,
    /// It gives no answer.
    Silence,
}

/// Changes a request, or a reply to a script or message (then the flag is set). `None` closes the connection.
type Forge = dyn Fn(bool, Vec<u8>) -> Option<Vec<u8>> + Send + Sync;

/// A TCP proxy in front of a Redis server. It understands the protocol well enough to separate requests. With several servers,
/// each connection leads to the next one.
///
/// It runs on its own thread, so it works with blocking clients and busy test runtimes. A mode applies to what the
/// client sends after the method has returned. Dropping the proxy closes everything.
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Stall,
    /// Holds back the connections up to this number.
    HoldBack(usize),
    DropReplies,
    Cut,
    Gone,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and forwards everything to `target_port`.
    pub async fn start(target_port: u16) -> Self {
        Self::before(&[target_port]).await
    }

    /// Listens on a free port of 127.0.0.1, in front of servers on these ports.
    pub async fn before(ports: &[u16]) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::new(ports));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(listener, shared)
        });
        Self {
            port,
            shared,
            thread: Some(thread),
        }
    }

    /// Delivers replies late from now on, without a loss of throughput.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared
            .delay_us
            .store(u64::try_from(delay.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Refuses these commands, in any case of letters.
    #[must_use]
    pub fn refusing(self, commands: &[&str], refusal: Refusal) -> Self {
        let named = commands
            .iter()
            .map(|name| (name.to_ascii_uppercase(), refusal));
        self.shared.refusals.lock().unwrap().extend(named);
        self
    }

    /// Withholds messages of channels, while subscriptions are confirmed.
    #[must_use]
    pub fn without_messages(self) -> Self {
        self.shared.withholds_messages.store(true, Ordering::SeqCst);
        self
    }

    /// Changes requests, replies to scripts, and messages.
    #[must_use]
    pub fn forging(
        self,
        forge: impl Fn(bool, Vec<u8>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        assert!(
            self.shared.forge.set(Box::new(forge)).is_ok(),
            "it forges already"
        );
        self
    }

    /// Returns when each connection was made so far.
    pub fn accepted(&self) -> Vec<Instant> {
        self.shared.accepted.lock().unwrap().clone()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Keeps connections open and accepts new ones, but holds back all bytes in both directions until another mode
    /// is set.
    pub fn stall(&self) {
        self.shared.mode.send_replace(Mode::Stall);
    }

    /// Holds back all bytes in both directions on the connections that are open now. Later connections pass.
    ///
    /// What a client has sent is delivered on [`FaultProxy::let_through`], even if the client is gone by then.
    pub fn hold_back(&self) {
        let latest = self.shared.accepted.lock().unwrap().len();
        self.shared.mode.send_replace(Mode::HoldBack(latest));
    }

    /// Returns how many requests are held back now, by this mode or by [`FaultProxy::stall`].
    pub fn held_back(&self) -> u64 {
        *self.shared.late.lock().unwrap()
    }

    /// Ends [`FaultProxy::hold_back`]. Returns when the server has answered the requests that were held back.
    pub fn let_through(&self) {
        self.heal();
        let (late, none_is_late) = (self.shared.late.lock().unwrap(), &self.shared.none_is_late);
        let (_late, timeout) = none_is_late
            .wait_timeout_while(late, DEADLINE, |late| *late > 0)
            .unwrap();
        assert!(
            !timeout.timed_out(),
            "the server does not answer what the proxy has held back"
        );
    }

    /// Forwards requests, so that the commands run, and drops the replies of the server.
    ///
    /// [`FaultProxy::heal`] closes a connection that has lost a reply in this way, because TCP never loses bytes in
    /// the middle of a stream.
    pub fn drop_replies(&self) {
        self.shared.mode.send_replace(Mode::DropReplies);
    }

    /// Closes all connections, and each new one as soon as it is made. Returns when the current connections are
    /// closed.
    pub fn cut(&self) {
        self.shared.mode.send_replace(Mode::Cut);
        self.shared.wait_until_none_is_open();
    }

    /// Forwards everything again, beginning with what was held back.
    pub fn heal(&self) {
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Drops the reply to the next request that contains `pattern`: the proxy forwards the request, waits for the
    /// server's reply, and then closes the connection without the reply. Replies to earlier requests still arrive.
    /// Other connections are not affected.
    pub fn drop_next_reply_after(&self, pattern: &[u8]) {
        self.shared.armed.lock().unwrap().push(pattern.to_vec());
    }

    /// The same, and from then on as after [`FaultProxy::cut`].
    pub fn cut_after(&self, pattern: &[u8]) {
        self.shared.cuts.store(true, Ordering::SeqCst);
        self.drop_next_reply_after(pattern);
    }

    /// Returns how many requests that contain `pattern` have been forwarded so far. A pipeline counts each of its
    /// commands.
    pub fn requests_containing(&self, pattern: &[u8]) -> u64 {
        self.shared.requests.lock().unwrap().containing(pattern)
    }

    /// Returns how many replies have been dropped so far, in either way.
    pub fn replies_dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.mode.send_replace(Mode::Gone);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state that the handle and the connections share.
struct Shared {
    targets: Vec<SocketAddr>,
    mode: watch::Sender<Mode>,
    armed: Mutex<Vec<Vec<u8>>>,
    /// Whether everything is cut with the next reply that is dropped.
    cuts: AtomicBool,
    requests: Mutex<Requests>,
    dropped: AtomicU64,
    accepted: Mutex<Vec<Instant>>,
    open: Mutex<u64>,
    one_closed: Condvar,
    delay_us: AtomicU64,
    refusals: Mutex<HashMap<String, Refusal>>,
    forge: OnceLock<Box<Forge>>,
    withholds_messages: AtomicBool,
    /// The number of requests that are held back, or were held back and are not answered yet.
    late: Mutex<u64>,
    none_is_late: Condvar,
}

impl Shared {
    fn new(ports: &[u16]) -> Self {
        Self {
            targets: ports
                .iter()
                .map(|port| (Ipv4Addr::LOCALHOST, *port).into())
                .collect(),
            mode: watch::Sender::new(Mode::Pass),
            armed: Mutex::default(),
            cuts: AtomicBool::new(false),
            requests: Mutex::default(),
            dropped: AtomicU64::new(0),
            accepted: Mutex::default(),
            open: Mutex::new(0),
            one_closed: Condvar::new(),
            delay_us: AtomicU64::new(0),
            refusals: Mutex::default(),
            forge: OnceLock::new(),
            withholds_messages: AtomicBool::new(false),
            late: Mutex::new(0),
            none_is_late: Condvar::new(),
        }
    }

    /// Removes the first armed pattern that `request` contains. Returns whether there was one.
    fn disarm(&self, request: &[u8]) -> bool {
        let mut armed = self.armed.lock().unwrap();
        let hit = armed
            .iter()
            .position(|pattern| resp::contains(request, pattern));
        hit.map(|index| armed.remove(index)).is_some()
    }

    fn refusal(&self, request: &[u8]) -> Option<Refusal> {
        let name = resp::first_word(request).to_ascii_uppercase();
        self.refusals.lock().unwrap().get(&name).copied()
    }

    fn forged(&self, is_reply: bool, frame: Vec<u8>) -> Option<Vec<u8>> {
        match self.forge.get() {
            Some(forge) => forge(is_reply, frame),
            None => Some(frame),
        }
    }

    /// When a reply that has come now is delivered.
    fn due(&self) -> Instant {
        Instant::now() + Duration::from_micros(self.delay_us.load(Ordering::SeqCst))
    }

    async fn mode_that(&self, wanted: impl FnMut(&Mode) -> bool) -> Mode {
        // `self` owns the sender, so the channel is not closed.
        *self.mode.subscribe().wait_for(wanted).await.unwrap()
    }

    fn wait_until_none_is_open(&self) {
        let open = self.open.lock().unwrap();
        let (_open, timeout) = self
            .one_closed
            .wait_timeout_while(open, DEADLINE, |open| *open > 0)
            .unwrap();
        assert!(!timeout.timed_out(), "the proxy's connections do not close");
    }
}

/// All requests forwarded so far, concatenated.
#[derive(Default)]
struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    fn push(&mut self, request: &[u8]) {
        self.bytes.extend_from_slice(request);
        self.ends.push(self.bytes.len());
    }

    fn containing(&self, pattern: &[u8]) -> u64 {
        let starts = std::iter::once(&0).chain(&self.ends);
        let requests = starts
            .zip(&self.ends)
            .map(|(&start, &end)| &self.bytes[start..end]);
        requests
            .filter(|request| resp::contains(request, pattern))
            .count() as u64
    }
}

fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).unwrap();
        tokio::select! {
            () = accept(&listener, &shared) => {}
            _ = shared.mode_that(|mode| *mode == Mode::Gone) => {}
        }
    });
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let connection = Connection::new(Arc::clone(shared));
        tokio::spawn(async move { connection.relay(client).await });
    }
}

/// Counts a request as late while it exists.
struct Late(Arc<Shared>);

impl Late {
    fn new(shared: &Arc<Shared>) -> Self {
        *shared.late.lock().unwrap() += 1;
        Self(Arc::clone(shared))
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        *self.0.late.lock().unwrap() -= 1;
        self.0.none_is_late.notify_all();
    }
}
