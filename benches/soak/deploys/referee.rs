//! The referee: all gateways tell it who works.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::interval;

use super::book::Book;
use super::visit::Visit;

pub struct Referee {
    pub port: u16,
    pub began: Instant,
    book: Mutex<Book>,
}

impl Referee {
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let referee = Arc::new(Self {
            port,
            began: Instant::now(),
            book: Mutex::default(),
        });
        let (accepting, forgetting) = (Arc::clone(&referee), Arc::clone(&referee));
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(listen(Arc::clone(&accepting), connection, stream));
            }
        });
        tokio::spawn(async move {
            let mut ticks = interval(Duration::from_secs(1));
            loop {
                ticks.tick().await;
                forgetting.book().forget(forgetting.now());
            }
        });
        referee
    }

    /// µs
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Returns whom to answer.
    fn read<'a>(&self, connection: u64, line: &'a str) -> Option<&'a str> {
        let (verb, rest) = line.split_once(' ').unwrap();
        let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let who = || (connection, number.parse().unwrap());
        let mut book = self.book();
        match verb {
            "enter" => {
                let (fence, visit) = rest.split_once(' ').unwrap();
                book.enter(
                    self.now(),
                    who(),
                    fence.parse().unwrap(),
                    Visit::parse(visit),
                );
            }
            "leave" => book.leave(self.now(), who(), true),
            "stop" => book.leave(self.now(), who(), false),
            "unsure" => book.unsure(number),
            _ => panic!("{line}"),
        }
        matches!(verb, "enter" | "leave").then_some(number)
    }
}

async fn listen(referee: Arc<Referee>, connection: u64, stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(number) = referee.read(connection, &line) {
            // A gateway that was killed does not listen.
            let _ = write.write_all(format!("{number}\n").as_bytes()).await;
        }
    }
    referee.book().end(referee.now(), connection);
}
