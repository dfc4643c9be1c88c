//! A blocking connection to a Redis server whose calls always return.
//!
//! The connection of the `redis` crate is not used because its reads with a timeout sometimes fail in a process
//! that has children: SIGCHLD may interrupt them (EINTR), and Linux does not resume a read that has a timeout.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use deadpool_redis::redis::{
    Cmd, FromRedisValue, Pipeline, RedisResult, Value, from_redis_value, parse_redis_value,
};

use crate::resp;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// One RESP2 connection to 127.0.0.1, without a handshake.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub fn connect(port: u16) -> RedisResult<Self> {
        Self::with_timeout(port, REPLY_TIMEOUT)
    }

    /// Waits at most `timeout` for each reply. After that, the error is one with `is_timeout()`.
    pub fn with_timeout(port: u16, timeout: Duration) -> RedisResult<Self> {
        let stream =
            TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Runs one command.
    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        self.stream.write_all(&command.get_packed_command())?;
        Ok(from_redis_value(self.receive()?)?)
    }

    /// Sends several commands at once. Returns all of their replies, including those that the pipeline ignores.
    pub fn query_all<T: FromRedisValue>(&mut self, pipeline: &Pipeline) -> RedisResult<Vec<T>> {
        self.stream.write_all(&pipeline.get_packed_pipeline())?;
        pipeline
            .cmd_iter()
            .map(|_| Ok(from_redis_value(self.receive()?)?))
            .collect()
    }

    /// Reads the next reply. An error reply becomes an error.
    fn receive(&mut self) -> RedisResult<Value> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(length) = resp::first_length(&self.received) {
                let reply: Vec<u8> = self.received.drain(..length).collect();
                return parse_redis_value(&reply)?.extract_error();
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
