//! Inspects a store: its statistics, a ping to its server, the access control list (ACL) that it needs, and a list of
//! its contents.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::Error;
use crate::key::Key;
use crate::store::memory::cells::Cells;
use crate::store::operation::Cell;
use crate::store::redis::RedisStore;
use crate::store::redis::commands::Position;
use crate::store::redis::limits::Durability;
use crate::store::redis::names::{Stem, parse};
use crate::store::stats::StoreStats;
use crate::store::{Backend, Store};

impl Store {
    /// Sends a `PING` to the server, for readiness probes, and returns how long the reply took. In memory it always
    /// succeeds, and returns zero.
    ///
    /// On a Cluster, all masters are asked at the same time, and one that answers is enough.
    ///
    /// The ping is sent even while the breaker is open, and a reply closes the breaker, except on a Cluster. Use it for
    /// readiness (may this process get requests?), not for liveness: a restart of this process does not bring Redis
    /// back. The gateway example uses it for `/readyz`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = tower_distributed::Store::in_memory();
    /// let took = store.ping().await?;
    /// println!("{} replied in {took:?}", store.stats().server_version.as_deref().unwrap_or("memory"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) if there is no reply within the [connect
    /// timeout](crate::StoreBuilder::connect_timeout) plus the [timeout](crate::StoreBuilder::timeout).
    pub async fn ping(&self) -> Result<Duration, Error> {
        let Some(store) = self.on_redis() else {
            return Ok(Duration::ZERO);
        };
        store
            .anywhere(|store, runtime| async move { store.ping(&runtime).await })
            .await?
    }

    /// Returns the current state of the store, for a status page, without a call to the server. In memory all values
    /// are zero.
    ///
    /// The feature `metrics` reports these values and more, over time.
    ///
    /// ```
    /// let stats = tower_distributed::Store::in_memory().stats();
    /// assert_eq!(stats.breaker, tower_distributed::BreakerState::Closed);
    /// println!("{} wait; {} in {} batches so far", stats.queued, stats.operations, stats.batches);
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let Some(store) = self.on_redis() else {
            return StoreStats::default();
        };
        let runtime = Handle::try_current()
            .ok()
            .or_else(|| store.base.background.handle().ok());
        store.stats(runtime.map(|runtime| runtime.id()))
    }
}

/// The commands that the store sends, and those in its scripts.
const COMMANDS: &str = "+evalsha +eval +fcall +function|load +ping +info +subscribe +publish +time \
    +get +mget +set +setrange +strlen +del +unlink +exists +pexpire +pttl \
    +hget +hset +hdel +hexists +lrange +ltrim +rpush \
    +zadd +zcard +zcount +zincrby +zmscore +zrange +zrangebyscore +zrank +zrem +zremrangebyscore +zscore \
    +bitcount +bitfield +bitfield_ro";

/// The commands of an operator, and those in the scripts that it runs.
const OPERATOR: &str = "+evalsha +eval +fcall +function|load +function|list +function|delete \
    +ping +info +scan +publish +time +get +mget +getrange +strlen +set +setrange +del +exists +pexpire +pttl \
    +hget +hexists +hdel +lrange +ltrim +rpush \
    +zadd +zcard +zcount +zincrby +zmscore +zrange +zrangebyscore +zrem +zremrangebyscore +zscore \
    +bitcount";

