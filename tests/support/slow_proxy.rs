//! A network with latency, or one that closes every connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

/// A TCP proxy that delivers replies late. It adds latency without a loss of throughput.
///
/// It runs on its own thread. Dropping it closes everything.
pub struct SlowProxy {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    delay_us: AtomicU64,
    mode: watch::Sender<Mode>,
    accepted: Mutex<Vec<Instant>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Refuse,
    Gone,
}

impl SlowProxy {
    /// Listens on a free port of 127.0.0.1. Replies of `target_port` arrive `delay` later.
    pub async fn start(target_port: u16, delay: Duration) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: (Ipv4Addr::LOCALHOST, target_port).into(),
            delay_us: AtomicU64::new(0),
            mode: watch::Sender::new(Mode::Pass),
            accepted: Mutex::default(),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(listener, &shared)
        });
        let proxy = Self { port, shared, thread: Some(thread) };
        proxy.delay_replies(delay);
        proxy
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the delay of replies that the server sends from now on.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.delay_us.store(u64::try_from(delay.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// Closes all connections, and each new one as soon as it is made.
    pub fn refuse(&self) {
        self.shared.mode.send_replace(Mode::Refuse);
    }

    /// Ends [`SlowProxy::refuse`].
    pub fn heal(&self) {
        self.shared.mode.send_replace(Mode::Pass);
    }

    /// Returns when each connection so far was made, including refused ones.
    pub fn accepted(&self) -> Vec<Instant> {
        self.shared.accepted.lock().unwrap().clone()
    }
}

impl Drop for SlowProxy {
    fn drop(&mut self) {
        self.shared.mode.send_replace(Mode::Gone);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    async fn mode_that(&self, wanted: impl FnMut(&Mode) -> bool) {
        // `self` owns the sender, so the channel is not closed.
        let _ = self.mode.subscribe().wait_for(wanted).await;
    }

    fn due(&self) -> Instant {
        Instant::now() + Duration::from_micros(self.delay_us.load(Ordering::SeqCst))
    }
}

fn serve(listener: std::net::TcpListener, shared: &Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener).unwrap();
        tokio::select! {
            () = accept(&listener, shared) => {}
            () = shared.mode_that(|mode| *mode == Mode::Gone) => {}
        }
    });
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        shared.accepted.lock().unwrap().push(Instant::now());
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shared.mode_that(|mode| *mode != Mode::Pass) => {}
                _ = exchange(client, &shared) => {}
            }
        });
    }
}

/// Forwards both directions, until one side closes.
async fn exchange(client: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let server = TcpStream::connect(shared.target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (late, due) = mpsc::unbounded_channel();
    tokio::select! {
        copied = tokio::io::copy(&mut from_client, &mut to_server) => copied.map(drop),
        read = read(from_server, shared, late) => read,
        written = write(to_client, due) => written,
    }
}

async fn read(
    mut server: OwnedReadHalf,
    shared: &Shared,
    late: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    let mut chunk = [0; 16 * 1024];
    loop {
        let read = server.read(&mut chunk).await?;
        if read == 0 || late.send((shared.due(), chunk[..read].to_vec())).is_err() {
            return Ok(());
        }
    }
}

async fn write(
    mut client: OwnedWriteHalf,
    mut due: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
) -> std::io::Result<()> {
    while let Some((when, bytes)) = due.recv().await {
        sleep_until(when.into()).await;
        client.write_all(&bytes).await?;
    }
    Ok(())
}
