//! PING, one after the other: what the link itself adds.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::server::Server;
use crate::common::stats::percentile;

const PINGS: usize = 200;
const PONG: &[u8] = b"+PONG\r\n";

pub struct Pinger(TcpStream);

#[derive(Clone, Copy)]
pub struct Pings {
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
}

impl Pinger {
    pub fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.url.trim_start_matches("redis://")).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        Self(stream)
    }

    pub fn ping(&mut self) -> Pings {
        let mut times: Vec<_> = (0..PINGS).map(|_| self.once().as_nanos() as u32).collect();
        times.sort_unstable();
        let millis = |share| percentile(&times, share) / 1e6;
        Pings {
            p50: millis(0.5),
            p99: millis(0.99),
        }
    }

    fn once(&mut self) -> Duration {
        let (since, mut reply) = (Instant::now(), [0; PONG.len()]);
        self.0.write_all(b"PING\r\n").unwrap();
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply, PONG);
        since.elapsed()
    }
}
