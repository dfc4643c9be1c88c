//! The settings are applied to the connections.

use super::*;

#[cfg(all(feature = "cluster", feature = "rustls"))]
#[tokio::test]
async fn credentials_take_the_place_of_those_in_the_url() {
    let client = async |credentials: Option<Credentials>| {
        let credentials =
            credentials.map(|credentials| Arc::new(credentials) as Arc<dyn ProvideCredentials>);
        let access = Access {
            credentials,
            ..Access::default()
        };
        let client = Endpoint::new("redis://u:p@a", &access)
            .unwrap()
            .client(None)
            .await
            .ok()
            .unwrap();
        let settings = client.get_connection_info().redis_settings();
        (
            settings.username().map(str::to_owned),
            settings.password().map(str::to_owned),
        )
    };
    let pair = |user: &str, password: &str| (Some(user.to_owned()), Some(password.to_owned()));
    assert_eq!(client(None).await, pair("u", "p"));
    assert_eq!(
        client(Some(Credentials::password("q"))).await,
        pair("u", "q")
    );
    assert_eq!(
        client(Some(Credentials::new("v", "q"))).await,
        pair("v", "q")
    );
}

#[test]
fn what_is_set_reaches_the_connections() {
    let settings = |tcp: Tcp| {
        let access = Access {
            tcp,
            ..Access::default()
        };
        access
            .info("redis://127.0.0.1")
            .unwrap()
            .tcp_settings()
            .clone()
    };
    let usual = settings(Tcp::default());
    assert!(usual.nodelay() && usual.keepalive().is_some());
    #[cfg(target_os = "linux")]
    assert_eq!(usual.user_timeout(), Some(Duration::from_secs(10)));
    let plain = settings(Tcp {
        nodelay: false,
        keepalive: None,
        user_timeout: None,
    });
    assert!(!plain.nodelay() && plain.keepalive().is_none());
}
