//! The example `inspect` as a process, on a real Redis.

use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::RefusedKeys;
use tower_distributed::operator::Operator;
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
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    // A program that does not ask closes its input.
    let _ = input.write_all(stdin.as_bytes()).await;
    let ended = async {
        let output = process.wait_with_output().await.unwrap();
        drop(input);
        output
    };
    let Output {
        status,
        stdout,
        stderr,
    } = tokio::time::timeout(SOON, ended).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.success(), text(stdout), text(stderr))
}

/// A command line, as a shell reads it.
fn line(arguments: &str) -> String {
    format!("'{}' {arguments}", program_of("inspect").display())
}

async fn inspect(arguments: &str) -> (bool, String, String) {
    run("bash", &["-c", &format!("exec {}", line(arguments))], "").await
}

/// A server, at which the tool looks.
struct Scene {
    server: RedisServer,
    url: String,
    store: Store,
}

impl Scene {
    async fn set() -> Self {
        let server = RedisServer::start().await;
        let url = server.url();
        Self {
            store: patient!(url),
            server,
            url,
        }
    }

    /// What the tool prints in success.
    async fn prints(&self, arguments: &str) -> String {
        let (ok, printed, told) = inspect(&format!("{} {arguments}", self.url)).await;
        assert!(ok && told.is_empty(), "{arguments}: {told}");
        printed
    }

    /// The tool prints all of these.
    async fn shows(&self, arguments: &str, parts: &[&str]) {
        let printed = self.prints(arguments).await;
        assert!(
            parts.iter().all(|part| printed.contains(part)),
            "{arguments}: {parts:?}: {printed}"
        );
    }