impl Store {
    /// Returns the command that gives a user of Redis the permissions that this store needs, and no others.
    ///
    /// It changes neither the password of the user nor whether the user is enabled. The keys are those with the
    /// [prefix](crate::StoreBuilder::prefix) of the store.
    ///
    /// ```
    /// use tower_distributed::Store;
    ///
    /// let store = Store::builder().prefix("shop").redis("redis://127.0.0.1/")?;
    /// let rule = store.acl_rule("app")?;
    /// assert!(rule.starts_with("ACL SETUSER app resetkeys ~shop:* resetchannels &shop:wake:* -@all +evalsha +eval +fcall"));
    /// # Ok::<(), tower_distributed::Error>(())
    /// ```
    ///
    /// * Locks with [`exact_names`](crate::mutex::MutexBuilder::exact_names) need their names as well, and `~*:shop:*`
    ///   for the keys beside them.
    /// * To list the contents of the store, create another user with the rule of
    ///   [`Operator::acl_rule`](crate::operator::Operator::acl_rule).
    /// * The client library sends its name to the server with `CLIENT SETINFO`, and ignores a refusal. From Redis 7.2
    ///   on, `+client|setinfo` keeps these refusals out of the server's `ACL LOG`.
    /// * A store on a pool, or with [`wakeups`](crate::StoreBuilder::wakeups), needs `+select` as well if the URL has a
    ///   database other than 0.
    /// * For a Cluster, the rule has `+spublish` and `+ssubscribe`, which Redis has from 7.0 on: leave them out for
    ///   older servers. Without them, each wake-up goes to all nodes.
    /// * `+fcall` and `+function|load` need Redis 7.0: leave them out for older servers. Without them, calls are
    ///   scripts.
    /// * Without `+info`, the store does not detect a server that is too old. Without the channels, `+subscribe` or
    ///   `+publish`, waiters poll.
    /// * Up to Redis 7.0, the error for a command that is denied in a script does not name the command. `ACL LOG` does.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a store in memory, and if `user` is empty or has spaces or control
    /// characters.
    pub fn acl_rule(&self, user: &str) -> Result<String, Error> {
        self.rule(user, COMMANDS)
    }

    /// See [`Operator::acl_rule`](crate::operator::Operator::acl_rule).
    pub(crate) fn operator_acl_rule(&self, user: &str) -> Result<String, Error> {
        self.rule(user, OPERATOR)
    }

    fn rule(&self, user: &str, commands: &str) -> Result<String, Error> {
        let Some(store) = self.on_redis() else {
            return Err(Error::invalid(
                "a store in memory has no access control list",
            ));
        };
        if user.is_empty() || user.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(Error::invalid(format!(
                "the name of a user must not be empty or have spaces or control characters, is {user:?}"
            )));
        }
        let mut rule = format!("ACL SETUSER {user} resetkeys ~{0}:* ", store.base.prefix);
        let _ = write!(
            rule,
            "resetchannels &{}* -@all {commands}",
            store.channels()
        );
        rule.push_str(store.source.more_commands());
        rule.push_str(store.limits.durability.map_or("", Durability::permission));
        Ok(rule)
    }
}

/// A part of a state in Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) namespace: String,
    pub(crate) stem: Stem,
    /// The last part of the name.
    pub(crate) part: String,
}

/// Lists the parts of all states in Redis.
#[derive(Debug)]
pub(crate) struct Listing {
    store: Arc<RedisStore>,
    pattern: String,
    position: Position,
}

impl Store {
    /// Lists the parts of all states, or of those in one namespace, if the store is on Redis. The name must be valid.
    pub(crate) fn listing(&self, namespace: Option<&str>) -> Option<Listing> {
        let store = self.on_redis()?;
        // A prefix and a name contain no characters that are special in patterns.
        let pattern = match namespace {
            Some(name) => format!("{}:{{{name}:*", store.base.prefix),
            None => format!("{}:{{*", store.base.prefix),
        };
        Some(Listing {
            store: Arc::clone(store),
            pattern,
            position: Position::default(),
        })
    }

    /// Returns the keys of the cells of one type for which `shown` returns `true`, with their namespaces, if the store
    /// is in memory.
    pub(crate) fn keys_of<C: Cell>(&self, shown: impl Fn(&C, i64) -> bool) -> Vec<(String, Key)> {
        let Backend::InMemory(store) = self.backend() else {
            return Vec::new();
        };
        let of_one = |name: String| {
            let keys = store.cells::<C>(&name).keys(&shown);
            keys.into_iter()
                .map(move |key| (name.clone(), key))
                .collect::<Vec<_>>()
        };
        store
            .namespaces
            .of_type::<Cells<C>>()
            .into_iter()
            .flat_map(of_one)
            .collect()
    }
}

