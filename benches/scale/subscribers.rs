//! Processes that are subscribed, simulated by plain connections: what each takes of the server's memory, and what a
//! message costs, to one of them and to all.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::Bench;
use crate::common::report::number;
use crate::common::table::Table;
use crate::meter::Meter;
use support::eventually;

const PROCESSES: [u64; 3] = [1, 100, 1000];
/// Messages to one process, and to all.
const TO_ONE: u64 = 50_000;
const TO_ALL: u64 = 500;
const ALL: &str = "all";
const SOON: Duration = Duration::from_secs(30);

pub fn run(bench: &Bench) {
    let columns = [
        "processes",
        "bytes each",
        "µs, message to one",
        "µs, message to all",
        "messages delivered/s",
    ];
    let mut table = Table::new(
        "Subscribed processes, each to a channel of its own and one of all",
        columns,
    );
    for processes in PROCESSES {
        table.row(bench.runtime.block_on(measure(bench, processes)));
    }
    table.print();
}

async fn measure(bench: &Bench, processes: u64) -> [String; 5] {
    let url = &bench.server.url;
    let mut meter = Meter::new(&[url]);
    let connections = || bench.server.query::<String>(&["INFO", "memory"]);
    let used = |info: String| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line.unwrap().trim().parse::<f64>().unwrap()
    };
    let before = used(connections());
    let tasks: Vec<_> = (0..processes)
        .map(|process| {
            let address = url.trim_start_matches("redis://").to_owned();
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let subscribe = cmd("SUBSCRIBE")
                    .arg(format!("own-{process}"))
                    .arg(ALL)
                    .get_packed_command();
                stream.write_all(&subscribe).await.unwrap();
                let mut chunk = vec![0; 4096];
                while stream.read(&mut chunk).await.is_ok_and(|read| read > 0) {}
            })
        })
        .collect();
    let subscribed = || {
        bench
            .server
            .query::<(String, u64)>(&["PUBSUB", "NUMSUB", ALL])
            .1
    };
    eventually("all subscriptions", SOON, async || {
        subscribed() == processes
    })
    .await;
    let bytes = (used(connections()) - before) / processes as f64;
    let mut publish = async |count: u64, channel: &dyn Fn(u64) -> String| {
        let mut pipe = deadpool_redis::redis::pipe();
        (0..count).for_each(|message| {
            pipe.cmd("PUBLISH")
                .arg(channel(message))
                .arg("1700000000000000 1700000000000000 123");
        });
        let client = deadpool_redis::redis::Client::open(&**url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        connection.set_response_timeout(SOON);
        let before = meter.read().cpu;
        let began = std::time::Instant::now();
        let _: Vec<u64> = pipe.query_async(&mut connection).await.unwrap();
        (
            (meter.read().cpu - before) / count as f64,
            count as f64 / began.elapsed().as_secs_f64(),
        )
    };
    let (one, _) = publish(TO_ONE, &|message| format!("own-{}", message % processes)).await;
    let (all, rate) = publish(TO_ALL, &|_| ALL.to_owned()).await;
    tasks.into_iter().for_each(|task| task.abort());
    eventually("the end of all subscriptions", SOON, async || {
        subscribed() == 0
    })
    .await;
    [
        processes as f64,
        bytes.round(),
        one,
        all,
        (rate * processes as f64).round(),
    ]
    .map(number)
}
