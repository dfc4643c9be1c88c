//! The master that Sentinels report.
//!
//! A store follows the Sentinels with a task on its background runtime: it subscribes to their messages, and also
//! queries them at an interval, since messages can be lost. When they report another master, the store leaves all
//! connections to the former one, although it may serve for some more seconds: the new master does not know what the
//! former one grants meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
// Not tokio's: a caller's runtime may have paused its clock.
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo, Value, cmd, pipe};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::Error;
use crate::error::reasons::{Cause, Outage};
use crate::store::background::{Background, BackgroundTask};
use crate::store::redis::breaker::{Attempt, Failures};
use crate::store::redis::endpoint::{Access, Endpoint, is_tls};
use crate::store::redis::errors;
use crate::store::redis::errors::connecting::no_connection;
use crate::store::redis::errors::disconnected;
use crate::store::redis::nodes::{Urls, ask_in_turn};

/// The messages of a Sentinel after which it reports another master. The Sentinel that leads a failover sends the first
/// as soon as the new master serves, the others send the second.
const MESSAGES: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The interval at which each Sentinel is queried, in addition to each message.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// How long connecting to a Sentinel, or its reply, may take.
const LONGEST: Duration = Duration::from_secs(2);

/// A master that no Sentinel has reported for this time can be replaced by one from an earlier failover, because
/// Sentinels that were set up anew count failovers from the start.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The master that Sentinels report.
pub(crate) struct Sentinels {
    queries: Arc<Queries>,
    home: Background,
    following: BackgroundTask,
}

struct Queries {
    urls: Urls,
    master: String,
    named: watch::Sender<Named>,
}

/// The master that the Sentinels have reported.
#[derive(Default)]
struct Named {
    /// `host:port`; `None`: none was reported yet.
    address: Option<Arc<str>>,
    /// The number of the failover that made it the master. A Sentinel that is behind has a smaller one.
    epoch: u64,
    /// When it was last confirmed.
    confirmed: Option<Instant>,
    /// The number of times that another master was reported.
    switches: u64,
}

impl Sentinels {
    pub(crate) fn new(
        urls: impl IntoIterator<Item = impl AsRef<str>>,
        access: &Access,
        master: &str,
        home: &Background,
    ) -> Result<Self, Error> {
        let urls = Urls::new("Sentinel", urls, access)?;
        if master.is_empty() {
            return Err(Error::invalid("the name of the master must not be empty"));
        }
        agree(&urls.infos)?;
        let is_tcp = |addr: &ConnectionAddr| {
            matches!(
                addr,
                ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. }
            )
        };
        if let Some(info) = urls.infos.iter().find(|info| !is_tcp(info.addr())) {
            let text = format!(
                "not Sentinels: {} is not the address of a host and a port",
                info.addr()
            );
            return Err(Error::invalid(text));
        }
        let queries = Queries {
            urls,
            master: master.into(),
            named: watch::Sender::default(),
        };
        Ok(Self {
            queries: Arc::new(queries),
            home: home.clone(),
            following: BackgroundTask::default(),
        })
    }

    /// Returns the number of times that another master was reported. A connection that was made before the last time
    /// leads to a former master.
    pub(super) fn switches(&self) -> u64 {
        self.queries.named.borrow().switches
    }

    /// Waits until another master is reported, after `since` switches.
    pub(super) async fn switched(&self, since: u64) {
        // It ends with this value.
        let _ = self
            .queries
            .named
            .subscribe()
            .wait_for(|named| named.switches != since)
            .await;
    }

    /// Connects to the master, which may change while it is connecting.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, Outage> {
        self.follow();
        loop {
            let since = self.switches();
            let connecting = async {
                let master = self.queries.named_master().await?;
                let mut connection = master.connect().await?;
                check_role(&mut connection, &master)
                    .await
                    .map(|()| connection)
            };
            tokio::select! {
                connected = connecting => return connected,
                () = self.switched(since) => {}
            }
        }
    }

    /// Returns the master that is currently reported.
    pub(super) async fn master(&self) -> Result<Endpoint, Outage> {
        self.follow();
        self.queries.named_master().await
    }

    /// Starts the task that follows the Sentinels, unless it is running.
    fn follow(&self) {
        self.following.start(&self.home, || {
            let queries = Arc::clone(&self.queries);
            async move {
                drop(join_all(queries.sentinels().map(|sentinel| queries.stay(sentinel))).await)
            }
        });
    }

    /// Ends the task. The next connection starts it again.
    pub(super) fn stop(&self) {
        self.following.stop();
    }

    /// Whether both are certainly the same master and database.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let one = &self.queries;
        let other = &other.queries;
        one.master == other.master
            && one.database() == other.database()
            && one.urls.overlap(&other.urls.infos)
    }
}