impl Listing {
    /// Returns the next page, which may be empty; `None` at the end. Cancel safe: if it is dropped, the pages of the
    /// current server are read again.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Found>>, Error> {
        let Some(names) = self.names().await? else {
            return Ok(None);
        };
        let found = |name: Vec<u8>| {
            let (namespace, stem, part) = parse(&self.store.base.prefix, &name)?;
            Some(Found {
                namespace: namespace.to_owned(),
                stem,
                part: part.to_owned(),
            })
        };
        Ok(Some(names.into_iter().filter_map(found).collect()))
    }

    async fn names(&mut self) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let mut position = self.position.take();
        let pattern = self.pattern.clone();
        let scan = |store: Arc<RedisStore>, runtime: Handle| async move {
            let names = store.scan(&runtime, &mut position, &pattern).await;
            (names, position)
        };
        let (names, position) = self.store.anywhere(scan).await?;
        self.position = position;
        names
    }
}

#[cfg(test)]
#[cfg(all(feature = "cluster", feature = "pools", feature = "sentinel"))]
mod tests {
    use std::time::Duration;

    use deadpool_redis::Runtime;
    use deadpool_redis::sentinel::SentinelServerType::Master;
    use support::pools::{pool, pool_of_cluster};

    use crate::store::Store;

    const URL: &str = "redis://127.0.0.1:1";
    const MORE: [&str; 7] = [
        "select",
        "cluster|slots",
        "asking",
        "ssubscribe",
        "role",
        "wait",
        "waitaof",
    ];

    /// Returns the commands of `MORE` that a store needs in addition to those of every store.
    fn more(store: &Store) -> Vec<&'static str> {
        let rule = store.acl_rule("app").unwrap();
        MORE.into_iter()
            .filter(|more| rule.split(' ').any(|word| word == format!("+{more}")))
            .collect()
    }

    #[tokio::test]
    async fn each_kind_of_store_needs_its_own_commands() {
        let redis = |url: &str| Store::redis(url).unwrap();
        let build = Store::builder;
        for (database, commands) in [("", &[][..]), ("/0", &[]), ("/3", &["select"])] {
            assert_eq!(
                more(&redis(&format!("{URL}{database}"))),
                commands,
                "{database}"
            );
        }
        let of_cluster = ["cluster|slots", "asking", "ssubscribe"];
        assert_eq!(more(&build().cluster([URL]).unwrap()), of_cluster);
        assert_eq!(
            more(&build().sentinel([URL], "m").unwrap()),
            ["select", "role"]
        );
        let within = Duration::from_millis(1);
        assert_eq!(
            more(&build().replicas(1, within).redis(URL).unwrap()),
            ["wait"]
        );
        assert_eq!(
            more(
                &build()
                    .replicas(1, within)
                    .fsync(within)
                    .redis(URL)
                    .unwrap()
            ),
            ["waitaof"]
        );

        assert!(more(&Store::from(pool(URL))).is_empty());
        assert_eq!(
            more(&Store::from(pool_of_cluster([URL.into()]))),
            of_cluster
        );
        let config =
            deadpool_redis::sentinel::Config::from_urls(vec![URL.into()], "m".into(), Master);
        assert_eq!(
            more(&Store::from(
                config.create_pool(Some(Runtime::Tokio1)).unwrap()
            )),
            ["select", "role"]
        );
    }

    #[test]
    fn a_user_has_a_name_of_one_word() {
        let store = Store::redis(URL).unwrap();
        for bad in ["a\t", "a\0", "\u{a0}"] {
            assert!(store.acl_rule(bad).unwrap_err().is_invalid(), "{bad:?}");
        }
    }
}
