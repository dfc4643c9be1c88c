use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tower::{ServiceExt as _, service_fn};

use super::*;
use crate::dedupe::Dedupe;
use crate::layers::dedupe::DuplicateAction;
use crate::layers::refusal::{Refusal, RefusalKind};
use crate::store::Store;

const SECOND: Duration = Duration::from_secs(1);

type Once = GoOnLayer<u64, u16, &'static str, fn(Refusal) -> u16>;

/// Messages that take as long as the gate is closed.
struct Scene {
    store: Store,
    layer: Once,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    opens: Arc<Notify>,
}

fn refused(refusal: Refusal) -> u16 {
    if refusal.kind() == RefusalKind::InFlight {
        409
    } else {
        503
    }
}

impl Scene {
    fn new(
        go_on: impl FnOnce(DedupeLayer<u64, u16, &'static str, fn(Refusal) -> u16>) -> Once,
    ) -> Self {
        let store = Store::in_memory();
        let dedupe = Dedupe::exact(&store, "webhooks")
            .remember_for(Duration::from_secs(86_400))
            .build()
            .unwrap();
        let layer = DedupeLayer::new(dedupe, |id: &u64| *id)
            .on_duplicate(|_, _| DuplicateAction::Answer(208));
        let layer = go_on(layer.reject_with(refused as fn(Refusal) -> u16));
        Self {
            store,
            layer,
            begun: Arc::default(),
            ended: Arc::default(),
            opens: Arc::default(),
        }
    }

    /// A call that fails if the message is odd.
    fn send(&self, id: u64) -> JoinHandle<Result<u16, &'static str>> {
        let (begun, ended, opens) = (
            Arc::clone(&self.begun),
            Arc::clone(&self.ended),
            Arc::clone(&self.opens),
        );
        let service = service_fn(move |id: u64| {
            begun.fetch_add(1, Ordering::SeqCst);
            let (ended, opens) = (Arc::clone(&ended), Arc::clone(&opens));
            async move {
                opens.notified().await;
                ended.fetch_add(1, Ordering::SeqCst);
                if id.is_multiple_of(2) {
                    Ok(200)
                } else {
                    Err("odd")
                }
            }
        });
        tokio::spawn(self.layer.layer(service).oneshot(id))
    }

    async fn begins(&self, id: u64, count: usize) -> JoinHandle<Result<u16, &'static str>> {
        let sent = self.send(id);
        while self.begun.load(Ordering::SeqCst) < count {
            tokio::task::yield_now().await;
        }
        sent
    }
}

/// It gives up after 1 s, and its handler takes longer.
#[tokio::test(start_paused = true)]
async fn a_message_whose_sender_gives_up_is_handled_once() {
    let scene = Scene::new(DedupeLayer::go_on);
    scene.begins(2, 1).await.abort();
    tokio::time::sleep(SECOND).await;
    assert_eq!(scene.send(2).await.unwrap(), Ok(409));
    let error = scene.store.shutdown(SECOND).await.unwrap_err();
    assert!(
        error.to_string().contains("1 of dedupe \"webhooks\""),
        "{error}"
    );
    scene.opens.notify_one();
    scene.store.shutdown(SECOND).await.unwrap();
    assert_eq!(scene.send(2).await.unwrap(), Ok(208));
    assert_eq!(
        (
            scene.begun.load(Ordering::SeqCst),
            scene.ended.load(Ordering::SeqCst)
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn what_fails_or_takes_too_long_without_its_sender_may_be_sent_again() {
    let scene = Scene::new(|layer| layer.go_on().max_detached(SECOND));
    scene.begins(1, 1).await.abort();
    scene.opens.notify_one();
    scene.store.shutdown(SECOND).await.unwrap();
    scene.begins(1, 2).await.abort();
    tokio::time::sleep(2 * SECOND).await;
    scene.store.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(scene.ended.load(Ordering::SeqCst), 1);
    let stays = scene.begins(1, 3).await;
    tokio::time::sleep(10 * SECOND).await;
    scene.opens.notify_one();
    assert_eq!(
        stays.await.unwrap(),
        Err("odd"),
        "a sender that stays is served"
    );
}
