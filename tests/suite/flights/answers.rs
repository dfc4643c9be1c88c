//! Answers that cannot be published, or are not read.

use tower_distributed::SingleFlight;
use tower_distributed::single_flight::{Codec, Json, SingleFlightBuilder};

use super::{
    LONG, OneCodec, Origin, all_differ, all_ended, begin_run, builder, call, ended, several,
    visible,
};
use crate::stores::{Place, SOON};
use support::eventually;

/// Writes nothing.
const MUTE: OneCodec = OneCodec {
    name: "mute",
    encode: || Err("no words".into()),
};

/// Writes more than is allowed: of nine bytes, the last is too much.
const WIDE: OneCodec = OneCodec {
    name: "wide",
    encode: || Ok(vec![0; 9]),
};

fn settings(codec: impl Codec<u64>) -> SingleFlightBuilder<u64, std::convert::Infallible> {
    SingleFlight::builder(codec)
        .ttl(LONG)
        .lease_ttl(LONG)
        .largest_answer(8)
}

async fn crowd(flights: &[SingleFlight<u64>], origin: &Origin) -> Vec<u64> {
    let mut callers = vec![begin_run(&flights[0], origin).await];
    for number in [0, 1, 0, 1, 0, 1] {
        callers.push(call(&flights[number], origin).await);
    }
    origin.let_go(7);
    all_ended(callers).await
}

/// One run for each process, one after the other; or all run at once.
pub(crate) async fn what_cannot_be_published_is_shared_in_process_or_not(
    place: &Place,
    name: &str,
) {
    for (codec, share) in [
        ("wide", true),
        ("mute", true),
        ("wide", false),
        ("mute", false),
    ] {
        let build = || match codec {
            "wide" => settings(WIDE).share_unpublished(share),
            _ => settings(MUTE).share_unpublished(share),
        };
        let flights = several(place, &format!("{name}.{codec}.{share}"), 2, build);
        let origin = if share {
            Origin::shut()
        } else {
            Origin::crowded()
        };
        let answers = crowd(&flights, &origin).await;
        match share {
            true => assert_eq!(
                (&answers[..], origin.runs()),
                (&[1, 1, 2, 1, 2, 1, 2][..], 2),
                "{codec}"
            ),
            false => assert!(
                all_differ(&answers) && origin.runs() == 7,
                "{codec}: {answers:?}"
            ),
        }
    }
    // What can be published is for all.
    let build = || builder().share_unpublished(false);
    let (flights, origin) = (several(place, name, 2, build), Origin::shut());
    assert_eq!(crowd(&flights, &origin).await, [1; 7]);
}

/// For answers of two bytes, with keys of one and 256 each.
const ROOM_FOR_THREE: u64 = 8 + 1024;

/// What nobody asks for twice does not fill the store.
pub(crate) async fn what_goes_beyond_the_budget_is_for_those_who_wait(place: &Place, name: &str) {
    let build = || builder().largest_answer(8).max_stored(ROOM_FOR_THREE);
    let (flights, origin) = (visible(place, name, 2, build), Origin::shut());
    origin.let_go(5);
    let other = build().build(place, name).unwrap();
    for (key, run) in [("a", 1), ("b", 2), ("c", 3)] {
        assert_eq!(flights[0].run(key, origin.work()).await.unwrap(), run);
        // Which waits until it is stored.
        assert_eq!(other.run(key, origin.work()).await.unwrap(), run);
    }
    assert_eq!(flights[0].run("d", origin.work()).await.unwrap(), 4);
    // Who comes before a flight has landed gets it as well.
    eventually("that it is not there", SOON, async || {
        flights[0].run("d", origin.work()).await.unwrap();
        origin.runs() == 5
    })
    .await;
    for key in ["a", "b", "c"] {
        flights[0].run(key, origin.work()).await.unwrap();
        assert_eq!(origin.runs(), 5, "{key}");
    }
    let leader = begin_run(&flights[0], &origin).await;
    let follower = call(&flights[1], &origin).await;
    place.lined_up(&format!("{name}:k"), 1).await;
    origin.let_go(1);
    assert_eq!(
        (ended(leader).await.unwrap(), ended(follower).await.unwrap()),
        (6, 6)
    );
}

/// As many bytes as are allowed, not one more.
pub(crate) async fn the_largest_answer_is_shared(place: &Place, name: &str) {
    let build = |bytes: usize| {
        let flight = SingleFlight::<Vec<u8>>::builder(Json)
            .ttl(LONG)
            .largest_answer(bytes);
        flight.build(place, name).unwrap()
    };
    let answer = || async { vec![1, 2, 3] };
    let length = serde_json::to_vec(&[1, 2, 3]).unwrap().len();
    assert_eq!(
        build(length - 1).run("large", answer).await.unwrap(),
        [1, 2, 3]
    );
    let other = || async { vec![4] };
    assert_eq!(
        build(length).run("large", other).await.unwrap(),
        [4],
        "it is not there"
    );
    assert_eq!(build(length).run("k", answer).await.unwrap(), [1, 2, 3]);
    let unasked = || async { unreachable!("there is an answer") };
    assert_eq!(
        build(length - 1).run("k", unasked).await.unwrap(),
        [1, 2, 3]
    );
}

pub(crate) async fn answers_of_another_codec_or_version_are_not_read(place: &Place, name: &str) {
    let json = || {
        SingleFlight::builder(Json)
            .ttl(LONG)
            .build(place, name)
            .unwrap()
    };
    let version = |version: &str| builder().version(version).build(place, name).unwrap();
    let writers: [SingleFlight<u64>; 4] = [version(""), version("1"), version("2"), json()];
    let origin = Origin::open();
    for run in 1..=8 {
        let writer = &writers[run as usize % 4];
        assert_eq!(
            writer.run("k", origin.work()).await.unwrap(),
            run,
            "another's was read"
        );
        assert_eq!(
            writer.run("k", origin.work()).await.unwrap(),
            run,
            "it was not overwritten"
        );
    }
}

/// Writes what the codec of this name does not read: a number that goes on.
const GARBLED: OneCodec = OneCodec {
    name: "postcard/1",
    encode: || Ok(vec![0x80]),
};

/// One runs, however many find it.
pub(crate) async fn what_cannot_be_decoded_counts_as_none(place: &Place, name: &str) {
    let garbles = SingleFlight::builder(GARBLED)
        .ttl(LONG)
        .build(place, name)
        .unwrap();
    let flights = several(place, name, 6, builder);
    let origin = Origin::shut();
    origin.let_go(1);
    assert_eq!(garbles.run("k", origin.work()).await.unwrap(), 1);
    let mut callers = Vec::new();
    for flight in &flights {
        callers.push(call(flight, &origin).await);
    }
    place.lined_up(&format!("{name}:k"), 5).await;
    origin.began(2).await;
    origin.let_go(6);
    assert_eq!(
        all_ended(callers).await,
        [2; 6],
        "of {} runs",
        origin.runs()
    );
    assert_eq!(origin.runs(), 2);
}
