//! Runs of the example as a process.

use std::io::Read as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use tower_distributed::{Quota, Store, TokenBucket, web};

use support::example::program_of;
use support::redis_server::RedisServer;
use support::scratch_dir::ScratchDir;
use support::supervised::Supervised;
use support::{eventually, eventually_blocking};

const SOON: Duration = Duration::from_secs(30);

/// Runs the example to its end.
async fn load(arguments: &str) -> Output {
    let mut command = Command::new(program_of("load"));
    command
        .args(arguments.split(' '))
        .env_remove("REDIS_URL")
        .stdin(Stdio::null());
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns admitted, refused and errors in the row of a process, or of `all`.
fn row(text: &str, name: &str) -> [u64; 3] {
    let row = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(name))
        .expect(text);
    let mut numbers = row
        .split_whitespace()
        .skip(1)
        .map(|number| number.parse().expect(row));
    std::array::from_fn(|_| numbers.next().expect(row))
}

/// Serves until the test ends, and returns the URL.
async fn serve(app: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

#[tokio::test]
async fn two_processes_share_a_bucket_and_keep_its_bound() {
    let (server, dir) = (RedisServer::start().await, ScratchDir::new());
    let svg = dir.path().join("load.svg");
    let arguments = "--quota 50/s --burst 10 --keys 2 --processes 2 --rate 200 --seconds 2";
    let output = load(&format!(
        "token-bucket --redis {} {arguments} --svg {}",
        server.url(),
        svg.display()
    ))
    .await;
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("interval bound of 50/s, burst 10 kept: the worst interval is "),
        "{text}"
    );
    let (all, one, other) = (row(&text, "all"), row(&text, "0"), row(&text, "1"));
    assert_eq!(
        all,
        std::array::from_fn(|count| one[count] + other[count]),
        "{text}"
    );
    // Each of two keys: the burst, and something of the rate. Both processes had their part.
    assert!(
        all[0] > 20 && all[0] <= 2 * (10 + 50 * 3) && all[2] == 0,
        "{text}"
    );
    assert!(one[0] > 0 && other[0] > 0 && all[1] > 0, "{text}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("allowed: 2 · (burst + rate · t)"),
        "{svg}"
    );
}

#[tokio::test]
async fn a_server_that_admits_everything_breaks_the_bound() {
    let url = serve(Router::new().route("/", get(async || "hello"))).await;
    let output = load(&format!(
        "http {url} --quota 10/s --processes 2 --tasks 4 --seconds 1"
    ))
    .await;
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("interval bound of 10/s BROKEN: the worst interval is 0."),
        "{text}"
    );
    assert!(text.contains("200: "), "{text}");
}

#[tokio::test]
async fn a_server_with_a_limit_keeps_the_bound_and_its_refusals_are_told() {
    let bucket =
        TokenBucket::new(&Store::in_memory(), "api", Quota::per_second(20).burst(5)).unwrap();
    let limit = web::rate_limit(bucket, |request: &Request| {
        request.headers()["x-user"].to_str().unwrap().to_owned()
    });
    let url = serve(Router::new().route("/", get(async || "hello")).layer(limit)).await;
    let arguments =
        "--header x-user:ann --quota 20/s --burst 5 --processes 2 --rate 50 --seconds 1";
    let output = load(&format!("http {url} {arguments}")).await;
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let [admitted, refused, errors] = row(&text, "all");
    assert!(
        text.contains(&format!("answers: 200: {admitted}, 429: {refused}\n")) && errors == 0,
        "{text}"
    );
}

