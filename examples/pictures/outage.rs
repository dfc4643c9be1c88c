//! An outage of 5 s under the three policies of a rate limit. Two gateways are two stores of this process.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tower::{Service as _, ServiceBuilder, ServiceExt as _, service_fn};
use tower_distributed::{
    Quota, RateLimitLayer, Refusal, RefusalKind, Store, StoreFailure, TokenBucket,
};

use crate::canvas::{ACCENT, Align, Done, INK, MIST, MUTED, STEEL, page};
use crate::measured::{note, on_server};
use support::proxy::FaultProxy;

const RATE: u32 = 40;
const EVERY: Duration = Duration::from_millis(20);
const END: f64 = 11.0;
const OUTAGE: (f64, f64) = (3.0, 8.0);
/// The width of a bar in seconds.
const BAR: f64 = 0.5;
const BARS: usize = (END / BAR) as usize;
const GATEWAYS: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// Admitted, refused with 429, refused with 503; for each bar.
type Counts = [[u32; 3]; BARS];

pub(crate) fn draw() -> Done<String> {
    on_server(async |server| {
        let policies = [
            (
                "FailClosed",
                StoreFailure::FailClosed,
                "all refused with 503",
            ),
            ("FailOpen", StoreFailure::FailOpen, "all admitted"),
            (
                "LocalShare { replicas: 2 }",
                StoreFailure::LocalShare { replicas: GATEWAYS },
                "half the limit each",
            ),
        ];
        let proxy = FaultProxy::start(server.port()).await;
        let began = Instant::now() + Duration::from_millis(500);
        let measure = |policy| run(&proxy, policy, began);
        let counts = tokio::try_join!(
            measure(policies[0].1),
            measure(policies[1].1),
            measure(policies[2].1),
            outage(&proxy, began)
        )?;
        let counts = [counts.0, counts.1, counts.2];
        let title = "Redis is away for 5 s: the three policies of a rate limit";
        let subtitle = "Requests per second at two gateways, which are offered 50 each, under one limit of 40.";
        page(title, subtitle, &note(server)?, |page| {
            for (place, ((name, _, effect), counts)) in policies.iter().zip(&counts).enumerate() {
                let left = 56 + place as i32 * 245;
                let panel = page.panel((left..left + 228, 116..344), 0.0..END, 0.0..110.0);
                page.text((left, 78), name, 13.0, INK, Align::Left)?;
                panel.bar((OUTAGE.0, 0.0), (OUTAGE.1, 110.0), MIST, 0.25)?;
                let ticks: &[i32] = if place == 0 { &[0, 40, 100] } else { &[] };
                panel.y_axis(ticks, "")?;
                panel.x_axis(&[0, 3, 8], "s")?;
                for (bar, count) in counts.iter().enumerate() {
                    let (from, to) = (bar as f64 * BAR, (bar + 1) as f64 * BAR - 0.06);
                    let mut base = 0.0;
                    for (count, color) in count.iter().zip([STEEL, MIST, ACCENT]) {
                        let top = base + f64::from(*count) / BAR;
                        if *count > 0 {
                            panel.bar((from, base), (to, top), color, 1.0)?;
                        }
                        base = top;
                    }
                }
                panel.dashed((0.0, RATE.into()), (END, RATE.into()), INK, 1.0)?;
                let middle = (OUTAGE.0 + OUTAGE.1) / 2.0;
                panel.sized(
                    (middle, 110.0),
                    (0.0, -9.0),
                    effect,
                    11.0,
                    MUTED,
                    Align::Middle,
                )?;
            }
            for (left, mark, color, text) in [
                (510, "■", STEEL, "admitted"),
                (590, "■", MIST, "429"),
                (640, "■", ACCENT, "503"),
                (690, "┄", INK, "limit"),
            ] {
                page.text((left, KEY), mark, 12.0, color, Align::Left)?;
                page.text((left + 14, KEY), text, 11.0, MUTED, Align::Left)?;
            }
            Ok(())
        })
    })
}

/// Where the key of the colours stands.
const KEY: i32 = 387;

async fn outage(proxy: &FaultProxy, began: Instant) -> Done {
    tokio::time::sleep_until((began + Duration::from_secs_f64(OUTAGE.0)).into()).await;
    proxy.cut();
    tokio::time::sleep_until((began + Duration::from_secs_f64(OUTAGE.1)).into()).await;
    proxy.heal();
    Ok(())
}

/// Sends the requests of both gateways under one policy, and counts the outcomes.
async fn run(proxy: &FaultProxy, policy: StoreFailure, began: Instant) -> Done<Counts> {
    let name = match policy {
        StoreFailure::FailClosed => "closed",
        StoreFailure::FailOpen => "open",
        _ => "share",
    };
    let (one, other) = tokio::try_join!(
        gateway(proxy, name, policy, began),
        gateway(proxy, name, policy, began)
    )?;
    let mut sum = one;
    for (bar, more) in sum.iter_mut().zip(other) {
        bar.iter_mut()
            .zip(more)
            .for_each(|(count, more)| *count += more);
    }
    Ok(sum)
}

async fn gateway(
    proxy: &FaultProxy,
    name: &str,
    policy: StoreFailure,
    began: Instant,
) -> Done<Counts> {
    let store = Store::redis(&proxy.url())?;
    store.ping().await?;
    let bucket = TokenBucket::new(&store, name, Quota::per_second(RATE).burst(4))?;
    let layer = RateLimitLayer::new(bucket, |_: &()| "ann").on_store_failure(policy);
    let mut service = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(async |()| Ok::<_, Refusal>(())));
    let mut counts = Counts::default();
    for request in 0.. {
        let at = EVERY * request;
        let Some(bar) = counts.get_mut((at.as_secs_f64() / BAR) as usize) else {
            break;
        };
        tokio::time::sleep_until((began + at).into()).await;
        let outcome = service.ready().await?.call(()).await;
        let refusal = outcome
            .as_ref()
            .err()
            .and_then(|error| error.downcast_ref::<Refusal>())
            .map(Refusal::kind);
        match refusal {
            None => bar[0] += 1,
            Some(RefusalKind::StoreUnavailable) => bar[2] += 1,
            Some(_) => bar[1] += 1,
        }
    }
    Ok(counts)
}
