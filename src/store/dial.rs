//! Simulated connections, for simulations in virtual time (`tests/simulation`).

use std::io;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Client, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};

/// One end of a connection. Bytes that are written to one end are read at the other.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections.
pub trait Dial: Send + Sync {
    /// Connects to `host:port`.
    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<Box<dyn Stream>>>;
}

/// Connects like a client with these settings.
pub(super) async fn multiplexed(
    dial: &Arc<dyn Dial>,
    client: &Client,
    config: AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let info = client.get_connection_info();
    let stream = dial.dial(info.addr().to_string()).await?;
    let connected =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await;
    let (connection, driver) = connected?;
    tokio::spawn(driver);
    Ok(connection)
}

/// Connects like such a client, for messages.
pub(super) async fn pubsub(dial: &Arc<dyn Dial>, client: &Client) -> RedisResult<PubSub> {
    let info = client.get_connection_info();
    let stream = dial.dial(info.addr().to_string()).await?;
    PubSub::new(info.redis_settings(), stream).await
}