    /// The rows of what it prints, with one space between two columns.
    async fn rows(&self, arguments: &str) -> Vec<String> {
        let printed = self.prints(arguments).await;
        printed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    /// The tool fails, and tells all of these.
    async fn fails(&self, arguments: &str, tells: &[&str]) {
        let (ok, _, told) = inspect(&format!("{} {arguments}", self.url)).await;
        assert!(
            !ok && tells.iter().all(|text| told.contains(text)),
            "{arguments}: {tells:?}: {told}"
        );
    }

    /// What it prints at a terminal, where it asks, and whether it succeeds. `None` if there is no program `script`, which makes
    /// a terminal.
    async fn asks(&self, arguments: &str, answer: &str) -> Option<(String, bool)> {
        if std::process::Command::new("script")
            .arg("--version")
            .output()
            .is_err()
        {
            eprintln!("there is no program `script`: the question is not tested");
            return None;
        }
        let command = line(&format!("{} {arguments}", self.url));
        let (ok, printed, _) = run("script", &["-qec", &command, "/dev/null"], answer).await;
        assert!(printed.contains("[y/N]"), "{printed}");
        Some((printed, ok))
    }

    /// Without a yes nothing happens.
    async fn changes_nothing_without_a_yes(&self, arguments: &str) {
        self.fails(arguments, &["--yes"]).await;
        for answer in ["n\n", "\n", "yesterday\n"] {
            let Some((printed, ok)) = self.asks(arguments, answer).await else {
                break;
            };
            assert!(!ok && printed.contains("nothing is changed"), "{printed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_and_changes_what_a_service_holds() {
    let scene = Scene::set().await;
    let Scene { server, store, url } = &scene;
    assert_eq!(scene.prints("").await, "Nothing is stored.\n");

    let bucket = TokenBucket::new(store, "api", Quota::non_refilling(10)).unwrap();
    bucket.allow_n("ann\x1b[2J", 3).await.unwrap();
    let long = "x".repeat(60);
    bucket.allow_n(&*long, 3).await.unwrap();
    let reports = Mutex::new(store, "reports").unwrap();
    let stuck = reports.lock("2026-11").await.unwrap();
    let elsewhere = Mutex::new(&patient!(url), "reports").unwrap();
    let next = tokio::spawn(async move { elsewhere.lock("2026-11").await.unwrap() });
    eventually("a waiter", SOON, async || {
        reports.inspect("2026-11").await.unwrap().waiting == 1
    })
    .await;
    let exports = WaitGroup::new(store, "exports", 10).unwrap();
    let permits = [
        exports.add_n("acme", 7).await.unwrap(),
        exports.add("acme").await.unwrap(),
    ];
    server.cli(&["SET", "other", "1"]);

    let (printed, rows) = (scene.prints("").await, scene.rows("").await);
    let lines: Vec<_> = printed.lines().collect();
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{printed}"
    );
    assert_eq!(rows[0], "KIND NAMESPACE KEY STATE");
    assert_eq!(
        rows[1],
        "token_bucket api ann%1b[2J 7 of 10 left, never refills"
    );
    assert_eq!(
        rows[2],
        format!(
            "token_bucket api {}… 7 of 10 left, never refills",
            "x".repeat(27)
        )
    );
    assert_eq!(rows[3], "wait_group exports acme 8 in use");
    for permit in &permits {
        assert!(
            printed.contains(&format!("    holder {}", permit.token())),
            "{printed}"
        );
    }
    assert!(printed.contains(", weight 7, "));
    assert_eq!(rows[6], "mutex reports 2026-11 held, 1 waiting");
    let holder = format!("    holder {}, fence {}, ", stuck.token(), stuck.fence());
    assert!(lines[7].starts_with(&holder), "{printed}");
    assert_eq!(rows[8..], ["4 entries in 3 namespaces"]);
    assert_eq!(lines[0].find("STATE"), lines[1].find("7 of 10"));
    scene
        .shows(
            "--namespace api --limit 1 --full",
            &["1 entry in 1 namespace\n", "There are more"],
        )
        .await;
    scene
        .shows("--kind mutex", &["1 entry in 1 namespace\n"])
        .await;

    scene
        .changes_nothing_without_a_yes("--revoke reports 2026-11")
        .await;
    assert!(stuck.extend().await.is_ok() && !next.is_finished());
    scene
        .shows(
            "--revoke reports 2026-11 --yes",
            &["The lease is revoked.\n"],
        )
        .await;
    let next = tokio::time::timeout(SOON, next).await.unwrap().unwrap();
    assert!(next.fence() > stuck.fence() && stuck.extend().await.unwrap_err().is_lost());

    let light = permits[1].token();
    scene
        .fails("--revoke exports acme --yes", &["2 holders", light])
        .await;
    scene
        .prints(&format!("--revoke exports acme --holder '{light}' --yes"))
        .await;
    assert_eq!(exports.count("acme").await.unwrap(), 7);

    scene.prints("--reset api 'ann%1b[2J' --yes").await;
    assert_eq!(bucket.peek("ann\x1b[2J").await.unwrap().remaining(), 10);
    if let Some((printed, ok)) = scene.asks(&format!("--reset api {long}"), "y\n").await {
        assert!(ok && printed.contains("The bucket is full."), "{printed}");
        assert_eq!(bucket.peek(&*long).await.unwrap().remaining(), 10);
    }
    // Another library may lock with any bytes.
    let raw = "td:{reports:raw}:lock";
    server.cli(&[
        "EVAL",
        r"return redis.call('SET', KEYS[1], '\255\27[2J', 'PX', 60000)",
        "1",
        raw,
    ]);
    let printed = scene.prints("--revoke reports raw --yes").await;
    assert!(
        printed.ends_with("The lease is revoked.\n") && !printed.contains('\x1b'),
        "{printed}"
    );
    assert_eq!(server.cli(&["EXISTS", raw]), "0");

    // A key that holds something else under one kind is no obstacle for the others.
    server.cli(&["SET", "td:{reports:both}:permits:holders", "1"]);
    let revoke = "--revoke reports both --yes";
    scene
        .fails(revoke, &["wait_group reports both: ", "of another type"])
        .await;
    let stuck = reports.lock("both").await.unwrap();
    let (ok, printed, told) = inspect(&format!("{url} {revoke}")).await;
    assert!(
        ok && printed.contains("mutex reports both: held"),
        "{printed}{told}"
    );
    assert!(stuck.extend().await.unwrap_err().is_lost());

    // A reader that ends early is no failure.
    let piped = format!("{} | true; exit ${{PIPESTATUS[0]}}", line(url));
    let (ok, _, told) = run("bash", &["-c", &piped], "").await;
    assert!(ok && told.is_empty(), "{told}");

    // A digest can be that of a key, and of no item.
    let forget = format!("--forget api '%#{}' --yes", "0a".repeat(32));
    scene.fails(&forget, &["nothing to forget"]).await;
    scene
        .fails(
            &format!("{forget} --kind dedupe"),
            &["name the item itself"],
        )
        .await;
    scene
        .fails("--forget api ann --yes", &["nothing to forget", "\"ann\""])
        .await;
    assert_eq!(server.cli(&["GET", "other"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_that_a_list_of_holders_is_cut() {
    let scene = Scene::set().await;
    let exports = WaitGroup::new(&scene.store, "exports", 2000).unwrap();
    let permits = futures::future::join_all((0..1001).map(|_| exports.add("acme"))).await;
    let mut permits: Vec<_> = permits.into_iter().map(|permit| permit.unwrap()).collect();
    scene
        .fails("--revoke exports acme --yes", &["more than 1000 holders"])
        .await;
    let nobody = "--revoke exports acme --yes --holder nobody";
    scene
        .fails(nobody, &["none of the 1000 holders whose leases end first"])
        .await;
    scene
        .shows("", &["    and at least 995 more: see --full\n"])
        .await;
    scene
        .shows("--full", &["    and more, whose leases end later\n"])
        .await;

    assert!(permits.pop().unwrap().done().await.unwrap());
    scene
        .fails(nobody, &["no holder has the token \"nobody\""])
        .await;
    let printed = scene.prints("--full").await;
    assert!(!printed.contains("and more"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sets_quotas_for_the_whole_fleet() {
    let scene = Scene::set().await;
    let quotas = FleetQuotas::new(&scene.store, "api", "1/s").unwrap();
    let set = "--set api '100/min, burst 20' --by ann";
    scene.changes_nothing_without_a_yes(set).await;
    let printed = scene.prints(&format!("{set} --yes")).await;
    let told = "api: nothing is set\napi: version 1: 100/min, burst 20, set by ann ";
    assert!(printed.starts_with(told), "{printed}");
    eventually("the quotas", SOON, async || {
        quotas.current().to_string() == "100/min, burst 20"
    })
    .await;
    scene.prints("--set api 2/s --by ben --yes").await;
    let limit = FleetLimit::new(&scene.store, "exports", 1_u32).unwrap();
    scene
        .prints("--set exports 7 --kind fleet_limit --by ben --yes")
        .await;
    eventually("the limit", SOON, async || limit.current() == 7).await;
    scene
        .prints("--set api '/a = 1/s\n/b = 2/s' --kind fleet_table --by ben --yes")
        .await;

    let rows = scene.rows("").await;
    for (row, begin) in rows[1..].iter().zip([
        "fleet_quotas api version 2: 2/s, set by ben ",
        "version 1: 100/min, burst 20, set by ann ",
        "fleet_table api version 1: /a = 1/s\\n/b = 2/s, set by ben ",
        "fleet_limit exports version 1: 7, set by ben ",
    ]) {
        assert!(row.starts_with(begin), "{begin}: {rows:?}");
    }
    scene
        .shows("--kind fleet_quotas", &["1 entry in 1 namespace\n"])
        .await;

    let undone = [
        "before: version 1: ",
        "version 3: 100/min, burst 20, set by cleo ",
    ];
    scene.shows("--undo api --by cleo --yes", &undone).await;
    eventually("what was before", SOON, async || quotas.version() == 3).await;
    assert_eq!(quotas.current().to_string(), "100/min, burst 20");
    for (arguments, expected) in [
        (
            "--set api 9/0s --by ann --yes",
            "the period must be at least 1 µs",
        ),
        ("--set api 2/fortnight --by ann --yes", "fortnight"),
        ("--set 'a b' 2/s --by ann --yes", "\"a b\""),
        ("--set api 2/s --by '' --yes", "1 to 64 characters"),
        ("--set api x --kind fleet_limit --by ann --yes", "\"x\""),
        ("--set api 2/s --kind mutex --by ann --yes", "not for mutex"),
        ("--set api 2/s --yes", "--by"),
        ("--undo other --by ann --yes", "nothing to undo"),
    ] {
        scene.fails(arguments, &[expected]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_and_deletes_libraries() {
    let scene = Scene::set().await;
    let server = &scene.server;
    if !has_functions() {
        scene
            .fails("--libraries", &["the server has no functions"])
            .await;
        return;
    }
    let none = "No library is loaded: the first call of a service loads it.\n";
    assert_eq!(scene.prints("--libraries").await, none);
    // A call of this build loads its library. The others are of another version and of another program.
    scene.prints("--set api 1/s --by ann --yes").await;
    for name in ["td_0123456789abcdef", "other"] {
        let text = format!("#!lua name={name}\nredis.register_function('{name}', function() end)");
        assert_eq!(server.cli(&["FUNCTION", "LOAD", &text]).trim(), name);
    }
    let printed = scene.prints("--libraries").await;
    let [old, own] = printed.lines().collect::<Vec<_>>()[..] else {
        panic!("{printed}")
    };
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(
        old,
        format!("td_0123456789abcdef  {address}  of another build")
    );
    assert!(
        own.starts_with("td_") && own.ends_with(&format!("  {address}  of this build")),
        "{own}"
    );

    let delete = "--delete-library td_0123456789abcdef";
    scene.changes_nothing_without_a_yes(delete).await;
    let printed = scene.prints(&format!("{delete} --yes")).await;
    assert_eq!(printed, format!("{old}\nThe library is deleted.\n"));
    assert_eq!(scene.prints("--libraries").await.trim_end(), own);
    for name in ["td_0123456789abcdef", "other"] {
        scene
            .fails(
                &format!("--delete-library {name} --yes"),
                &["no server has the library"],
            )
            .await;
    }

    let (_, rule, _) = inspect(&format!("{} --acl ops", scene.url)).await;
    server.set_user(rule.trim(), &["on", ">secret"]);
    let user = format!("redis://ops:secret@{address}");
    let name = own.split(' ').next().unwrap();
    assert!(
        inspect(&format!("{user} --delete-library {name} --yes"))
            .await
            .0
    );
    server.set_user(rule.trim(), &["on", "-function"]);
    let (ok, _, told) = inspect(&format!("{user} --libraries")).await;
    assert!(!ok && told.contains("Operator::acl_rule"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lists_libraries_of_each_master() {
    requires!(since_7_0());
    let cluster = RedisCluster::start().await;
    let store = Store::builder()
        .timeout(SOON)
        .cluster(cluster.urls())
        .unwrap();
    let bucket = TokenBucket::new(&store, "api", Quota::non_refilling(10)).unwrap();
    futures::future::join_all((0..100_u32).map(|key| bucket.allow(key))).await;
    let operator = Operator::new(&store);
    let libraries = operator.libraries().await.unwrap();
    let mut servers: Vec<_> = libraries.iter().map(|library| &*library.server).collect();
    servers.dedup();
    assert!(
        libraries.iter().all(|library| library.is_own) && servers.len() == 3,
        "{libraries:?}"
    );
    operator.delete_library(&libraries[1]).await.unwrap();
    let left = operator.libraries().await.unwrap();
    assert_eq!(left, [libraries[0].clone(), libraries[2].clone()]);
    let error = operator.delete_library(&libraries[1]).await.unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("not found"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shows_what_is_refused_most() {
    let scene = Scene::set().await;
    scene.shows("--top api", &["Nothing is stored"]).await;
    for ann in [3, 2] {
        let store = patient!(scene.url);
        let refused = RefusedKeys::with_plain_keys(&store, "api").unwrap();
        (0..ann).for_each(|_| refused.record("ann\x1b[2J"));
        refused.record("ben");
        store.shutdown(SOON).await.unwrap();
    }
    assert_eq!(
        scene.prints("--top api").await,
        "         5  ann%1b[2J\n         2  ben\n"
    );
    assert_eq!(
        scene.prints("--top api --limit 1").await,
        "         5  ann%1b[2J\n"
    );
    scene.shows("", &["refused 2 keys", "  ann%1b[2J\n"]).await;
    scene.fails("--top 'a b'", &["\"a b\""]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_is_wrong() {
    let scene = Scene::set().await;
    let url = &scene.url;
    let down = format!("redis://127.0.0.1:{}", support::ports::free_port());
    let rule = scene.prints("--acl ops").await;
    assert!(
        rule.starts_with("ACL SETUSER ops resetkeys ~td:* ") && rule.contains("+scan"),
        "{rule}"
    );
    scene
        .server
        .set_user(rule.trim(), &["on", ">secret", "-scan"]);
    let denied = format!("redis://ops:secret@127.0.0.1:{}", scene.server.port());
    let at = |arguments: &str| format!("{url} {arguments}");
    for (arguments, expected) in [
        ("http://ops:secret@10.0.0.7/".into(), "10.0.0.7/: "),
        ("127.0.0.1".into(), "127.0.0.1: "),
        (down.clone(), down.trim_start_matches("redis://")),
        (denied, "Operator::acl_rule"),
        (at(url), "--cluster or --sentinel"),
        (at("--namespace 'a b'"), "\"a b\""),
        (at("--kind lock"), "mutex"),
        (at("--reset api %zz --yes"), "%zz"),
        (at("--revoke api k --yes"), "nothing to revoke"),
        (at("--reset api"), "--reset"),
        (at("--libraries --yes"), "--yes"),
        (String::new(), "REDIS_URL"),
    ] {
        let (ok, printed, told) = inspect(&arguments).await;
        assert!(
            !ok && told.contains(expected) && printed.is_empty(),
            "{arguments}: {told}"
        );
        assert!(!told.contains("secret"), "{told}");
    }
    let (ok, help, _) = inspect("--help").await;
    assert!(ok && help.contains("--revoke <NAMESPACE> <KEY>"), "{help}");
}