#[tokio::test]
async fn every_primitive_keeps_its_promises() {
    let server = RedisServer::start().await;
    for (target, promise) in [
        (
            "wait-group --cap 3",
            "at most 3 permits at once kept: at most 3,",
        ),
        (
            "wait-group --cap 1",
            "at most 1 permit at once kept: at most 1,",
        ),
        ("mutex", "at most 1 holder at once kept: at most 1,"),
        ("rw-lock --writes 30", "writers alone kept: "),
        (
            "single-flight --keys 3",
            "at most 1 run of the origin at once kept: ",
        ),
        ("dedupe", "no item passes twice kept: "),
        ("dedupe --exact", "no false positives kept: 0 of "),
    ] {
        let output = load(&format!(
            "{target} --redis {} --processes 2 --seconds 0.5",
            server.url()
        ))
        .await;
        let text = text(&output);
        assert!(
            output.status.success() && text.contains(promise),
            "{target}: {text}"
        );
    }
}

#[tokio::test]
async fn bad_arguments_are_named() {
    for (arguments, named) in [
        ("http https://example.com/", "https is not supported"),
        ("http http://127.0.0.1:1/ --burst 5", "--quota"),
        (
            "http http://127.0.0.1:1/ --header nonsense",
            "a header field is 'name: value'",
        ),
        ("token-bucket --in-memory --quota 5/fortnight", "fortnight"),
        ("token-bucket --in-memory", "--quota"),
        ("wait-group --in-memory --cap 0", "--cap"),
        ("mutex", "REDIS_URL"),
        ("mutex --in-memory --processes 2", "--processes 1"),
        ("mutex --in-memory --seconds 0", "0.1 to 3600 seconds"),
        ("mutex --in-memory --rate nan", "0.001 to 1000000"),
    ] {
        let output = load(arguments).await;
        let text = text(&output);
        assert!(
            output.status.code() == Some(2) && text.contains(named),
            "{arguments}: {text}"
        );
    }
    let output = load("mutex --redis redis://127.0.0.1:1").await;
    assert!(
        output.status.code() == Some(1) && text(&output).contains("Connection refused"),
        "{}",
        text(&output)
    );
}

/// A run of two processes of one minute, which is at work.
async fn long_run(server: &RedisServer) -> Supervised {
    let mut command = Supervised::command(program_of("load"), None);
    let arguments = format!(
        "token-bucket --redis {} --quota 100/s --processes 2 --seconds 60",
        server.url()
    );
    command.args(arguments.split(' ')).stdout(Stdio::piped());
    let run = Supervised::spawn(command);
    let is_at_work = async || server.query::<u64>(&["DBSIZE"]).unwrap() > 0;
    eventually("calls", SOON, is_at_work).await;
    run
}

/// Waits for the end of a run. Returns its status and what it has printed.
fn end(mut run: Supervised) -> (Option<i32>, String) {
    let mut printed = String::new();
    let mut stdout = run.take_stdout().unwrap();
    eventually_blocking("the end", SOON, || run.exit_status().is_some());
    stdout.read_to_string(&mut printed).unwrap();
    (run.exit_status().unwrap().code(), printed)
}

fn kill(signal: &str, id: u32) {
    let kill = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {id}")])
        .status()
        .unwrap();
    assert!(kill.success());
}

#[tokio::test]
async fn ctrl_c_ends_the_run_with_its_report() {
    let server = RedisServer::start().await;
    let run = long_run(&server).await;
    kill("INT", run.id());
    let (status, printed) = end(run);
    assert!(
        status == Some(0) && printed.starts_with("stopped by Ctrl-C\n"),
        "{status:?} {printed}"
    );
    assert!(
        printed.contains("interval bound of 100/s kept") && row(&printed, "all")[0] > 0,
        "{printed}"
    );
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_process_that_dies_is_told_and_the_run_fails() {
    let server = RedisServer::start().await;
    let run = long_run(&server).await;
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    // The watcher is a child of the process as well.
    let is_copy = |id: &&str| {
        std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "load\n")
    };
    let copy = children.split_whitespace().find(is_copy).expect(&children);
    kill("KILL", copy.parse().unwrap());
    kill("INT", run.id());
    let (status, printed) = end(run);
    assert!(
        status == Some(1) && printed.contains("ended with signal: 9"),
        "{status:?} {printed}"
    );
}
