//! The masters of the slots, as nodes report them, and when they are read; the groups of slots that share channels.

use super::*;

#[test]
fn slots_are_those_of_the_cluster_specification() {
    assert_eq!(slot(b"123456789"), 0x31c3);
    assert_eq!(slot(b"td:{123456789}:tat"), 0x31c3);
    assert_eq!(slot(b"{}123456789"), slot(b"{}123456789"));
    assert_ne!(slot(b"{}123456789"), slot(b""));
}

fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
    let node = Value::Array(vec![host, Value::Int(port)]);
    Value::Array(vec![Value::Int(first), Value::Int(last), node])
}

fn host(host: &str) -> Value {
    Value::BulkString(host.as_bytes().to_vec())
}

#[test]
fn masters_are_read_and_keep_their_numbers() {
    let masters = Masters::new(&Background::thread());
    let learn = |ranges| {
        let told = parse(&Value::Array(ranges), "own").unwrap();
        masters.known.write().unwrap().learn(told)
    };
    let ip = || host("10.0.0.1");
    assert_eq!(masters.of(7), 0);
    assert!(learn(vec![
        range(0, 8191, ip(), 7000),
        range(8192, 16383, ip(), 7001)
    ]));
    assert_eq!(
        [masters.of(0), masters.of(8191), masters.of(8192)],
        [0, 0, 1]
    );
    // The first master has failed, and another one has its slots.
    assert!(learn(vec![
        range(0, 8191, ip(), 7002),
        range(8192, 16383, ip(), 7001)
    ]));
    assert_eq!([masters.of(0), masters.of(16383)], [2, 1]);
    assert_eq!(masters.addresses(), ["10.0.0.1:7001", "10.0.0.1:7002"]);
    assert!(!masters.is_current(0) && masters.is_current(2));
    assert_eq!(masters.numbers(), [1, 2].into());
    assert_eq!(
        [0, 2, 9].map(|number| masters.address(number)),
        [
            Some("10.0.0.1:7000".into()),
            Some("10.0.0.1:7002".into()),
            None
        ]
    );
    // Slots without a master go to one that redirects.
    assert!(learn(vec![range(0, 1, ip(), 7001)]));
    assert!(!learn(vec![range(0, 1, ip(), 7001)]), "nothing is new");
    assert_eq!([masters.of(0), masters.of(9)], [1, 1]);
    assert_eq!(masters.number_of("10.0.0.1:7000"), Some(0));
    assert_eq!(masters.number_of("10.0.0.9:7000"), Some(3));
}

/// The caller's clock is paused, and that of the background thread is not.
#[tokio::test(start_paused = true)]
async fn masters_are_read_again_while_the_clock_of_the_caller_is_paused() {
    let masters = Arc::new(Masters::new(&Background::thread()));
    for port in [7000, 7001] {
        masters
            .refresh(async move { Ok(vec![(0, 16383, format!("a:{port}"))]) })
            .await;
        assert_eq!(masters.addresses(), [format!("a:{port}")]);
        std::thread::sleep(2 * PAUSE);
        assert!(masters.is_due());
    }
}

#[tokio::test]
async fn masters_are_read_again_after_a_pause_by_one_task_at_a_time() {
    const LONG: Duration = Duration::from_secs(3600);
    let masters = Masters::new(&Background::thread());
    assert!(masters.is_due() && !masters.are_denied());
    let outage = |cause| Some(errors::of(cause, "x"));
    for (pause, outage, is_due, are_denied) in [
        (LONG, None, false, false),
        (LONG, outage(Cause::Denied), false, true),
        (LONG, outage(Cause::NotSent), false, false),
        (Duration::ZERO, outage(Cause::Denied), true, false),
    ] {
        masters.ended(pause, outage.clone());
        assert_eq!(
            (masters.is_due(), masters.are_denied()),
            (is_due, are_denied),
            "{pause:?} {outage:?}"
        );
        assert_eq!(
            masters.outage().map(|outage| outage.cause),
            outage.map(|outage| outage.cause)
        );
    }
    let _turn = masters.turn.lock().await;
    assert!(!masters.is_due(), "another task reads them");
}

#[tokio::test]
async fn pauses_grow_while_nothing_changes() {
    let masters = Masters::new(&Background::thread());
    let told = |port| async move { Ok(vec![(0, 16383, format!("a:{port}"))]) };
    let before = Instant::now();
    for (port, pause) in [(1, PAUSE), (1, 2 * PAUSE), (1, 4 * PAUSE), (2, PAUSE)] {
        masters.read(Instant::now(), told(port)).await;
        assert_eq!(lock(&masters.last).as_ref().unwrap().pause, pause);
    }
    masters
        .read(before, async { panic!("another task has read them since") })
        .await;
    for _ in 0..9 {
        masters
            .read(Instant::now(), async {
                Err(errors::of(Cause::NotSent, "x"))
            })
            .await;
    }
    assert_eq!(lock(&masters.last).as_ref().unwrap().pause, LONGEST_PAUSE);
    assert_eq!(masters.addresses(), ["a:2"], "they stay");
}

