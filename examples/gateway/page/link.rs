//! The way to the store, which the page can cut.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Uri;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A switch. With Redis, connections go through a forwarder of this process, which the switch cuts.
#[derive(Clone)]
pub(crate) struct Link {
    away: watch::Sender<bool>,
    is_forwarded: bool,
}

impl Link {
    /// Returns the link, and the URL that goes through it. Only `redis://` URLs can be forwarded: TLS names the host that
    /// it connects to, and a Unix socket has no port.
    pub(crate) async fn to(url: Option<String>) -> io::Result<(Self, Option<String>)> {
        let away = watch::Sender::new(false);
        let Some((server, before, after)) = url.as_deref().and_then(parts) else {
            return Ok((
                Self {
                    away,
                    is_forwarded: false,
                },
                url,
            ));
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let here = listener.local_addr()?;
        eprintln!(
            "the switch of the page is at {here}, before {server}: errors of the store name it"
        );
        let url = format!("redis://{before}{here}{after}");
        tokio::spawn(forward_all(listener, server, away.clone()));
        Ok((
            Self {
                away,
                is_forwarded: true,
            },
            Some(url),
        ))
    }

    /// Whether the switch cuts connections. If not, the gateways use a store that cannot be reached while it is off.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    pub(crate) fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    pub(crate) fn take_away(&self, away: bool) {
        self.away.send_replace(away);
    }
}

/// The server of a URL, and what is before and after it.
fn parts(url: &str) -> Option<(String, String, String)> {
    let rest = url.strip_prefix("redis://")?;
    let uri: Uri = url.parse().ok()?;
    let host = uri.host().filter(|host| !host.is_empty())?;
    let server = format!("{host}:{}", uri.port_u16().unwrap_or(6379));
    let authority = uri.authority()?.as_str();
    let credentials = authority
        .rsplit_once('@')
        .map_or(String::new(), |(before, _)| format!("{before}@"));
    Some((
        server,
        credentials,
        rest.strip_prefix(authority)?.to_owned(),
    ))
}

async fn forward_all(listener: TcpListener, server: String, away: watch::Sender<bool>) {
    let is_known_to_fail = Arc::new(AtomicBool::new(false));
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            // No file descriptor is free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut cut = away.subscribe();
        if *cut.borrow_and_update() {
            continue;
        }
        let (server, is_known_to_fail) = (server.clone(), Arc::clone(&is_known_to_fail));
        tokio::spawn(async move {
            let connected = tokio::select! {
                connected = TcpStream::connect(&server) => connected,
                _ = cut.wait_for(|away| *away) => return,
            };
            // Said once, not for each try.
            let is_new =
                is_known_to_fail.swap(connected.is_err(), Ordering::Relaxed) != connected.is_err();
            let upstream = match connected {
                Ok(upstream) => upstream,
                Err(error) if is_new => return eprintln!("cannot connect to {server}: {error}"),
                Err(_) => return,
            };
            // The end of a connection is no failure of the way.
            tokio::select! {
                _ = forward(connection, upstream) => {}
                _ = cut.wait_for(|away| *away) => {}
            }
        });
    }
}

async fn forward(mut connection: TcpStream, mut upstream: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    copy_bidirectional(&mut connection, &mut upstream)
        .await
        .map(drop)
}
