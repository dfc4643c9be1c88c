//! One connection of a client through the proxy.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::{Late, Mode, Refusal, Shared};
use crate::resp::{self, Frames};

/// What a client waits for.
enum Due {
    Reply {
        of_script: bool,
        /// The reply is dropped, and the connection closed.
        is_dropped: bool,
        /// Counts it, if the request was held back.
        _late: Option<Late>,
    },
    /// The proxy answers by itself.
    Answer(String),
}

/// What happens to a client: a reply of the server, which has come now, or its end (`None`).
type Come = (Instant, Option<Vec<u8>>);

/// The connection of one client, and the matching connection to the server.
pub(super) struct Connection {
    shared: Arc<Shared>,
    /// The number of the connection, from 1.
    number: usize,
    /// The requests that are not answered yet.
    unanswered: Mutex<VecDeque<Due>>,
    /// Whether something was held back. It is delivered even if the client is gone.
    was_held: AtomicBool,
    /// Whether a reply was dropped. The client would take the following reply for it.
    out_of_step: AtomicBool,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        *shared.open.lock().unwrap() += 1;
        let mut accepted = shared.accepted.lock().unwrap();
        accepted.push(Instant::now());
        let number = accepted.len();
        drop(accepted);
        let (was_held, out_of_step) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            shared,
            number,
            unanswered: Mutex::default(),
            was_held,
            out_of_step,
        }
    }

    /// Forwards both directions, until one side closes or the mode ends the connection.
    pub(super) async fn relay(&self, client: TcpStream) {
        tokio::select! {
            biased;
            _ = self.shared.mode_that(|mode| self.is_over(*mode)) => {}
            _ = self.exchange(client) => {}
        }
    }

    async fn exchange(&self, client: TcpStream) -> std::io::Result<()> {
        let targets = &self.shared.targets;
        let server = TcpStream::connect(targets[(self.number - 1) % targets.len()]).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (comes, come) = mpsc::unbounded_channel();
        let answers = comes.clone();
        tokio::select! {
            result = self.requests(from_client, to_server, answers) => result,
            result = self.read(from_server, comes) => result,
            result = self.write(come, to_client) => result,
        }
    }

    async fn requests(
        &self,
        client: OwnedReadHalf,
        mut server: OwnedWriteHalf,
        answers: mpsc::UnboundedSender<Come>,
    ) -> std::io::Result<()> {
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
                    match self.shared.refusal(&request) {
                        None => {
                            self.note(&request, late);
                            let Some(request) = self.shared.forged(false, request) else { return Ok(()) };
                            server.write_all(&request).await?;
                        }
                        Some(Refusal::Error(text)) => {
                            self.unanswered.lock().unwrap().push_back(Due::Answer(format!("-{text}\r\n")));
                            let _ = answers.send((Instant::now(), Some(Vec::new())));
                        }
                        Some(Refusal::Close) => return Ok(()),
                        Some(Refusal::Silence) => {}
                    }
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

    /// Notes when each reply comes. Never returns: what has come is delivered first.
    async fn read(
        &self,
        server: OwnedReadHalf,
        comes: mpsc::UnboundedSender<Come>,
    ) -> std::io::Result<()> {
        let mut replies = Frames::new(server);
        while let Some(reply) = replies.next().await? {
            let _ = comes.send((self.shared.due(), Some(reply)));
        }
        let _ = comes.send((Instant::now(), None));
        std::future::pending().await
    }

    async fn write(
        &self,
        mut come: mpsc::UnboundedReceiver<Come>,
        mut client: OwnedWriteHalf,
    ) -> std::io::Result<()> {
        while let Some((due, reply)) = come.recv().await {
            sleep_until(due.into()).await;
            let mode = self.shared.mode_that(|mode| !self.is_held(*mode)).await;
            let Some(reply) = reply.filter(|_| !self.is_over(mode)) else {
                break;
            };
            if !reply.is_empty() && !self.deliver(reply, mode, &mut client).await? {
                break;
            }
            while let Some(answer) = self.answer() {
                client.write_all(answer.as_bytes()).await?;
            }
        }
        Ok(())
    }

    /// Delivers a reply. Returns whether the connection goes on.
    async fn deliver(
        &self,
        reply: Vec<u8>,
        mode: Mode,
        client: &mut OwnedWriteHalf,
    ) -> std::io::Result<bool> {
        let is_reply = resp::is_reply(&reply);
        let due = if is_reply {
            self.unanswered.lock().unwrap().pop_front()
        } else {
            None
        };
        let is_message = !is_reply && resp::first_word(&reply).ends_with("message");
        let is_dropped = matches!(
            due,
            Some(Due::Reply {
                is_dropped: true,
                ..
            })
        );
        if is_dropped || mode == Mode::DropReplies {
            self.out_of_step.store(true, Ordering::SeqCst);
            self.shared.dropped.fetch_add(1, Ordering::SeqCst);
        } else if !(is_message && self.shared.withholds_messages.load(Ordering::SeqCst)) {
            let may_be_forged = is_message
                || matches!(
                    due,
                    Some(Due::Reply {
                        of_script: true,
                        ..
                    })
                );
            let reply = if may_be_forged {
                self.shared.forged(true, reply)
            } else {
                Some(reply)
            };
            let Some(reply) = reply else { return Ok(false) };
            if let Err(error) = client.write_all(&reply).await
                && !self.was_held.load(Ordering::SeqCst)
            {
                return Err(error);
            }
        }
        if is_dropped && self.shared.cuts.swap(false, Ordering::SeqCst) {
            self.shared.mode.send_replace(Mode::Cut);
        }
        Ok(!is_dropped)
    }

    /// Returns the answer of the proxy that is due now.
    fn answer(&self) -> Option<String> {
        let mut unanswered = self.unanswered.lock().unwrap();
        let Due::Answer(answer) = unanswered.front()? else {
            return None;
        };
        let answer = answer.clone();
        unanswered.pop_front();
        Some(answer)
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
            let name = resp::first_word(request);
            let of_script = name.starts_with("EVAL") || name == "FCALL";
            let is_dropped = self.shared.disarm(request);
            let due = Due::Reply {
                of_script,
                is_dropped,
                _late: late,
            };
            self.unanswered.lock().unwrap().push_back(due);
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
