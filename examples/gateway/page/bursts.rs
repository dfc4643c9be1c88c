//! The requests that the page's buttons and its steady traffic send, in turn to both gateways.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::HeaderValue;
use axum::http::header::HOST;

use crate::queues::TENANT;

/// A request from an address of this machine.
pub(super) struct Call {
    /// 0 for gateway A, 1 for B.
    pub(super) gateway: usize,
    pub(super) request: Request,
    /// When it is sent, after the burst began.
    pub(super) after: Duration,
}

impl Call {
    fn new(gateway: usize, method_and_path: &str, caller: u8, body: &'static str) -> Self {
        let (method, path) = method_and_path
            .split_once(' ')
            .unwrap_or(("GET", method_and_path));
        let mut request = Request::new(Body::from(body));
        *request.method_mut() = method.parse().unwrap_or_default();
        *request.uri_mut() = path.parse().unwrap_or_default();
        // Both gateways are one host to their clients.
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static("gateway.example"));
        let address = SocketAddr::from((Ipv4Addr::new(127, 0, 0, caller), 0));
        request.extensions_mut().insert(ConnectInfo(address));
        Self {
            gateway: gateway % 2,
            request,
            after: Duration::ZERO,
        }
    }

    fn after(self, milliseconds: u64) -> Self {
        Self {
            after: Duration::from_millis(milliseconds),
            ..self
        }
    }

    fn with_id(mut self, id: &str) -> Self {
        if let Ok(id) = HeaderValue::from_str(id) {
            self.request.headers_mut().insert("webhook-id", id);
        }
        self
    }
}

/// The calls of a button; `None` if there is no such button. `now` makes names new for each burst.
pub(super) fn calls(what: &str, now: u64, caller: u8) -> Option<Vec<Call>> {
    let all = |count: usize, path: &str| -> Vec<Call> {
        (0..count)
            .map(|turn| Call::new(turn, path, caller, ""))
            .collect()
    };
    let apart = |calls: Vec<Call>, milliseconds: u64| -> Vec<Call> {
        (0..)
            .zip(calls)
            .map(|(turn, call)| call.after(turn * milliseconds))
            .collect()
    };
    Some(match what {
        "limited" => all(15, "GET /limited"),
        "export" => apart(all(6, "GET /export"), 150),
        "report" => all(20, &format!("GET /report/{now}")),
        "billing" => all(2, "POST /billing"),
        "document" => "rrrwrrwrrr"
            .chars()
            .zip(0_u32..)
            .map(|(access, turn)| {
                let (path, body) = match access {
                    'w' => ("PUT /document/42", "text"),
                    _ => ("GET /document/42", ""),
                };
                Call::new(turn as usize, path, caller, body).after(u64::from(turn) * 60)
            })
            .collect(),
        // Three messages, each delivered four times. The first delivery of the third one fails.
        "webhook" => (0..12_u32)
            .map(|turn| {
                let (message, delivery) = (turn % 3, turn / 3);
                let id = format!("evt_{:x}_{now}_{message}", std::process::id());
                let body = if (message, delivery) == (2, 0) {
                    "fail"
                } else {
                    "ok"
                };
                let call = Call::new(delivery as usize, "POST /webhook", caller, body).with_id(&id);
                call.after(u64::from(turn) * 100)
            })
            .collect(),
        "policies" => (0..12).flat_map(|turn| policies(turn, caller)).collect(),
        _ => return None,
    })
}

/// One request to each limit that outlives an outage in its own way.
fn policies(turn: usize, caller: u8) -> [Call; 3] {
    [
        "GET /policy/fail-closed",
        "GET /policy/fail-open",
        "GET /policy/local-share",
    ]
    .map(|path| Call::new(turn, path, caller, ""))
}

/// One request to each limit that has steady traffic.
pub(super) fn each_turn(turn: usize, caller: u8) -> impl Iterator<Item = Call> {
    let counted = ["GET /counted/together", "GET /counted/alone"];
    let counted = counted.map(|path| Call::new(turn, path, caller, ""));
    policies(turn, caller)
        .into_iter()
        .chain(counted)
        .chain([limited(turn, caller)])
}

/// One request to `/limited`.
pub(super) fn limited(turn: usize, caller: u8) -> Call {
    Call::new(turn, "GET /limited", caller, "")
}

/// One request of a tenant.
pub(super) fn of_tenant(turn: usize, path: &str, tenant: &'static str) -> Call {
    let mut call = Call::new(turn, path, 1, "");
    call.request
        .headers_mut()
        .insert(TENANT, HeaderValue::from_static(tenant));
    call
}