impl Queries {
    /// Returns the Sentinels. They have no databases: the database in the URLs is the master's.
    fn sentinels(&self) -> impl Iterator<Item = Endpoint> {
        self.urls.infos.iter().map(|info| {
            let info = info
                .clone()
                .set_redis_settings(info.redis_settings().clone().set_db(0));
            let access = Access {
                #[cfg(simulation)]
                dial: self.urls.access.dial.clone(),
                ..Access::default()
            };
            Endpoint { info, access }
        })
    }

    /// Returns a server that a Sentinel reports, with the credentials of the store.
    fn server(&self, address: &str) -> Endpoint {
        // There is at least one URL.
        let info = self
            .urls
            .infos
            .iter()
            .find(|info| is_tls(info))
            .unwrap_or(&self.urls.infos[0]);
        let settings = RedisConnectionInfo::default().set_db(self.database());
        let settings = settings.set_protocol(info.redis_settings().protocol());
        Endpoint {
            info: info.clone().set_redis_settings(settings),
            access: self.urls.access.clone(),
        }
        .at(address)
    }

    fn database(&self) -> i64 {
        self.urls
            .infos
            .first()
            .map_or(0, |info| info.redis_settings().db())
    }

    /// Queries one Sentinel after the other until one replies. If none does, returns the master that was last reported:
    /// the task that follows the Sentinels has learned of no other.
    async fn named_master(&self) -> Result<Endpoint, Outage> {
        let ask = |sentinel: Endpoint| async move {
            self.ask(&mut in_time(&sentinel, sentinel.connect()).await?)
                .await
        };
        let is_known = self.named.borrow().address.is_some();
        let outage = ask_in_turn(self.sentinels(), !is_known, ask)
            .await
            .err()
            .flatten();
        let named = self.named.borrow().address.clone();
        named.map(|address| self.server(&address)).ok_or_else(|| {
            outage.unwrap_or_else(|| disconnected(format!("no connection to {self}")))
        })
    }

    /// Follows one Sentinel until the future is dropped.
    async fn stay(&self, sentinel: Endpoint) {
        let mut failures = Failures::default();
        loop {
            // Not reported here: the errors of calls to the master name the cause.
            let lasted = self.follow_one(&sentinel).await.unwrap_or_default();
            failures.pause(Attempt::Lasted(lasted)).await;
        }
    }

    /// Queries a Sentinel at once, after each of its messages, and at an interval, until a connection fails. Returns
    /// for how long it replied, or an error if it never did.
    async fn follow_one(&self, sentinel: &Endpoint) -> Result<Duration, Outage> {
        let mut connection = in_time(sentinel, sentinel.connect()).await?;
        let mut messages = subscribed(sentinel).await?.map(PubSub::into_on_message);
        self.ask(&mut connection).await?;
        let since = Instant::now();
        loop {
            let message = async {
                match &mut messages {
                    Some(messages) => messages.next().await,
                    None => pending().await,
                }
            };
            let closed = matches!(timeout(ASK_EVERY, message).await, Ok(None));
            if closed || self.ask(&mut connection).await.is_err() {
                return Ok(since.elapsed());
            }
        }
    }

