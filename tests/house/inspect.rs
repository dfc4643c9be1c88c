//! The example `inspect` as a process, on a real Redis.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::Operator;
use tower_distributed::wait_group::FleetLimit;
use tower_distributed::{FleetQuotas, Mutex, Quota, Store, TokenBucket, WaitGroup};

use support::patient;

use support::cluster::RedisCluster;
use support::eventually;
use support::example::program_of;
use support::program::{has_functions, since_7_0};
use support::redis_server::RedisServer;
use support::requires;

const SOON: Duration = Duration::from_secs(20);

/// Runs a program to its end. Returns whether it succeeded, and what it has printed and told.
async fn run(program: &str, arguments: &[&str], stdin: &str) -> (bool, String, String) {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    // A program that does not ask closes its input.
    let _ = input.write_all(stdin.as_bytes()).await;
    let ended = async {
        let output = process.wait_with_output().await.unwrap();
        drop(input);
        output
    };
    let Output { status, stdout, stderr } = tokio::time::timeout(SOON, ended).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

async fn inspect(arguments: &[&str]) -> (bool, String, String) {
    run(program_of("inspect").to_str().unwrap(), arguments, "").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_and_changes_what_a_service_holds() {
    let server = RedisServer::start().await;
    let (store, url) = (patient!(server.url()), server.url());
    assert_eq!(inspect(&[&url]).await, (true, "Nothing is stored.\n".into(), String::new()));

    let bucket = TokenBucket::new(&store, "api", Quota::non_refilling(10)).unwrap();
    bucket.allow_n("ann\x1b[2J", 3).await.unwrap();
    bucket.allow_n([b'x'; 60].as_slice(), 3).await.unwrap();
    let reports = Mutex::new(&store, "reports").unwrap();
    let stuck = reports.lock("2026-11").await.unwrap();
    let elsewhere = Mutex::new(&patient!(url), "reports").unwrap();
    let next = tokio::spawn(async move { elsewhere.lock("2026-11").await.unwrap() });
    eventually("a waiter", SOON, async || reports.inspect("2026-11").await.unwrap().waiting == 1).await;
    let exports = WaitGroup::new(&store, "exports", 10).unwrap();
    let permits = [exports.add_n("acme", 7).await.unwrap(), exports.add("acme").await.unwrap()];
    server.cli(&["SET", "other", "1"]);

    let (ok, printed, told) = inspect(&[&url]).await;
    assert!(ok && told.is_empty(), "{told}");
    let lines: Vec<_> = printed.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{printed}");
    let rows: Vec<_> =
        lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(rows[0], "KIND NAMESPACE KEY STATE");
    assert_eq!(rows[1], "token_bucket api ann%1b[2J 7 of 10 left, never refills");
    assert_eq!(rows[2], format!("token_bucket api {}… 7 of 10 left, never refills", "x".repeat(27)));
    assert_eq!(rows[3], "wait_group exports acme 8 in use");
    assert!(
        permits.iter().all(|permit| printed.contains(&format!("    holder {}", permit.token()))),
        "{printed}"
    );
    assert!(printed.contains(", weight 7, "));
    assert_eq!(rows[6], "mutex reports 2026-11 held, 1 waiting");
    assert!(
        lines[7].starts_with(&format!("    holder {}, fence {}, ", stuck.token(), stuck.fence())),
        "{printed}"
    );
    assert_eq!(rows[8..], ["4 entries in 3 namespaces"]);
    let column = |line: &str, word: &str| line.find(word).unwrap();
    assert_eq!(column(lines[0], "STATE"), column(lines[1], "7 of 10"));
    let (_, printed, _) = inspect(&[&url, "--namespace", "api", "--limit", "1", "--full"]).await;
    assert!(printed.contains("1 entry in 1 namespace\n") && printed.contains("There are more"), "{printed}");
    let (_, printed, _) = inspect(&[&url, "--kind", "mutex"]).await;
    assert!(printed.contains("1 entry in 1 namespace\n"), "{printed}");

    // Without a yes nothing happens.
    let revoke = [&*url, "--revoke", "reports", "2026-11"];
    let (ok, printed, told) = inspect(&revoke).await;
    assert!(!ok && printed.is_empty() && told.contains("--yes"), "{told}");
    for answer in ["n\n", "\n", "yesterday\n"] {
        let Some((printed, _)) = at_a_terminal(&revoke, answer).await else { break };
        assert!(printed.contains("[y/N]") && printed.contains("nothing is changed"), "{printed}");
    }
    assert!(stuck.extend().await.is_ok() && !next.is_finished());

    let (ok, printed, told) = inspect(&[&revoke[..], &["--yes"]].concat()).await;
    assert!(ok && printed.ends_with("The lease is revoked.\n"), "{printed}{told}");
    let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    assert!(next.fence() > stuck.fence() && stuck.extend().await.unwrap_err().is_lost());

    let (ok, _, told) = inspect(&[&url, "--revoke", "exports", "acme", "--yes"]).await;
    assert!(!ok && told.contains("2 holders") && told.contains(permits[1].token()), "{told}");
    let light = ["--holder", permits[1].token(), "--yes"];
    let (ok, _, told) = inspect(&[&[&*url, "--revoke", "exports", "acme"][..], &light].concat()).await;
    assert!(ok && exports.count("acme").await.unwrap() == 7, "{told}");

    let (ok, _, told) = inspect(&[&url, "--reset", "api", "ann%1b[2J", "--yes"]).await;
    assert!(ok && bucket.peek("ann\x1b[2J").await.unwrap().remaining() == 10, "{told}");
    if let Some((printed, ok)) = at_a_terminal(&[&url, "--reset", "api", &"x".repeat(60)], "y\n").await {
        assert!(ok && printed.contains("The bucket is full."), "{printed}");
        assert_eq!(bucket.peek([b'x'; 60].as_slice()).await.unwrap().remaining(), 10);
    }
    // Another library may lock with any bytes.
    server.cli(&[
        "EVAL",
        r"return redis.call('SET', KEYS[1], '\255\27[2J', 'PX', 60000)",
        "1",
        "td:{reports:raw}:lock",
    ]);
    let (ok, printed, told) = inspect(&[&url, "--revoke", "reports", "raw", "--yes"]).await;
    assert!(
        ok && printed.ends_with("The lease is revoked.\n") && !printed.contains('\x1b'),
        "{printed}{told}"
    );
    assert_eq!(server.cli(&["EXISTS", "td:{reports:raw}:lock"]), "0");

    // A key that holds something else under one kind is no obstacle for the others.
    server.cli(&["SET", "td:{reports:both}:permits:holders", "1"]);
    let revoke = [&*url, "--revoke", "reports", "both", "--yes"];
    let (ok, _, told) = inspect(&revoke).await;
    assert!(!ok && told.contains("wait_group reports both: ") && told.contains("of another type"), "{told}");
    let stuck = reports.lock("both").await.unwrap();
    let (ok, printed, told) = inspect(&revoke).await;
    assert!(ok && printed.contains("mutex reports both: held"), "{printed}{told}");
    assert!(stuck.extend().await.unwrap_err().is_lost());

    // A reader that ends early is no failure.
    let (ok, _, told) = run(
        "bash",
        &["-c", "\"$0\" \"$1\" | true; exit ${PIPESTATUS[0]}", program_of("inspect").to_str().unwrap(), &url],
        "",
    )
    .await;
    assert!(ok && told.is_empty(), "{told}");

    // A digest can be that of a key, and of no item.
    let digest = format!("%#{}", "0a".repeat(32));
    let forget = [&*url, "--forget", "api", &digest, "--yes"];
    let (ok, _, told) = inspect(&forget).await;
    assert!(!ok && told.contains("nothing to forget"), "{told}");
    let (ok, _, told) = inspect(&[&forget[..], &["--kind", "dedupe"]].concat()).await;
    assert!(!ok && told.contains("name the item itself"), "{told}");
    let (ok, _, told) = inspect(&[&url, "--forget", "api", "ann", "--yes"]).await;
    assert!(!ok && told.contains("nothing to forget") && told.contains("\"ann\""), "{told}");
    assert_eq!(server.cli(&["GET", "other"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_that_a_list_of_holders_is_cut() {
    let server = RedisServer::start().await;
    let (store, url) = (patient!(server.url()), server.url());
    let exports = WaitGroup::new(&store, "exports", 2000).unwrap();
    let permits = futures::future::join_all((0..1001).map(|_| exports.add("acme"))).await;
    let mut permits: Vec<_> = permits.into_iter().map(|permit| permit.unwrap()).collect();
    let revoke = [&*url, "--revoke", "exports", "acme", "--yes"];
    let (ok, _, told) = inspect(&revoke).await;
    assert!(!ok && told.contains("more than 1000 holders"), "{told}");
    let choose = async |token| inspect(&[&revoke[..], &["--holder", token]].concat()).await;
    let (ok, _, told) = choose("nobody").await;
    assert!(!ok && told.contains("none of the 1000 holders whose leases end first"), "{told}");
    let (_, printed, _) = inspect(&[&url]).await;
    assert!(printed.contains("    and at least 995 more: see --full\n"), "{printed}");
    let (_, printed, _) = inspect(&[&url, "--full"]).await;
    assert!(printed.contains("    and more, whose leases end later\n"), "{printed}");

    assert!(permits.pop().unwrap().done().await.unwrap());
    let (ok, _, told) = choose("nobody").await;
    assert!(!ok && told.contains("no holder has the token \"nobody\""), "{told}");
    let (_, printed, _) = inspect(&[&url, "--full"]).await;
    assert!(!printed.contains("and more"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sets_quotas_for_the_whole_fleet() {
    let server = RedisServer::start().await;
    let (store, url) = (patient!(server.url()), server.url());
    let quotas = FleetQuotas::new(&store, "api", "1/s").unwrap();
    let set = [&*url, "--set", "api", "100/min, burst 20", "--by", "ann"];
    let (ok, _, told) = inspect(&set).await;
    assert!(!ok && told.contains("--yes"), "{told}");
    let (ok, printed, told) = inspect(&[&set[..], &["--yes"]].concat()).await;
    assert!(
        ok && printed.starts_with("api: nothing is set\napi: version 1: 100/min, burst 20, set by ann "),
        "{printed}{told}"
    );
    eventually("the quotas", SOON, async || quotas.current().to_string() == "100/min, burst 20").await;
    if let Some((printed, _)) = at_a_terminal(&[&url, "--set", "api", "2/s", "--by", "ben"], "n\n").await {
        assert!(printed.contains("[y/N]") && printed.contains("nothing is changed"), "{printed}");
    }
    let (ok, _, told) = inspect(&[&url, "--set", "api", "2/s", "--by", "ben", "--yes"]).await;
    assert!(ok, "{told}");
    let limit = FleetLimit::new(&store, "exports", 1_u32).unwrap();
    let (ok, _, told) =
        inspect(&[&url, "--set", "exports", "7", "--kind", "fleet_limit", "--by", "ben", "--yes"]).await;
    assert!(ok && told.is_empty(), "{told}");
    eventually("the limit", SOON, async || limit.current() == 7).await;
    let (ok, _, told) = inspect(&[
        &url,
        "--set",
        "api",
        "/a = 1/s\n/b = 2/s",
        "--kind",
        "fleet_table",
        "--by",
        "ben",
        "--yes",
    ])
    .await;
    assert!(ok, "{told}");

    let (_, printed, _) = inspect(&[&url]).await;
    let rows: Vec<_> =
        printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(rows[1].starts_with("fleet_quotas api version 2: 2/s, set by ben "), "{printed}");
    assert!(rows[2].starts_with("version 1: 100/min, burst 20, set by ann "), "{printed}");
    assert!(rows[3].starts_with("fleet_table api version 1: /a = 1/s\\n/b = 2/s, set by ben "), "{printed}");
    assert!(rows[4].starts_with("fleet_limit exports version 1: 7, set by ben "), "{printed}");
    let (_, printed, _) = inspect(&[&url, "--kind", "fleet_quotas"]).await;
    assert!(printed.ends_with("1 entry in 1 namespace\n"), "{printed}");

    let undo = [&*url, "--undo", "api", "--by", "cleo", "--yes"];
    let (ok, printed, told) = inspect(&undo).await;
    assert!(
        ok && printed.contains("before: version 1: ")
            && printed.contains("version 3: 100/min, burst 20, set by cleo "),
        "{printed}{told}"
    );
    eventually("what was before", SOON, async || quotas.version() == 3).await;
    assert_eq!(quotas.current().to_string(), "100/min, burst 20");
    for (arguments, expected) in [
        (&[&*url, "--set", "api", "9/0s", "--by", "ann", "--yes"][..], "the period must be at least 1 µs"),
        (&[&url, "--set", "api", "2/fortnight", "--by", "ann", "--yes"], "fortnight"),
        (&[&url, "--set", "a b", "2/s", "--by", "ann", "--yes"], "\"a b\""),
        (&[&url, "--set", "api", "2/s", "--by", "", "--yes"], "1 to 64 characters"),
        (&[&url, "--set", "api", "x", "--kind", "fleet_limit", "--by", "ann", "--yes"], "\"x\""),
        (&[&url, "--set", "api", "2/s", "--kind", "mutex", "--by", "ann", "--yes"], "not for mutex"),
        (&[&url, "--set", "api", "2/s", "--yes"], "--by"),
        (&[&url, "--undo", "other", "--by", "ann", "--yes"], "nothing to undo"),
    ] {
        let (ok, _, told) = inspect(arguments).await;
        assert!(!ok && told.contains(expected), "{arguments:?}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_and_deletes_libraries() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (ok, printed, told) = inspect(&[&url, "--libraries"]).await;
    if !has_functions() {
        assert!(!ok && told.contains("the server has no functions"), "{told}");
        return;
    }
    assert_eq!(
        (ok, &*printed, &*told),
        (true, "No library is loaded: the first call of a service loads it.\n", "")
    );
    // A call of this build loads its library. The others are of another version and of another program.
    assert!(inspect(&[&url, "--set", "api", "1/s", "--by", "ann", "--yes"]).await.0);
    for name in ["td_0123456789abcdef", "other"] {
        let text = format!("#!lua name={name}\nredis.register_function('{name}', function() end)");
        assert_eq!(server.cli(&["FUNCTION", "LOAD", &text]).trim(), name);
    }
    let (_, printed, _) = inspect(&[&url, "--libraries"]).await;
    let [old, own] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(old, format!("td_0123456789abcdef  {address}  of another build"));
    assert!(own.starts_with("td_") && own.ends_with(&format!("  {address}  of this build")), "{own}");

    let delete = [&*url, "--delete-library", "td_0123456789abcdef"];
    let (ok, _, told) = inspect(&delete).await;
    assert!(!ok && told.contains("--yes"), "{told}");
    if let Some((printed, ok)) = at_a_terminal(&delete, "n\n").await {
        assert!(!ok && printed.contains("[y/N]") && printed.contains("nothing is changed"), "{printed}");
    }
    let (ok, printed, told) = inspect(&[&delete[..], &["--yes"]].concat()).await;
    assert!(ok && printed == format!("{old}\nThe library is deleted.\n"), "{printed}{told}");
    let (_, printed, _) = inspect(&[&url, "--libraries"]).await;
    assert_eq!(printed.trim_end(), own);
    for name in ["td_0123456789abcdef", "other"] {
        let (ok, _, told) = inspect(&[&url, "--delete-library", name, "--yes"]).await;
        assert!(!ok && told.contains("no server has the library"), "{told}");
    }

    let (_, rule, _) = inspect(&[&url, "--acl", "ops"]).await;
    server.set_user(rule.trim(), &["on", ">secret"]);
    let user = format!("redis://ops:secret@{address}");
    let name = own.split(' ').next().unwrap();
    assert!(inspect(&[&user, "--delete-library", name, "--yes"]).await.0);
    server.set_user(rule.trim(), &["on", "-function"]);
    let (ok, _, told) = inspect(&[&user, "--libraries"]).await;
    assert!(!ok && told.contains("Operator::acl_rule"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_libraries_of_each_master() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::builder().timeout(SOON).cluster(cluster.urls()).unwrap();
    let bucket = TokenBucket::new(&store, "api", Quota::non_refilling(10)).unwrap();
    futures::future::join_all((0..100_u32).map(|key| bucket.allow(key))).await;
    let operator = Operator::new(&store);
    let libraries = operator.libraries().await.unwrap();
    let mut servers: Vec<_> = libraries.iter().map(|library| &*library.server).collect();
    servers.dedup();
    assert!(libraries.iter().all(|library| library.is_own) && servers.len() == 3, "{libraries:?}");
    operator.delete_library(&libraries[1]).await.unwrap();
    let left = operator.libraries().await.unwrap();
    assert_eq!(left, [libraries[0].clone(), libraries[2].clone()]);
    let error = operator.delete_library(&libraries[1]).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("not found"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shows_what_is_refused_most() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (ok, printed, told) = inspect(&[&url, "--top", "api"]).await;
    assert!(ok && printed.starts_with("Nothing is stored") && told.is_empty(), "{printed}{told}");
    for ann in [3, 2] {
        let store = patient!(url);
        let refused = RefusedKeys::with_plain_keys(&store, "api").unwrap();
        (0..ann).for_each(|_| refused.record("ann\x1b[2J"));
        refused.record("ben");
        store.shutdown(SOON).await.unwrap();
    }
    let (ok, printed, _) = inspect(&[&url, "--top", "api"]).await;
    assert_eq!((ok, &*printed), (true, "         5  ann%1b[2J\n         2  ben\n"));
    let (_, printed, _) = inspect(&[&url, "--top", "api", "--limit", "1"]).await;
    assert_eq!(printed, "         5  ann%1b[2J\n");
    let (_, printed, _) = inspect(&[&url]).await;
    assert!(printed.contains("refused 2 keys") && printed.contains("  ann%1b[2J\n"), "{printed}");
    let (ok, _, told) = inspect(&[&url, "--top", "a b"]).await;
    assert!(!ok && told.contains("\"a b\""), "{told}");
}

/// Runs the tool at a terminal. `None` if there is no program `script`, which makes one.
async fn at_a_terminal(arguments: &[&str], answer: &str) -> Option<(String, bool)> {
    if std::process::Command::new("script").arg("--version").output().is_err() {
        eprintln!("there is no program `script`: the question is not tested");
        return None;
    }
    let quoted = arguments.iter().map(|argument| format!(" '{argument}'")).collect::<String>();
    let command = format!("'{}'{quoted}", program_of("inspect").display());
    let (ok, printed, _) = run("script", &["-qec", &command, "/dev/null"], answer).await;
    Some((printed, ok))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_is_wrong() {
    let server = RedisServer::start().await;
    let url = server.url();
    let down = format!("redis://127.0.0.1:{}", support::ports::free_port());
    let (_, rule, _) = inspect(&[&url, "--acl", "ops"]).await;
    assert!(rule.starts_with("ACL SETUSER ops resetkeys ~td:* ") && rule.contains("+scan"), "{rule}");
    server.set_user(rule.trim(), &["on", ">secret", "-scan"]);
    let denied = format!("redis://ops:secret@127.0.0.1:{}", server.port());
    for (arguments, expected) in [
        (&["http://ops:secret@10.0.0.7/"][..], "10.0.0.7/: "),
        (&["127.0.0.1"], "127.0.0.1: "),
        (&[&down], down.trim_start_matches("redis://")),
        (&[&denied], "Operator::acl_rule"),
        (&[&url, &url], "--cluster or --sentinel"),
        (&[&url, "--namespace", "a b"], "\"a b\""),
        (&[&url, "--kind", "lock"], "mutex"),
        (&[&url, "--reset", "api", "%zz", "--yes"], "%zz"),
        (&[&url, "--revoke", "api", "k", "--yes"], "nothing to revoke"),
        (&[&url, "--reset", "api"], "--reset"),
        (&[&url, "--libraries", "--yes"], "--yes"),
        (&[], "REDIS_URL"),
    ] {
        let (ok, printed, told) = inspect(arguments).await;
        assert!(!ok && told.contains(expected) && printed.is_empty(), "{arguments:?}: {told}");
        assert!(!told.contains("secret"), "{told}");
    }
    let (ok, help, _) = inspect(&["--help"]).await;
    assert!(ok && help.contains("--revoke <NAMESPACE> <KEY>"), "{help}");
}
