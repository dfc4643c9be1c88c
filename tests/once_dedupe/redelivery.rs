//! Webhooks that are sent several times, to handlers that fail, in processes that are killed and stopped.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::join_all;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use rand::seq::SliceRandom as _;
use tokio::sync::{Notify, oneshot};
use tower::{Service, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{Dedupe, extract, web};

use crate::fleet::{CAPACITY, Fleet, LONG, filter, store_of_role};
use crate::judge::judge;
use crate::messages::Messages;
use crate::referee::Referee;
use support::processes::{Child, setting};
use support::role;
use support::{eventually, size};

const TIMES: usize = 3;
/// Deliveries that wait to be taken.
const QUEUED: usize = 2000;
const PROCESSES: usize = 4;
const TASKS: usize = 32;
const KILLS: usize = 6;
const TTL: Duration = Duration::from_millis(1500);

/// The fewest messages that are sent.
fn amount() -> usize {
    8_000 * size()
}

/// The fate of a request: whoever has sent it goes away.
#[derive(Clone)]
struct GoneAway(Arc<Notify>);

/// Fails one time in four, in all ways there are. It takes most of the time of a process, so one that is stopped holds
/// claims.
async fn handle(referee: Referee, request: Request<String>) -> Result<Response<String>, Infallible> {
    tokio::time::sleep(Duration::from_micros(rand::random_range(0..120_000))).await;
    let answer = |status| Ok(Response::builder().status(status).body(String::new()).unwrap());
    match rand::random_range(0..16) {
        0 => return answer(StatusCode::INTERNAL_SERVER_ERROR),
        1 => return answer(StatusCode::TOO_MANY_REQUESTS),
        2 => std::panic::resume_unwind(Box::new("a handler panics")),
        3 => {
            request.extensions().get::<GoneAway>().unwrap().0.notify_one();
            std::future::pending().await
        }
        _ => {}
    }
    let visit = request.headers()["visit"].to_str().unwrap();
    referee.note("messages", "success", &format!("{} {visit}", request.body())).await;
    answer(StatusCode::OK)
}

#[derive(Clone)]
struct Worker {
    process: String,
    referee: Referee,
    messages: Messages,
    unsure: Arc<Mutex<HashSet<String>>>,
}

impl Worker {
    /// Takes deliveries until there is no end to it.
    async fn work<S>(self, task: usize, service: S)
    where
        S: Service<Request<String>, Response = Response<String>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        for number in 0.. {
            let visit = format!("{}.{task}.{number}", self.process);
            let Some(delivery) = self.messages.next(&self.process).await else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let (message, _) = delivery.split_once(':').unwrap();
            let gone = Arc::new(Notify::new());
            let mut request = Request::new(message.to_owned());
            request.headers_mut().insert("webhook-id", message.parse().unwrap());
            request.headers_mut().insert("visit", visit.parse().unwrap());
            request.extensions_mut().insert(GoneAway(gone.clone()));
            let mut call = tokio::spawn(service.clone().oneshot(request));
            let answer = tokio::select! {
                answer = &mut call => answer.ok().map(|Ok(response)| response),
                () = gone.notified() => {
                    call.abort();
                    None
                }
            };
            let status = answer.as_ref().map(Response::status);
            if status == Some(StatusCode::OK) {
                let was_unsure = self.unsure.lock().unwrap().remove(message);
                let verb = if was_unsure { "unsure" } else { "done" };
                self.referee.note("messages", verb, &format!("{message} {visit}")).await;
            }
            let is_known =
                status == Some(StatusCode::CONFLICT) && !answer.unwrap().headers().contains_key(RETRY_AFTER);
            if status == Some(StatusCode::OK) || is_known {
                self.messages.taken(&self.process, &delivery).await;
            } else {
                self.messages.again(&self.process, &delivery).await;
            }
        }
    }
}

role!(role_worker, async {
    let (process, referee) = (setting("NAME"), Referee::of_role().await);
    let messages = Messages::at(&setting("REFEREE")).await;
    let unsure = Arc::default();
    let worker = Worker { process, referee, messages, unsure };
    let dedupe = Dedupe::builder().remember_forever().ttl(TTL).build(&filter(&store_of_role())).unwrap();
    let told = worker.unsure.clone();
    let mut layer =
        web::dedupe(dedupe, extract::header("webhook-id").unwrap().plain()).on_unsure(move |unsure| {
            told.lock().unwrap().insert(String::from_utf8(unsure.key.as_bytes().to_vec()).unwrap());
        });
    if worker.process.ends_with(['0', '2', '4', '6', '8']) {
        layer = layer.max_wait(LONG);
    }
    let referee = worker.referee.clone();
    let service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(move |request| handle(referee.clone(), request)));
    join_all((0..TASKS).map(|task| worker.clone().work(task, service.clone()))).await;
});

