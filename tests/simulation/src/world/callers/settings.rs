//! Quotas and limits that are changed for the whole fleet, and quotas of a calendar.

use std::time::Duration;

use tokio::time::Instant;
use tower_distributed::fleet::FleetLimit;
use tower_distributed::fleet::FleetSetting;
use tower_distributed::{Error, FleetQuotas, Quota, Quotas, Store, TokenBucket, WaitGroup};

use super::super::World;
use super::super::shape::Shape;
use crate::network::micros;

/// The quotas that are set: any of them is at most the last one.
const RATES: [(u32, u32); 3] = [(2, 2), (5, 5), (10, 10)];
/// The limits that are set.
const LIMITS: [u32; 3] = [1, 2, 4];
/// What a calendar day has.
const OF_A_DAY: u32 = 20;
const DAY: i64 = 86_400_000_000;
/// How long ahead tokens are reserved.
const DAYS: Duration = Duration::from_secs(2 * 86_400);

pub struct Settings {
    quotas: FleetQuotas,
    bucket: TokenBucket,
    limit: FleetLimit,
    permits: WaitGroup,
    calendar: TokenBucket,
    /// Whose tokens can be reserved for days to come.
    ahead: TokenBucket,
}

fn quota((burst, per_second): (u32, u32)) -> Quota {
    Quota::per_second(per_second).burst(burst).named("q")
}

impl Settings {
    pub fn new(shape: &Shape, store: &Store) -> Result<Self, Error> {
        Ok(Self {
            quotas: FleetQuotas::new(store, "q", quota(RATES[0]))?,
            bucket: TokenBucket::new(store, "q", quota(RATES[0]))?,
            limit: FleetLimit::new(store, "fg", LIMITS[0])?,
            permits: super::permits(shape, LIMITS[0]).build(store, "fg")?,
            calendar: TokenBucket::new(store, "day", Quota::per_calendar_day(OF_A_DAY))?,
            ahead: TokenBucket::new(
                store,
                "ahead",
                Quota::per_calendar_day(OF_A_DAY).reserve_ahead(true),
            )?
            .with_max_wait(DAYS),
        })
    }
}

impl World {
    /// Sets a value for the fleet once in a while. A version of somebody else in between is a conflict.
    async fn change<T, V>(&self, setting: &FleetSetting<T>, value: V)
    where
        T: tower_distributed::fleet::SettingValue,
        V: TryInto<T>,
        Error: From<V::Error>,
    {
        self.ask("set", setting.set(value, "a world")).await;
    }

    pub(super) async fn fleet_quotas(&self, settings: &Settings, key: &str) -> Option<()> {
        let (quotas, most) = (&settings.quotas, RATES[2]);
        if self.network.happens(50) {
            let rate = RATES[self.network.draw(3) as usize];
            self.judges.forget_charges_of("q:");
            self.change(quotas, quota(rate)).await;
            self.judges.forget_charges_of("q:");
        }
        let (began, since) = (Instant::now(), self.judges.losses());
        let current: Quotas = quotas.current();
        let bucket = settings.bucket.with_quotas(&current);
        let decision = self.ask("fleet quota", bucket.allow(key)).await?;
        if decision.is_admitted() && self.judges.losses() == since {
            let terms = (f64::from(most.0), f64::from(most.1));
            self.judges.asked(&format!("q:{key}"), terms, 1.0);
            self.judges
                .charged(&format!("q:{key}"), began, 1.0, Some(true));
        }
        Some(())
    }

    pub(super) async fn fleet_limit(&self, settings: &Settings, key: &str) -> Option<()> {
        if self.network.happens(50) {
            self.change(&settings.limit, LIMITS[self.network.draw(3) as usize])
                .await;
        } else if self.network.happens(50) {
            self.undo(settings).await;
        }
        let since = self.judges.losses();
        let call = settings.permits.add(key);
        let permit = self.get("fleet limit", self.shape.max_wait, call).await?;
        let name = format!("fg:{key}");
        let who = self.acquired(&name, (permit.handle(), 1, false), LIMITS[2], since);
        self.hold(permit.lost()).await;
        self.judges.released(&name, who);
        drop(permit);
        Some(())
    }