#[tokio::test]
async fn what_cannot_be_read_is_told() {
    let masters = Arc::new(Masters::new(&Background::thread()));
    masters
        .refresh(async { panic!("while they are read") })
        .await;
    assert!(masters.outage().unwrap().text.contains("has panicked"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let masters = Arc::new(Masters::new(
        &Background::runtime(runtime.handle().clone()).unwrap(),
    ));
    runtime.shutdown_background();
    masters
        .refresh(async { Ok(vec![(0, 16383, "a:7000".to_owned())]) })
        .await;
    let outage = masters.outage().unwrap();
    assert!(
        outage
            .text
            .contains("the background runtime of the store has ended"),
        "{}",
        outage.text
    );
}

#[test]
fn hosts_that_are_left_out_are_that_of_the_node() {
    let hosts = [Value::Nil, host(""), host("0.0.0.0"), host("::"), host("a")];
    let ranges = hosts.into_iter().map(|host| range(0, 1, host, 7)).collect();
    let told = parse(&Value::Array(ranges), "own").unwrap();
    let addresses: Vec<_> = told.into_iter().map(|(.., address)| address).collect();
    assert_eq!(addresses, ["own:7", "own:7", "own:7", "own:7", "a:7"]);
    let unknown = vec![range(0, 1, host("?"), 7), range(2, 3, host("b"), 8)];
    assert_eq!(
        parse(&Value::Array(unknown), ""),
        Some(vec![(2, 3, "b:8".into())])
    );
}

/// The reply of a node that was removed from its cluster.
#[test]
fn an_answer_without_masters_is_none() {
    for told in [
        Value::Okay,
        Value::Array(Vec::new()),
        Value::Array(vec![range(0, 1, host("?"), 7)]),
        Value::Array(vec![range(0, 16384, host("a"), 7)]),
        Value::Array(vec![range(2, 1, host("a"), 7)]),
        Value::Array(vec![range(0, 1, Value::Nil, 7)]),
    ] {
        assert_eq!(parse(&told, ""), None, "{told:?}");
    }
}

#[tokio::test]
async fn runtimes_that_have_ended_are_forgotten() {
    let store = crate::store::Store::builder()
        .cluster(["redis://127.0.0.1:1"])
        .unwrap();
    let store = store.on_redis().unwrap();
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        store.links(runtime.handle());
        runtime.shutdown_background();
    }
    store.links(&tokio::runtime::Handle::current());
    assert_eq!(lock(&store.source.masters().unwrap().links).len(), 1);
}

#[test]
fn each_group_has_a_tag_in_it() {
    assert_eq!(TAGS.len(), usize::from(GROUPS));
    for (group, (prefix, slot)) in prefixes("td:wake:").enumerate() {
        assert_eq!(usize::from(slot / PER_GROUP), group);
        // The names of processes do not change the slot.
        assert_eq!(
            super::slot(format!("{prefix}0123456789abcdef").as_bytes()),
            slot
        );
        for of_group in [group * 64, group * 64 + 63] {
            let of_group = u16::try_from(of_group).unwrap();
            assert_eq!(super::prefix("td:wake:", of_group).as_ref(), Some(&prefix));
        }
    }
}

/// Processes of all versions must use the same channels.
#[test]
fn tags_do_not_change() {
    let some: Vec<_> = [0, 1, 128, 255]
        .map(|group: usize| TAGS[group].0.clone())
        .into();
    assert_eq!(some, ["460", "14", "16", "430"]);
}

#[test]
fn a_slot_is_refused_until_the_last_of_its_calls_ends() {
    let refused = Refused::default();
    let why = |slot| refused.why(slot).map(|error| error.to_string());
    let note = |slot, text, before| refused.note(slot, &errors::of(Cause::Moving, text), before);
    assert!(note(None, "no Cluster", None).is_none());
    let (first, other) = (note(Some(7), "first", None), note(Some(8), "other", None));
    let second = note(Some(7), "second", None);
    let first = note(Some(7), "again", first);
    assert!(why(7).is_some() && why(8).is_some_and(|why| why.contains("other")));
    assert_eq!(why(9), None);
    drop(first);
    assert!(why(7).is_some());
    drop((second, other));
    assert_eq!((why(7), why(8)), (None, None));
}
