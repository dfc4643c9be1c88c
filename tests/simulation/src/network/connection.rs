//! One connection: three tasks that read requests, run them in order, and write the replies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Due, Kind, Line, Network, Open};
use crate::server::reply::{Bytes, Reply, request};
use crate::server::{Session, lock};

/// The most bytes on their way, one way.
const WINDOW: usize = 1 << 16;

impl Network {
    pub(super) fn open(
        self: &Arc<Self>,
        process: usize,
        address: String,
    ) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(WINDOW);
        let (line, lines) = watch::channel(Line::Open);
        let (out, due) = mpsc::unbounded_channel();
        let id = {
            let mut state = lock(&self.state);
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let host = state.hosts.get(&address).ok_or_else(refused)?;
            if Instant::now() < host.refuses_until {
                return Err(refused());
            }
            state.opened += 1;
            let id = state.opened;
            let open = Open {
                address: address.clone(),
                process,
                line,
                session: Session::default(),
                stalled_until: Instant::now(),
                out,
            };
            state.connections.insert(id, open);
            id
        };
        self.note(&format!("p{process} opens c{id} to"), address);
        let (read, write) = tokio::io::split(far);
        let (to_run, requests) = mpsc::unbounded_channel();
        let [reads, runs, writes] = [(); 3].map(|()| Arc::clone(self));
        let runtime = &self.runtime;
        runtime.spawn(reads.read(read, lines.clone(), to_run));
        runtime.spawn(runs.run_all(id, lines.clone(), requests));
        runtime.spawn(writes.write(id, write, lines, due));
        Ok(near)
    }

    async fn read(
        self: Arc<Self>,
        mut stream: ReadHalf<DuplexStream>,
        mut line: watch::Receiver<Line>,
        to_run: mpsc::UnboundedSender<(Instant, Vec<Bytes>)>,
    ) {
        let mut arrived = Bytes::new();
        loop {
            let before = arrived.len();
            let count = tokio::select! {
                biased;
                _ = line.wait_for(|line| *line >= Line::Closed) => return,
                count = stream.read_buf(&mut arrived) => count.unwrap_or(0),
            };
            if count == 0 {
                return;
            }
            if matches!(*line.borrow(), Line::Deaf | Line::Gone) {
                arrived.truncate(before);
                continue;
            }
            let at = Instant::now() + self.delay();
            let mut read = 0;
            while let Some((arguments, length)) = request(&arrived[read..]) {
                read += length;
                if to_run.send((at, arguments)).is_err() {
                    return;
                }
            }
            arrived.drain(..read);
        }
    }

    async fn run_all(
        self: Arc<Self>,
        id: u64,
        mut line: watch::Receiver<Line>,
        mut requests: mpsc::UnboundedReceiver<(Instant, Vec<Bytes>)>,
    ) {
        while let Some((at, arguments)) = requests.recv().await {
            tokio::select! {
                biased;
                _ = line.wait_for(|line| *line == Line::Cut) => break,
                () = self.reaches(id, at) => {}
            }
            self.note(&format!("c{id} <"), joined(&arguments));
            let reply = match arguments[0].as_slice() {
                b"WAIT" => self.wait_for_replicas(id, &arguments).await,
                _ => self.run(id, &arguments),
            };
            let Some(reply) = reply else { break };
            self.note(&format!("c{id} >"), &reply);
            let sent = lock(&self.state).connections.get(&id).map(|open| {
                // A connection that has ended needs nothing.
                let _ = open.out.send((Instant::now() + self.delay(), reply));
            });
            if sent.is_none() {
                break;
            }
        }
        let ended = lock(&self.state).connections.remove(&id);
        if let Some(Open {
            address, session, ..
        }) = ended
        {
            self.with_server(&address, |server| server.has_left(&session.channels));
        }
    }

    /// Waits until what is due then has reached the other side, and the server runs.
    async fn reaches(&self, id: u64, mut at: Instant) {
        loop {
            sleep_until(at).await;
            let state = lock(&self.state);
            let Some(open) = state.connections.get(&id) else {
                return;
            };
            let host = state.hosts.get(&open.address);
            let stops_until = host.map_or(at, |host| host.stops_until);
            let parted_until = state.parted.get(&open.process).copied().unwrap_or(at);
            at = stops_until.max(open.stalled_until).max(parted_until);
            if at <= Instant::now() {
                return;
            }
        }
    }

    async fn write(
        self: Arc<Self>,
        id: u64,
        mut stream: WriteHalf<DuplexStream>,
        mut line: watch::Receiver<Line>,
        mut due: mpsc::UnboundedReceiver<Due>,
    ) {
        loop {
            let next = tokio::select! {
                biased;
                _ = line.wait_for(|line| *line >= Line::Closed) => return,
                next = due.recv() => next,
            };
            let Some((at, bytes)) = next else { return };
            tokio::select! {
                biased;
                _ = line.wait_for(|line| *line >= Line::Closed) => return,
                () = self.reaches(id, at) => {}
            }
            if matches!(*line.borrow(), Line::Mute | Line::Gone) {
                continue;
            }
            if stream.write_all(&bytes).await.is_err() {
                return;
            }
        }
    }

    /// `WAIT` answers once so many replicas have what the connection has written, or its time is over.
    async fn wait_for_replicas(&self, id: u64, arguments: &[Bytes]) -> Option<Bytes> {
        let number = |at: usize| std::str::from_utf8(arguments.get(at)?).ok()?.parse().ok();
        let (wanted, span) = (number(1).unwrap_or(0), number(2).unwrap_or(0));
        let ends = Instant::now() + Duration::from_millis(span);
        loop {
            let acked = self.acked(id)?;
            if acked >= wanted || Instant::now() >= ends {
                let mut encoded = Bytes::new();
                Reply::Int(acked as i64).encode(2, &mut encoded);
                return Some(encoded);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many replicas have what a connection has written.
    fn acked(&self, id: u64) -> Option<u64> {
        let state = lock(&self.state);
        let open = state.connections.get(&id)?;
        match &state.hosts.get(&open.address)?.kind {
            Kind::Server(server) => {
                let has_all = server.log.is_kept && server.log.taken() >= open.session.written;
                Some(has_all.into())
            }
            Kind::Sentinel(_) => Some(0),
        }
    }
}

/// The arguments of a request, cut off where they are long.
fn joined(arguments: &[Bytes]) -> Bytes {
    let mut joined = Bytes::new();
    for argument in arguments {
        joined.extend_from_slice(&argument[..argument.len().min(80)]);
        joined.push(b' ');
    }
    joined
}
