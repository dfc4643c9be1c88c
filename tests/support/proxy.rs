//! A network between a client and a server that fails on demand.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::resp::{self, Frames};

const DEADLINE: Duration = Duration::from_secs(10);

/// A TCP proxy in front of a Redis server. It understands the protocol well enough to separate requests.
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
    HoldBack(u64),
    DropReplies,
    Cut,
    Gone,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1 and forwards everything to `target_port`.
    pub async fn start(target_port: u16) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::new(target_port));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(listener, shared)
        });
        Self { port, shared, thread: Some(thread) }
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
        let latest = self.shared.connections.load(Ordering::SeqCst);
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
        let (_late, timeout) = none_is_late.wait_timeout_while(late, DEADLINE, |late| *late > 0).unwrap();
        assert!(!timeout.timed_out(), "the server does not answer what the proxy has held back");
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
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    armed: Mutex<Vec<Vec<u8>>>,
    /// Whether everything is cut with the next reply that is dropped.
    cuts: AtomicBool,
    requests: Mutex<Requests>,
    dropped: AtomicU64,
    connections: AtomicU64,
    open: Mutex<u64>,
    one_closed: Condvar,
    /// The number of requests that are held back, or were held back and are not answered yet.
    late: Mutex<u64>,
    none_is_late: Condvar,
}

impl Shared {
    fn new(target_port: u16) -> Self {
        Self {
            target: (Ipv4Addr::LOCALHOST, target_port).into(),
            mode: watch::Sender::new(Mode::Pass),
            armed: Mutex::default(),
            cuts: AtomicBool::new(false),
            requests: Mutex::default(),
            dropped: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            open: Mutex::new(0),
            one_closed: Condvar::new(),
            late: Mutex::new(0),
            none_is_late: Condvar::new(),
        }
    }

    /// Removes the first armed pattern that `request` contains. Returns whether there was one.
    fn disarm(&self, request: &[u8]) -> bool {
        let mut armed = self.armed.lock().unwrap();
        let hit = armed.iter().position(|pattern| resp::contains(request, pattern));
        hit.map(|index| armed.remove(index)).is_some()
    }

    async fn mode_that(&self, wanted: impl FnMut(&Mode) -> bool) -> Mode {
        // `self` owns the sender, so the channel is not closed.
        *self.mode.subscribe().wait_for(wanted).await.unwrap()
    }

    fn wait_until_none_is_open(&self) {
        let open = self.open.lock().unwrap();
        let (_open, timeout) = self.one_closed.wait_timeout_while(open, DEADLINE, |open| *open > 0).unwrap();
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
        let requests = starts.zip(&self.ends).map(|(&start, &end)| &self.bytes[start..end]);
        requests.filter(|request| resp::contains(request, pattern)).count() as u64
    }
}

fn serve(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
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

/// The connection of one client, and the matching connection to the server.
struct Connection {
    shared: Arc<Shared>,
    /// The number of the connection, from 1.
    number: u64,
    /// The requests that the server has not answered yet. A request that was held back has a [`Late`].
    unanswered: Mutex<VecDeque<Option<Late>>>,
    /// Whether something was held back. It is delivered even if the client is gone.
    was_held: AtomicBool,
    /// The number of requests so far that expect a reply.
    asked: AtomicU64,
    /// The number of the request whose reply is dropped, from 1; 0: none.
    unlucky: AtomicU64,
    /// Whether a reply was dropped. The client would take the following reply for it.
    out_of_step: AtomicBool,
}

impl Connection {
    fn new(shared: Arc<Shared>) -> Self {
        *shared.open.lock().unwrap() += 1;
        Self {
            number: shared.connections.fetch_add(1, Ordering::SeqCst) + 1,
            shared,
            unanswered: Mutex::default(),
            was_held: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            unlucky: AtomicU64::new(0),
            out_of_step: AtomicBool::new(false),
        }
    }

    /// Forwards both directions, until one side closes or the mode ends the connection.
    async fn relay(&self, client: TcpStream) {
        tokio::select! {
            biased;
            _ = self.shared.mode_that(|mode| self.is_over(*mode)) => {}
            _ = self.exchange(client) => {}
        }
    }

    async fn exchange(&self, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.shared.target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::select! {
            result = self.requests(from_client, to_server) => result,
            result = self.replies(from_server, to_client) => result,
        }
    }

    async fn requests(&self, client: OwnedReadHalf, mut server: OwnedWriteHalf) -> std::io::Result<()> {
        let (mut requests, mut read, mut ended) = (Frames::new(client), VecDeque::new(), false);
        loop {
            let passing = self.shared.mode_that(|mode| !self.is_held(*mode));
            tokio::select! {
                request = requests.next(), if !ended => match request {
                    Ok(Some(request)) => read.push_back((request, self.late())),
                    Ok(None) | Err(_) => ended = true,
                },
                mode = passing, if ended || !read.is_empty() => {
                    let Some((request, late)) = read.pop_front().filter(|_| !self.is_over(mode)) else { break };
                    self.note(&request, late);
                    server.write_all(&request).await?;
                }
            }
        }
        if self.was_held.load(Ordering::SeqCst) {
            // The server closes its side after it has processed everything that it received.
            server.shutdown().await?;
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn replies(&self, server: OwnedReadHalf, mut client: OwnedWriteHalf) -> std::io::Result<()> {
        let mut replies = Frames::new(server);
        let mut answered = 0;
        loop {
            let reply = replies.next().await?;
            let mode = self.shared.mode_that(|mode| !self.is_held(*mode)).await;
            let Some(reply) = reply.filter(|_| !self.is_over(mode)) else {
                return Ok(());
            };
            let answers = resp::is_reply(&reply);
            answered += u64::from(answers);
            let late = answers.then(|| self.unanswered.lock().unwrap().pop_front());
            let unlucky = answers && self.unlucky.load(Ordering::SeqCst) == answered;
            if unlucky || mode == Mode::DropReplies {
                self.out_of_step.store(true, Ordering::SeqCst);
                self.shared.dropped.fetch_add(1, Ordering::SeqCst);
            } else if let Err(error) = client.write_all(&reply).await
                && !self.was_held.load(Ordering::SeqCst)
            {
                return Err(error);
            }
            drop(late);
            if unlucky {
                if self.shared.cuts.swap(false, Ordering::SeqCst) {
                    self.shared.mode.send_replace(Mode::Cut);
                }
                return Ok(());
            }
        }
    }

    /// Returns a counter that counts the request as late, if it must wait now.
    fn late(&self) -> Option<Late> {
        let waits = self.is_held(*self.shared.mode.borrow());
        self.was_held.fetch_or(waits, Ordering::SeqCst);
        waits.then(|| Late::new(&self.shared))
    }

    fn note(&self, request: &[u8], late: Option<Late>) {
        self.shared.requests.lock().unwrap().push(request);
        if resp::expects_reply(request) {
            self.unanswered.lock().unwrap().push_back(late);
            let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
            if self.shared.disarm(request) {
                self.unlucky.store(number, Ordering::SeqCst);
            }
        }
    }

    fn is_held(&self, mode: Mode) -> bool {
        mode == Mode::Stall || matches!(mode, Mode::HoldBack(latest) if self.number <= latest)
    }

    fn is_over(&self, mode: Mode) -> bool {
        matches!(mode, Mode::Cut | Mode::Gone)
            || mode == Mode::Pass && self.out_of_step.load(Ordering::SeqCst)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        *self.shared.open.lock().unwrap() -= 1;
        self.shared.one_closed.notify_all();
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
