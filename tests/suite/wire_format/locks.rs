//! Locks, those who wait for them, and names.

use tower_distributed::{Mutex, RwLock};

use super::{MINUTE, Scene};

#[tokio::test]
async fn locks() {
    let scene = Scene::new().await;
    let (here, there) = (&scene.here, &scene.there);
    let one = async || {
        let [mutex, other] = [here, there].map(|store| Mutex::new(store, "mutex").unwrap());
        let held = mutex.lock("k").await.unwrap();
        let waiter = scene
            .behind("mutex", 1, async move { other.lock("k").await })
            .await;
        (held, waiter)
    };
    let rows = "
        td:{mutex:k}:lock | 30 | @-@.@
        td:{mutex:k}:fence | 691200 | #
        td:{mutex:k}:waiters | 60 | @-@.@ 0
        td:{mutex:k}:beats | 60 | @-@.@ #
    ";
    scene.row("mutex", one, rows, "").await;

    let granted = async || {
        let [mutex, other] = [here, there].map(|store| Mutex::new(store, "granted").unwrap());
        let held = mutex.lock("k").await.unwrap();
        let next = scene
            .behind("granted", 1, async move { other.lock("k").await })
            .await;
        assert!(held.unlock().await.unwrap());
        next.await.unwrap().unwrap()
    };
    let rows = "
        td:{granted:k}:lock | * | @-@.@
        td:{granted:k}:fence | 691200 | #
    ";
    scene
        .row("granted", granted, rows, "td:wake:@ | # # @")
        .await;

    let revoked = async || {
        let mutex = Mutex::new(here, "revoked").unwrap();
        let held = mutex.lock("k").await.unwrap();
        let holder = mutex.inspect("k").await.unwrap().holders.remove(0);
        assert!(
            Mutex::new(there, "revoked")
                .unwrap()
                .revoke("k", &holder)
                .await
                .unwrap()
        );
        held
    };
    scene
        .row(
            "revoked",
            revoked,
            "td:{revoked:k}:fence | 691200 | #",
            "td:wake:@ | 0 0 @",
        )
        .await;

    let short = async || {
        Mutex::builder()
            .fence_ttl(MINUTE)
            .build(here, "short")
            .unwrap()
            .lock("k")
            .await
            .unwrap()
    };
    let rows = "
        td:{short:k}:lock | 30 | @-@.@~ea60
        td:{short:k}:fence | 60 | #\\x20
    ";
    scene.row("short", short, rows, "").await;

    let values = async || {
        let builder = Mutex::builder().value_with(|| "host-7".to_owned());
        builder
            .build(here, "values")
            .unwrap()
            .lock("k")
            .await
            .unwrap()
    };
    let rows = "
        td:{values:k}:lock | 30 | host-7
        td:{values:k}:fence | 691200 | # @-@.@:host-7
    ";
    scene.row("values", values, rows, "").await;

    let exact = Mutex::builder().exact_names().build(here, "exact").unwrap();
    for (key, fence) in [
        ("invoice-42", "{invoice-42}:td:fence"),
        ("{shop}:42", "{shop}:42:td:=fence"),
    ] {
        let rows = format!("{key} | 30 | @-@.@\n{fence} | 691200 | #");
        scene
            .row(key, async || exact.lock(key).await.unwrap(), &rows, "")
            .await;
    }

    let readers = async || {
        let builder = RwLock::builder().app_id("app one").fence_ttl(MINUTE);
        let held = builder
            .build(here, "readers")
            .unwrap()
            .read("k")
            .await
            .unwrap();
        let [writer, reader] = [(); 2].map(|()| RwLock::new(there, "readers").unwrap());
        let writer = scene
            .behind("readers", 1, async move { writer.write("k").await })
            .await;
        let reader = reader.with_group("blue").unwrap();
        let reader = scene
            .behind("readers", 2, async move { reader.read("k").await })
            .await;
        (held, writer, reader)
    };
    let rows = "
        td:{readers:k}:rw:holders | 172800 | @-@.@~ea60\\x40app%20one/r #
        td:{readers:k}:rw:waiters | 60 | @-@.@/w16 0, @-@.@/rblue 562949953421312
        td:{readers:k}:rw:beats | 60 | @-@.@/w16 #, @-@.@/rblue #
    ";
    scene.row("readers", readers, rows, "").await;
    let rows = "
        td:{writer:k}:rw:holders | 172800 | @-@.@/w16 #
        td:{writer:k}:rw:fence | 691200 | # 0
    ";
    let writer = async || {
        RwLock::new(here, "writer")
            .unwrap()
            .write("k")
            .await
            .unwrap()
    };
    scene.row("writer", writer, rows, "").await;

    let names = async || {
        let mutex = Mutex::new(here, "names").unwrap();
        let mut held = Vec::new();
        for key in ["", "a:b", "{a}%", &"x".repeat(257)] {
            held.push(mutex.lock(key).await.unwrap());
        }
        held
    };
    let long = "%\\x2315eb95a462ee20bd91a415ae2d4aed341288186ddaa2b37908f7d592f0c3f85f";
    let row = |key: &str| {
        format!("td:{{names:{key}}}:lock | 30 | @-@.@\ntd:{{names:{key}}}:fence | 691200 | #\n")
    };
    let rows: String = ["", "a:b", "%7ba%7d%25", long].map(row).concat();
    scene.row("names", names, &rows, "").await;
}
