use futures::poll;

use super::super::*;

#[tokio::test(start_paused = true)]
async fn who_asks_next_asks_after_all_that_is_under_way() {
    let (returning, key) = (Returning::default(), Key::from("k"));
    assert!(returning.end(&key).is_none());
    let (one, other) = (returning.begin(&key), returning.begin(&key));
    assert!(returning.end(&"l".into()).is_none());
    let mut end = Box::pin(returning.end(&key).unwrap());
    drop(one);
    assert!(poll!(&mut end).is_pending());
    drop(other);
    assert!(poll!(&mut end).is_ready());
    assert!(returning.end(&key).is_none());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever() {
    let (returning, key) = (Returning::default(), Key::from("k"));
    let _stands_still = returning.begin(&key);
    let began = tokio::time::Instant::now();
    returning.end(&key).unwrap().await;
    assert!((LONGEST..2 * LONGEST).contains(&began.elapsed()));
}
