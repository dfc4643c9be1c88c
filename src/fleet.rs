#![doc = include_str!("fleet/page.md")]

mod follow;
#[cfg(feature = "concurrency-limit")]
mod limit;
pub(crate) mod operations;
#[cfg(feature = "rate-limit")]
pub(crate) mod quotas;
pub(crate) mod value;
pub(crate) mod version;

#[cfg(all(test, feature = "rate-limit"))]
mod agreement;
#[cfg(all(test, feature = "rate-limit"))]
mod tests;

use std::sync::Arc;

use derive_where::derive_where;

#[cfg(feature = "concurrency-limit")]
pub use self::limit::FleetLimit;
pub(crate) use self::operations::look;
#[cfg(feature = "rate-limit")]
pub use self::quotas::{FleetQuotas, FleetTable};
pub use self::value::SettingValue;
pub use self::version::SettingVersion;
use crate::error::Error;
use crate::fleet::follow::Follower;
use crate::fleet::operations::Read;
pub use crate::refused_keys::{RefusedKey, RefusedKeys};
use crate::store::Store;

/// The longest text of a value, in bytes.
const MOST_BYTES: usize = 16 * 1024;

/// The maximum length of the `who` of a version, in characters.
const LONGEST_WHO: usize = 64;

/// A value that the processes of a fleet share, and that can be changed while they run:
/// [`FleetQuotas`], [`FleetTable`] or
/// [`FleetLimit`]. Cheap to clone. See the [module](crate::fleet).
///
/// # Cancel safety
///
/// If the future of a change is dropped, the change may be made or not, but never in part. A future that only reads can
/// be dropped at any time.
#[derive_where(Clone)]
pub struct FleetSetting<T: SettingValue> {
    follower: Arc<Follower<T>>,
    default: T,
}

impl<T: SettingValue> FleetSetting<T> {
    /// Follows the setting `name` in a store, and reads it in the background. `default` applies to this handle until
    /// the store has replied, and as long as nothing is set. It is not stored.
    ///
    /// All handles of the same type, store and name share one value. The name may be that of a limit, but need not be.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) if the name is not 1 to 64 characters of `A-Z a-z 0-9 - _ . /`, or the default
    /// is not valid, as in [`set`](Self::set).
    pub fn new<V>(store: &Store, name: &str, default: V) -> Result<Self, Error>
    where
        V: TryInto<T>,
        Error: From<V::Error>,
    {
        let default = default.try_into()?;
        checked(&default)?;
        Ok(Self {
            follower: Follower::open(store, name)?,
            default,
        })
    }