    /// Queries a Sentinel for the master.
    async fn ask(&self, sentinel: &mut MultiplexedConnection) -> Result<(), Outage> {
        let mut both = pipe();
        // The epoch is read first: an old address with a new epoch would hide the new address.
        both.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        both.cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master);
        let queries = both.query_async::<(HashMap<String, String>, (String, String))>(sentinel);
        let (state, (host, port)) = match timeout(LONGEST, queries).await {
            Ok(reply) => reply.map_err(|error| no_connection(self, error))?,
            Err(_) => {
                return Err(disconnected(format!(
                    "no connection to {self}: no answer within {LONGEST:?}"
                )));
            }
        };
        let epoch = state
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0);
        self.learn(&format!("{host}:{port}"), epoch);
        Ok(())
    }

    fn learn(&self, address: &str, epoch: u64) {
        self.named.send_if_modified(|named| {
            let is_same = named.address.as_deref() == Some(address);
            let is_old = named
                .confirmed
                .is_none_or(|confirmed| confirmed.elapsed() > FORGOTTEN);
            let counts = epoch > named.epoch || is_old || is_same && epoch == named.epoch;
            if counts {
                (named.epoch, named.confirmed) = (epoch, Some(Instant::now()));
            }
            if !counts || is_same {
                return false;
            }
            named.switches += u64::from(named.address.is_some());
            named.address = Some(address.into());
            true
        });
    }
}

/// Awaits a reply of a Sentinel, for at most [`LONGEST`].
async fn in_time<T>(
    sentinel: &Endpoint,
    answer: impl Future<Output = Result<T, Outage>>,
) -> Result<T, Outage> {
    timeout(LONGEST, answer).await.unwrap_or_else(|_| {
        let address = sentinel.address();
        Err(disconnected(format!(
            "no connection to the Sentinel at {address} within {LONGEST:?}"
        )))
    })
}

/// Subscribes at a Sentinel. `None`: its user has no permission.
async fn subscribed(sentinel: &Endpoint) -> Result<Option<PubSub>, Outage> {
    match in_time(sentinel, sentinel.subscribe(&MESSAGES)).await {
        Err(outage) if outage.cause == Cause::Denied => Ok(None),
        subscribed => subscribed.map(Some),
    }
}

/// Checks that a server is a master, unless it does not report its role.
async fn check_role(
    connection: &mut MultiplexedConnection,
    server: &Endpoint,
) -> Result<(), Outage> {
    let role = match cmd("ROLE").query_async::<Value>(connection).await {
        Ok(Value::Array(role)) => role.into_iter().next(),
        Ok(_) => None,
        Err(error) => {
            let outage = errors::outage(error);
            return if outage.cause == Cause::Disconnected {
                Err(outage)
            } else {
                Ok(())
            };
        }
    };
    match role {
        Some(Value::BulkString(role)) if role != b"master" => {
            let address = server.address();
            let role = String::from_utf8_lossy(&role);
            let text = format!("{address}, which Sentinel names as the master, is a {role}");
            Err(errors::of(Cause::NotServing, text))
        }
        _ => Ok(()),
    }
}

/// Checks that all URLs have the same user, password and database.
fn agree(infos: &[ConnectionInfo]) -> Result<(), Error> {
    let [first, others @ ..] = infos else {
        return Ok(());
    };
    for other in others {
        let one = first.redis_settings();
        let two = other.redis_settings();
        let settings = [
            ("user", one.username() != two.username()),
            ("password", one.password() != two.password()),
            ("database", one.db() != two.db()),
        ];
        let differ: Vec<_> = settings
            .into_iter()
            .filter_map(|(what, differs)| differs.then_some(what))
            .collect();
        if !differ.is_empty() {
            let what = differ.join(" and ");
            let one = first.addr();
            let two = other.addr();
            let text = format!(
                "the URLs of Sentinel must have the same {what}, but {one} and {two} differ"
            );
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queries.fmt(f)
    }
}

impl fmt::Display for Queries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the master {:?} of {}",
            self.master,
            self.urls.addresses()
        )
    }
}

#[cfg(test)]
mod tests;