struct Workers<'a> {
    fleet: &'a Fleet,
    alive: Vec<(String, Child)>,
    dead: Vec<String>,
    started: usize,
}

impl Workers<'_> {
    fn start(&mut self) {
        let name = format!("p{}", self.started);
        self.started += 1;
        self.alive.push((name.clone(), self.fleet.spawn("redelivery::role_worker", &name)));
    }

    async fn replace(&mut self) {
        let (name, mut child) = self.alive.remove(0);
        self.fleet.referee.note("messages", "kill", &format!("{name} 0")).await;
        child.kill9();
        self.dead.push(name);
        self.start();
    }

    /// Stops one, while it works, until its claims have run out and the others have tried each delivery since.
    async fn stop(&self, messages: &Messages) {
        let (name, child) = self.alive.last().unwrap();
        eventually("it to work", LONG, async || messages.how_many_pending(name).await >= TASKS / 2).await;
        child.pause();
        let stopped = Instant::now();
        eventually("its claims to run out", LONG, async || stopped.elapsed() > TTL * 3 / 2).await;
        let round = messages.how_many_taken().await + messages.how_many_queued().await;
        eventually("a round of the queue", LONG, async || messages.how_many_taken().await >= round).await;
        child.resume();
    }
}

/// Sends messages until it is told that it is enough, so that no worker is idle, however long a stop takes.
///
/// The [`TIMES`] deliveries of a message are sent at about the same time, and some of them much later. Returns how many
/// messages were sent.
async fn send(messages: Messages, mut enough: oneshot::Receiver<()>) -> usize {
    let (mut sent, mut much_later) = (0, Vec::new());
    while enough.try_recv().is_err() {
        if messages.how_many_queued().await >= QUEUED {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        let of_one = |message| (0..TIMES).map(move |time| format!("m{message}:{time}"));
        let mut deliveries: Vec<_> = (sent..sent + 100).flat_map(of_one).collect();
        sent += 100;
        deliveries.shuffle(&mut rand::rng());
        much_later.extend(deliveries.drain(..20));
        if much_later.len() > QUEUED {
            much_later.shuffle(&mut rand::rng());
            deliveries.extend(much_later.drain(..20));
        }
        messages.send(&deliveries).await;
    }
    messages.send(&much_later).await;
    sent
}

#[tokio::test]
async fn each_webhook_is_handled_once_or_it_is_reported() {
    let fleet = &Fleet::start().await;
    let messages = Messages::at(&fleet.refereeing.url()).await;
    let (enough, when_enough) = oneshot::channel();
    let sending = tokio::spawn(send(messages.clone(), when_enough));
    let began = Instant::now();
    let mut workers = Workers { fleet, alive: Vec::new(), dead: Vec::new(), started: 0 };
    (0..PROCESSES).for_each(|_| workers.start());
    for kill in 1..=KILLS {
        let until = kill * amount() * TIMES / KILLS;
        eventually("deliveries", LONG, async || messages.how_many_taken().await >= until).await;
        // Now and then, and until one held a claim meanwhile.
        if kill % 2 == 0 || kill > 2 && fleet.referee.count("messages", "unsure").await == 0 {
            workers.stop(&messages).await;
        }
        workers.replace().await;
    }
    enough.send(()).unwrap();
    let sent = sending.await.unwrap();
    assert!(sent <= CAPACITY as usize, "{sent} messages are too many for the filter");
    let dead = workers.dead.clone();
    eventually("all deliveries", LONG, async || {
        // What they have sent may arrive after they are gone.
        for process in &dead {
            messages.take_back(process).await;
        }
        messages.how_many_taken().await == sent * TIMES
    })
    .await;
    let took = began.elapsed();
    let verdict = judge(&fleet.referee.notes("messages").await).unwrap();
    println!("{verdict:?} in {took:?}");
    assert_eq!((verdict.handled, verdict.kills), (sent, KILLS));
    assert!(verdict.unsure > 0, "no claim was lost by processes that were stopped");
}
