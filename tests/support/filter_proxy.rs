//! A server that refuses some commands, as proxies and managed services do, and one address of several servers.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::resp::{self, Frames};

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

/// A TCP proxy that refuses the commands that it is told to, and passes all others on. With several servers, each
/// connection leads to the next one.
///
/// It runs on its own thread. Dropping it closes everything.
pub struct FilterProxy {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What a client waits for.
enum Due {
    Reply { of_script: bool },
    Answer(String),
}

struct Shared {
    targets: Vec<SocketAddr>,
    connections: AtomicUsize,
    refusals: Mutex<HashMap<String, Refusal>>,
    forge: OnceLock<Box<Forge>>,
    gone: watch::Sender<bool>,
    withholds_messages: AtomicBool,
}

impl FilterProxy {
    /// Listens on a free port of 127.0.0.1, in front of servers on these ports.
    pub async fn start(ports: &[u16]) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            targets: ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect(),
            connections: AtomicUsize::new(0),
            refusals: Mutex::default(),
            forge: OnceLock::new(),
            gone: watch::Sender::new(false),
            withholds_messages: AtomicBool::new(false),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || serve(listener, &shared)
        });
        Self { port, shared, thread: Some(thread) }
    }

    /// Refuses these commands from now on.
    #[must_use]
    pub fn refusing(self, commands: &[&str], refusal: Refusal) -> Self {
        let named = commands.iter().map(|name| (name.to_ascii_uppercase(), refusal));
        self.shared.refusals.lock().unwrap().extend(named);
        self
    }

    /// Passes subscriptions on, but none of the messages to them.
    #[must_use]
    pub fn without_messages(self) -> Self {
        self.shared.withholds_messages.store(true, Ordering::SeqCst);
        self
    }

    /// Passes on what `forge` makes of each request, and of each reply to a script and message.
    #[must_use]
    pub fn forging(self, forge: impl Fn(bool, Vec<u8>) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        assert!(self.shared.forge.set(Box::new(forge)).is_ok(), "it forges already");
        self
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns how many connections have been made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for FilterProxy {
    fn drop(&mut self) {
        self.shared.gone.send_replace(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: std::net::TcpListener, shared: &Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let (listener, mut gone) = (TcpListener::from_std(listener).unwrap(), shared.gone.subscribe());
        tokio::select! {
            () = accept(&listener, shared) => {}
            _ = gone.wait_for(|gone| *gone) => {}
        }
    });
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            let target = shared.targets[number % shared.targets.len()];
            shared.relay(client, target).await
        });
    }
}

impl Shared {
    /// Forwards both directions, until one side closes or a command closes the connection.
    async fn relay(&self, client: TcpStream, target: SocketAddr) -> std::io::Result<()> {
        let server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (requests, mut to_client) = client.into_split();
        let (replies, mut to_server) = server.into_split();
        let (mut requests, mut replies) = (Frames::new(requests), Frames::new(replies));
        // What the client waits for: a reply of the server, or an answer of the proxy.
        let mut due: VecDeque<Due> = VecDeque::new();
        loop {
            tokio::select! {
                request = requests.next() => {
                    let Some(request) = request? else { return Ok(()) };
                    match self.refusal(&request) {
                        None => {
                            if resp::expects_reply(&request) {
                                due.push_back(Due::Reply { of_script: is_call(&request) });
                            }
                            let Some(request) = self.forged(false, request) else { return Ok(()) };
                            to_server.write_all(&request).await?;
                        }
                        Some(Refusal::Error(text)) => due.push_back(Due::Answer(format!("-{text}\r\n"))),
                        Some(Refusal::Close) => return Ok(()),
                        Some(Refusal::Silence) => {}
                    }
                }
                reply = replies.next() => {
                    let Some(mut reply) = reply? else { return Ok(()) };
                    let is_reply = resp::is_reply(&reply);
                    let answers = if is_reply { due.pop_front() } else { None };
                    let is_message = !is_reply && resp::first_word(&reply).ends_with("message");
                    if is_message || matches!(answers, Some(Due::Reply { of_script: true })) {
                        let Some(forged) = self.forged(true, reply) else { return Ok(()) };
                        reply = forged;
                    }
                    if !(is_message && self.withholds_messages.load(Ordering::SeqCst)) {
                        to_client.write_all(&reply).await?;
                    }
                }
            }
            while let Some(Due::Answer(_)) = due.front() {
                let Some(Due::Answer(answer)) = due.pop_front() else { break };
                to_client.write_all(answer.as_bytes()).await?;
            }
        }
    }

    fn forged(&self, is_reply: bool, frame: Vec<u8>) -> Option<Vec<u8>> {
        match self.forge.get() {
            Some(forge) => forge(is_reply, frame),
            None => Some(frame),
        }
    }

    fn refusal(&self, request: &[u8]) -> Option<Refusal> {
        let name = resp::first_word(request).to_ascii_uppercase();
        self.refusals.lock().unwrap().get(&name).copied()
    }
}

/// Whether a request calls a script or a function.
fn is_call(request: &[u8]) -> bool {
    let name = resp::first_word(request);
    name.starts_with("EVAL") || name == "FCALL"
}
