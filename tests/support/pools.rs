//! Pools of deadpool-redis.

use deadpool_redis::{Config, Pool, Runtime, cluster};

/// A pool of connections to one server.
pub fn pool(url: impl Into<String>) -> Pool {
    Config::from_url(url)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap()
}

/// A pool of connections to a Cluster.
pub fn pool_of_cluster(urls: impl Into<Vec<String>>) -> cluster::Pool {
    cluster::Config::from_urls(urls)
        .create_pool(Some(Runtime::Tokio1))
        .unwrap()
}