    /// Returns the value that applies now. It makes no call to the store.
    ///
    /// ```
    /// use tower_distributed::{FleetQuotas, Store, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let store = Store::in_memory();
    /// let quotas = FleetQuotas::new(&store, "mail", "10/min")?;
    /// let bucket = TokenBucket::new(&store, "mail", quotas.current())?;
    /// assert_eq!(bucket.with_quotas(&quotas.current()).allow("ann").await?.remaining(), 9);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn current(&self) -> T {
        self.follower
            .value()
            .unwrap_or_else(|| self.default.clone())
    }

    /// Returns the number of the last version that this process knows; 0 if it knows none. It makes no call to the
    /// store.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.follower.number()
    }

    /// Reads the store now, for example before a service accepts requests. Returns the number of the last version; 0 if
    /// nothing is set.
    ///
    /// ```
    /// # use tower_distributed::{FleetQuotas, Store};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// # let store = Store::in_memory();
    /// let quotas = FleetQuotas::new(&store, "mail", "10/min")?;
    /// if let Err(error) = quotas.refresh().await {
    ///     eprintln!("the default applies until the store replies: {error}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`is_unavailable`](Error::is_unavailable) and [`is_overloaded`](Error::is_overloaded);
    /// [`is_wrong_type`](Error::is_wrong_type) if the stored value is not recognised. In this case the last known value
    /// stays in force.
    pub async fn refresh(&self) -> Result<u64, Error> {
        self.follower.read(Read::last()).await?;
        Ok(self.version())
    }

    /// Sets the value for all processes, and returns the new version. `who` is stored with it, for the
    /// [history](Self::history): 1 to 64 characters without control characters.
    ///
    /// The change is made only if the last version is the one that this process knows. A person may have read an
    /// earlier version: use [`set_if`](Self::set_if) with the version that the person has seen.
    ///
    /// # Errors
    ///
    /// * [`is_invalid`](Error::is_invalid): the value is not valid, such as quotas for which
    ///   [`Quotas::new`](crate::Quotas::new) fails, its text is longer than 16 KiB, or `who` is not valid.
    /// * [`is_conflict`](Error::is_conflict): another version was set meanwhile. The text names both versions, and who
    ///   set the stored one.
    /// * [`is_unavailable`](Error::is_unavailable): the value may have been set. The history shows whether it was.
    /// * [`is_overloaded`](Error::is_overloaded): the value was not set.
    pub async fn set<V>(&self, value: V, who: &str) -> Result<SettingVersion, Error>
    where
        V: TryInto<T>,
        Error: From<V::Error>,
    {
        let text = checked(&value.try_into()?)?;
        check_who(who)?;
        let known = self.follower.known().await?;
        self.follower.change(known, Some(&text), who).await
    }

    /// Sets the value if the last version has the number `version`; 0 if no value must be set yet.
    ///
    /// ```
    /// use tower_distributed::{FleetQuotas, Store};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_distributed::Error> {
    /// let quotas = FleetQuotas::new(&Store::in_memory(), "mail", "10/min")?;
    /// let seen = quotas.version(); // shown to ann and to ben
    /// quotas.set_if(seen, "20/min", "ann").await?;
    /// let error = quotas.set_if(seen, "5/min", "ben").await.unwrap_err();
    /// assert!(error.is_conflict());
    /// assert_eq!(
    ///     error.to_string(),
    ///     "quotas \"mail\": version 0 was expected, and version 1 was found, set by \"ann\""
    /// );
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as [`set`](Self::set).
    pub async fn set_if<V>(
        &self,
        version: u64,
        value: V,
        who: &str,
    ) -> Result<SettingVersion, Error>
    where
        V: TryInto<T>,
        Error: From<V::Error>,
    {
        let text = checked(&value.try_into()?)?;
        check_who(who)?;
        self.follower.change(version, Some(&text), who).await
    }

    /// Sets the value of the version before the last one that this process knows, as a new version. If there was none
    /// before, each process uses its default again.
    ///
    /// An `undo` is a version itself, so a second `undo` restores the value that the first one replaced.
    ///
    /// # Errors
    ///
    /// The same as [`set`](Self::set), and [`is_invalid`](Error::is_invalid) if nothing is set.
    pub async fn undo(&self, who: &str) -> Result<SettingVersion, Error> {
        check_who(who)?;
        let known = self.follower.known().await?;
        self.undo_if(known, who).await
    }

    /// Undoes the version with the number `version` if it is the last. Otherwise like [`undo`](Self::undo).
    ///
    /// # Errors
    ///
    /// The same as [`undo`](Self::undo).
    pub async fn undo_if(&self, version: u64, who: &str) -> Result<SettingVersion, Error> {
        check_who(who)?;
        if version == 0 {
            let (what, name) = (T::NAME, self.follower.name());
            return Err(Error::invalid(format!(
                "{what} {name:?}: nothing is set, so there is nothing to undo"
            )));
        }
        self.follower.change(version, None, who).await
    }

    /// Reads the last ten versions, the newest first.
    ///
    /// # Errors
    ///
    /// The same as [`refresh`](Self::refresh).
    pub async fn history(&self) -> Result<Vec<SettingVersion>, Error> {
        self.follower.read(Read::all()).await
    }

    #[cfg(test)]
    pub(crate) fn poll_every(&self, every: std::time::Duration) {
        self.follower.poll_every(every);
    }
}

/// Returns the text of a value, which all processes can parse.
fn checked<T: SettingValue>(value: &T) -> Result<String, Error> {
    let text = value.text()?;
    if text.len() > MOST_BYTES {
        let (what, bytes) = (T::NAME, text.len());
        return Err(Error::invalid(format!(
            "{what}: the text has {bytes} bytes, at most {MOST_BYTES} are allowed"
        )));
    }
    T::parse(&text)?;
    Ok(text)
}

/// Returns whether a character would change the text that is shown around it. The second group are those that change
/// the direction of the text (Unicode's property `Bidi_Control`).
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn check_who(who: &str) -> Result<(), Error> {
    if !(1..=LONGEST_WHO).contains(&who.chars().count()) || who.chars().any(is_control) {
        return Err(Error::invalid(format!(
            "who sets a value must be 1 to {LONGEST_WHO} characters without control characters, is {who:?}"
        )));
    }
    Ok(())
}

debug!(FleetSetting<T: SettingValue>, follower);
