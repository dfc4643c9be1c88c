//! Two gateways to a language model, which share the budgets of their tenants: requests and tokens per minute.
//!
//! What a request costs is known only when its answer ends. So each request holds one request and an estimate of tokens, which
//! its `max_tokens` says, or is refused; and the usage in the last event of the stream is captured. If the client leaves
//! before, what it got is captured. The upstream is a small server of our own (`model.rs`), and so are the tenants
//! (`clients.rs`). The budgets are in `budget.rs`; the page is in `page.rs`.
//!
//! ```text
//! cargo run --example llm_gateway                                    the page is at http://127.0.0.1:3000/, or at PORT
//! REDIS_URL=redis://127.0.0.1/ cargo run --example llm_gateway      the budgets are in Redis
//! cargo run --example llm_gateway -- once                            one request of each tenant, and the budgets as text
//! ```

mod board;
mod budget;
mod clients;
mod model;
mod page;
#[path = "../pages/mod.rs"]
mod pages;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tower::BoxError;
use tower_distributed::Store;

use self::board::Board;
use self::budget::Tenants;
use self::clients::{Clients, Patience};

/// The tenants that ask, and that the page shows.
const TENANTS: [&str; 3] = ["acme", "globex", "initech"];

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let store = match std::env::var("REDIS_URL") {
        Ok(url) => Store::redis(&url)?,
        Err(_) => Store::in_memory(),
    };
    let once = std::env::args().nth(1).as_deref() == Some("once");
    let port = match std::env::var("PORT") {
        _ if once => 0,
        Ok(port) => port
            .parse()
            .map_err(|_| format!("PORT must be 0 to 65535, is {port:?}"))?,
        Err(_) => 3000,
    };
    let board = Board::default();
    let upstream = serve(0, Router::new().route("/complete", get(model::complete))).await?;
    let gateway = |name| budget::gateway(&store, upstream, &board, name);
    let second = serve(0, gateway("B")?).await?;

    // The page is on the port of gateway A.
    let listener = listen(port).await?;
    let first = listener.local_addr()?;
    let clients = Clients::new([first, second]);
    if once {
        serve_on(listener, gateway("A")?);
        return ask_once(&store, &clients).await;
    }
    let page = page::Page::new(&store, board.clone(), clients)?;
    let app = gateway("A")?.merge(page::routes(&page));
    serve_on(listener, app);
    println!("the page is at http://{first}, state: {store}");
    tokio::spawn(clients::keep_asking(Arc::clone(&page)));
    page.keep_looking().await;
    Ok(())
}

/// One request of each tenant to gateway B, and the budgets as text.
async fn ask_once(store: &Store, clients: &Clients) -> Result<(), BoxError> {
    for tenant in TENANTS {
        let status = clients.ask(1, tenant, 400, Patience::ToTheEnd).await?;
        println!("{tenant}: {status}");
    }
    println!("{}", Tenants::new(store)?.rows().await?.join("\n"));
    Ok(())
}

async fn serve(port: u16, app: Router) -> Result<SocketAddr, BoxError> {
    let listener = listen(port).await?;
    let address = listener.local_addr()?;
    serve_on(listener, app);
    Ok(address)
}

async fn listen(port: u16) -> Result<TcpListener, BoxError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}").into())
}

fn serve_on(listener: TcpListener, app: Router) {
    tokio::spawn(async move { axum::serve(listener, app).await });
}
