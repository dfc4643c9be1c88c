//! The header fields that name a user.

/// Header fields by which clients, gateways and identity-aware proxies tell a service the user.
const FIELDS: [&str; 19] = [
    "api-key",
    "apikey",
    "remote-user",
    "x-access-token",
    "x-api-key",
    "x-auth",
    "x-authorization",
    "x-email",
    "x-forwarded-access-token",
    "x-forwarded-client-cert",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-user",
    "x-id-token",
    "x-jwt-assertion",
    "x-remote-user",
    "x-user",
    "x-username",
];

/// The beginnings of the names of such fields.
const PREFIXES: [&str; 17] = [
    "cf-access-",
    "ssl-client-",
    "tailscale-user-",
    "x-amzn-mtls-clientcert",
    "x-amzn-oidc-",
    "x-auth-",
    "x-authenticated-",
    "x-client-cert",
    "x-consumer-",
    "x-credential-",
    "x-goog-authenticated-user-",
    "x-goog-iap-",
    "x-ms-client-principal",
    "x-ms-token-",
    "x-pomerium-",
    "x-ssl-",
    "x-user-",
];

/// Whether a field names a user.
pub(super) fn is_identity(name: &str) -> bool {
    FIELDS.binary_search(&name).is_ok() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_fields_are_sorted() {
        assert!(super::FIELDS.is_sorted(), "they are searched");
    }
}
