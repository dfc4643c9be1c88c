//! Keys of a filter, or of a claim on one of its items, hold something else.

use tower_distributed::Error;

use crate::scene::{LONG, Scene, is_duplicate, take};

fn is_told(error: &Error) {
    assert!(
        error.is_wrong_type() && error.is_unavailable() && error.to_string().contains("WRONGTYPE"),
        "{error}"
    );
}

/// Whatever it is, it is left as it is, and nothing is lost once it is gone.
#[tokio::test]
async fn a_part_of_another_type_is_told_and_nothing_is_lost() {
    let scene = Scene::set("wrong-types", LONG).await;
    assert!(take(&scene.near, "known").await.confirm().await.unwrap());
    for part in ["config", "bits0"] {
        let (name, aside) = (scene.part(part), scene.part("aside"));
        let (confirmed, released) =
            (take(&scene.near, &format!("confirmed {part}")).await, take(&scene.near, "released").await);
        scene.server.cli(&["RENAME", &name, &aside]);
        scene.server.cli(&["RPUSH", &name, "a", "b"]);
        for item in ["known", "new"] {
            is_told(&scene.near.try_claim(item).await.unwrap_err());
            is_told(&scene.near.claim(item, LONG).await.unwrap_err());
            is_told(&scene.near.claim_anyway(item).await.unwrap_err());
        }
        is_told(&confirmed.confirm().await.unwrap_err());
        assert!(released.release().await.unwrap(), "to give it back takes no filter");
        assert_eq!(scene.server.cli(&["LRANGE", &name, "0", "-1"]), "a\nb");
        scene.server.cli(&["RENAME", &aside, &name]);
        assert!(is_duplicate(&scene.near, "known").await);
        scene.nothing_is_left().await;
        for item in [&format!("confirmed {part}"), "released", "new"] {
            assert!(take(&scene.near, item).await.release().await.unwrap());
        }
    }
}

#[tokio::test]
async fn a_claim_of_another_type_is_told_and_concerns_no_other_item() {
    let scene = Scene::set("wrong-claims", LONG).await;
    let claim = take(&scene.near, "a").await;
    let name = scene.claim();
    let other = take(&scene.near, "b").await;
    scene.server.cli(&["DEL", &name]);
    scene.server.cli(&["RPUSH", &name, "x"]);
    let (one, two) = tokio::join!(scene.near.try_claim("a"), scene.near.try_claim("c"));
    let error = one.unwrap_err();
    assert!(error.is_wrong_type(), "{error}");
    drop(two.unwrap());
    let (lost, confirmed) = tokio::join!(claim.confirm(), other.confirm());
    assert!(confirmed.unwrap());
    match lost {
        Ok(was_held) => assert!(!was_held),
        Err(error) => is_told(&error),
    }
    assert_eq!(scene.server.cli(&["LRANGE", &name, "0", "-1"]), "x");
    scene.server.cli(&["DEL", &name]);
    assert!(is_duplicate(&scene.near, "b").await);
    let _ = scene.near.try_claim("a").await.unwrap();
    scene.nothing_is_left().await;
}