    /// The versions of a setting have numbers without gaps, and going back sets the value of the version before.
    async fn undo(&self, settings: &Settings) -> Option<()> {
        let (limit, since) = (&settings.limit, self.judges.losses());
        // There may be nothing to undo.
        drop(limit.undo("a world").await);
        let history = self.ask("history", limit.history()).await?;
        let is_row = history
            .windows(2)
            .all(|two| two[0].number == two[1].number + 1);
        if !is_row && self.has_all(since) {
            self.condemn(format!("a setting has the versions {history:?}"));
        }
        Some(())
    }

    /// Once nothing is wrong, all processes have the same versions.
    pub(super) fn settings_agree(&self, settings: &Settings) {
        self.judges
            .agrees("the version of the quotas", settings.quotas.version());
        self.judges
            .agrees("the version of the limit", settings.limit.version());
    }

    /// The day of the servers.
    fn server_day(&self) -> i64 {
        (micros() + self.judges.clock()) / DAY
    }

    pub(super) async fn calendar(&self, settings: &Settings, key: &str) -> Option<()> {
        match self.network.draw(4) {
            0 => self.reserve_ahead(settings, key).await,
            1 => self.spend_under_another_quota(settings, key).await,
            _ => self.spend(settings, key).await,
        }
    }

    /// What is charged by another quota of the same bucket is charged to the day as well, once the bucket knows the day.
    async fn spend_under_another_quota(&self, settings: &Settings, key: &str) -> Option<()> {
        let bucket = settings
            .calendar
            .with_quotas(&Quotas::new([Quota::per_second(100)]).ok()?);
        let (day, since) = (self.server_day(), self.judges.losses());
        let before = settings
            .calendar
            .peek(key)
            .await
            .map_or(OF_A_DAY, |state| state.remaining());
        let decision = self.ask("another quota", bucket.allow(key)).await;
        let admitted = decision.is_some_and(|decision| decision.is_admitted());
        let after = settings
            .calendar
            .peek(key)
            .await
            .map_or(0, |state| state.remaining());
        // Only calls that are dropped, or whose answers are lost, give tokens back.
        let is_free = admitted && before < OF_A_DAY && after > before.saturating_sub(1);
        if is_free && self.runs_alone() && self.has_all(since) && self.server_day() == day {
            self.condemn(format!(
                "day:{key}: {before} were left before a charge, {after} after it"
            ));
        }
        Some(())
    }

    /// Reserves tokens of today or of days to come, and gives some back.
    async fn reserve_ahead(&self, settings: &Settings, key: &str) -> Option<()> {
        let (tokens, since) = (1 + self.network.draw(6) as u32, self.judges.losses());
        let day = self.server_day();
        let call = settings.ahead.reserve_n(key, tokens);
        let mut reservation = self.ask("reserve ahead", call).await?;
        let acts = (micros() + self.judges.clock() + reservation.delay().as_micros() as i64) / DAY;
        if self.network.happens(300) {
            return self.ask("cancel", reservation.cancel()).await.map(drop);
        }
        if self.judges.losses() == since && self.server_day() == day {
            self.judges
                .spent(&format!("ahead:{key}"), acts, tokens, OF_A_DAY);
        }
        Some(())
    }

    async fn spend(&self, settings: &Settings, key: &str) -> Option<()> {
        let (day, since) = (self.server_day(), self.judges.losses());
        let decision = self.ask("calendar", settings.calendar.allow(key)).await?;
        if decision.is_admitted() && self.judges.losses() == since && self.server_day() == day {
            self.judges.spent(&format!("day:{key}"), day, 1, OF_A_DAY);
        }
        Some(())
    }
}
