//! Limits: one, two together, and holds.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_distributed::token_bucket::Captured;

use super::super::World;
use super::Primitives;

impl World {
    pub(super) async fn charge(&self, all: &Primitives, key: &str) -> Option<()> {
        let cost = 1 + self.network.draw(u64::from(all.rate.burst.min(3))) as u32;
        let (name, began) = (format!("b:{key}"), Instant::now());
        let since = self.judges.losses();
        let waits = self.network.happens(200);
        self.judges.asked(&name, all.rate.terms(), f64::from(cost));
        let decided = match waits {
            true => {
                self.call("wait", self.shape.max_wait, all.bucket.wait_n(key, cost))
                    .await
            }
            false => {
                self.call("allow", Duration::ZERO, all.bucket.allow_n(key, cost))
                    .await
            }
        };
        if self.judges.losses() != since {
            return None;
        }
        // A call that waits may go on only then.
        let began = match &decided {
            Some(Ok(decision)) if decision.is_admitted() => began + decision.delay(),
            _ => began,
        };
        let outcome = match &decided {
            Some(Ok(decision)) => Some(decision.is_admitted()),
            // A wait that is refused for its length says nothing about the tokens.
            Some(Err(error)) if error.is_refused() && !waits => Some(false),
            _ => None,
        };
        match &decided {
            // It was not charged.
            Some(Err(error)) if error.is_refused() && waits => {
                self.judges.gave_back(&name, f64::from(cost))
            }
            _ => self.judges.charged(&name, began, f64::from(cost), outcome),
        }
        self.judges.count(if decided?.ok()?.is_admitted() {
            "admitted"
        } else {
            "refused"
        });
        Some(())
    }

    pub(super) async fn charge_two(&self, all: &Primitives, key: &str) -> Option<()> {
        // All share the second key.
        let other = "k0";
        let (began, since) = (Instant::now(), self.judges.losses());
        let both = [
            ("b1", key, all.rate.terms()),
            ("b2", other, all.rate.half().terms()),
        ];
        for (name, key, terms) in both {
            self.judges.asked(&format!("{name}:{key}"), terms, 1.0);
        }
        let decision = self.ask("allow two", all.buckets.allow([key, other])).await;
        if self.judges.losses() != since {
            return None;
        }
        let outcome = decision.as_ref().map(|decision| decision.is_admitted());
        let refused_by = decision.as_ref().and_then(|decision| decision.refused_by());
        for (name, key, _) in both {
            let limit = format!("{name}:{key}");
            match outcome == Some(false) && refused_by != Some(name) {
                true => self.judges.gave_back(&limit, 1.0),
                false => self.judges.charged(&limit, began, 1.0, outcome),
            }
        }
        Some(())
    }

    pub(super) async fn authorize(&self, all: &Primitives, key: &str) -> Option<()> {
        let terms = all.rate.terms();
        let tokens = 1 + self.network.draw(u64::from(all.rate.burst)) as u32;
        let name = format!("h:{key}");
        let since = self.judges.losses();
        let began = Instant::now();
        let held = f64::from(tokens);
        self.judges.asked(&name, terms, held);
        let authorized = self
            .call("authorize", Duration::ZERO, all.held.authorize(key, tokens))
            .await;
        if matches!(&authorized, Some(Err(error)) if error.is_refused())
            && self.judges.losses() == since
        {
            self.judges.charged(&name, began, held, Some(false));
        }
        let hold = authorized?.ok()?;
        let span = Duration::from_millis(self.network.draw(self.shape.held + 1));
        tokio::select! {
            biased;
            () = hold.lost() => self.judges.count("lost holds"),
            () = sleep(span) => {}
        }
        let used = self.network.draw(u64::from(tokens) + 1) as u32;
        let (began, was_held) = (Instant::now(), hold.is_held());
        match self.network.draw(4) {
            0 => {
                if self.ask("release a hold", hold.release()).await? {
                    self.judges.held_no_more(&name, held);
                }
            }
            1 => drop(hold),
            _ => {
                let captured = self.ask("capture", hold.capture(used)).await?;
                let outcome = (held, used, was_held.then_some(since));
                self.captured((&name, terms), began, outcome, &captured);
            }
        }
        Some(())
    }

    /// `outcome`: what was held, what was used, and the losses before it was held, if it still was.
    fn captured(
        &self,
        (name, terms): (&str, (f64, f64)),
        began: Instant,
        (held, used, since): (f64, u32, Option<u64>),
        captured: &Captured,
    ) {
        // A hold that had ended was captured as a whole.
        if captured.charged > used && !captured.ended {
            self.condemn(format!(
                "{name}: {} captured instead of {used}",
                captured.charged
            ));
        }
        // What is captured late is charged as a debt.
        if captured.excess == 0 && since == Some(self.judges.losses()) {
            self.judges.held_no_more(name, held);
            self.judges.asked(name, terms, f64::from(captured.charged));
            self.judges
                .charged(name, began, f64::from(captured.charged), Some(true));
        }
    }

    /// Holds tokens of two limits, of all or of none.
    pub(super) async fn authorize_two(&self, all: &Primitives, key: &str) -> Option<()> {
        let tokens = [(); 2].map(|()| 1 + self.network.draw(u64::from(all.rate.burst)) as u32);
        // All share the second key.
        let both = [
            (format!("h:1:{key}"), all.rate.terms()),
            ("h:2:k0".into(), all.rate.half().terms()),
        ];
        let since = self.judges.losses();
        for ((name, terms), tokens) in both.iter().zip(tokens) {
            self.judges.asked(name, *terms, f64::from(tokens));
        }
        let began = Instant::now();
        let call = all.held_two.authorize([key, "k0"], tokens);
        let authorized = self.call("authorize two", Duration::ZERO, call).await;
        let refused_by = match &authorized {
            Some(Err(error)) if error.is_refused() => {
                error.decision().and_then(|told| told.refused_by())
            }
            _ => None,
        };
        // In a Cluster, what the first limit had held is given back later.
        if refused_by.is_some() && self.judges.losses() == since && self.topology.is_none() {
            for (((name, _), tokens), limit) in both.iter().zip(tokens).zip(["h1", "h2"]) {
                match refused_by == Some(limit) {
                    true => self
                        .judges
                        .charged(name, began, f64::from(tokens), Some(false)),
                    false => self.judges.gave_back(name, f64::from(tokens)),
                }
            }
        }
        let hold = authorized?.ok()?;
        if hold.held() != tokens {
            self.condemn(format!("{:?} held instead of {tokens:?}", hold.held()));
        }
        self.hold(async {
            hold.lost().await;
            self.judges.count("lost holds");
            std::future::pending().await
        })
        .await;
        let (began, was_held) = (Instant::now(), hold.is_held());
        if self.network.happens(300) {
            return None;
        }
        let used = tokens.map(|tokens| self.network.draw(u64::from(tokens) + 1) as u32);
        let captured = self.ask("capture two", hold.capture(used)).await?;
        for (at, (name, terms)) in both.iter().enumerate() {
            let outcome = (f64::from(tokens[at]), used[at], was_held.then_some(since));
            self.captured((name, *terms), began, outcome, &captured[at]);
        }
        Some(())
    }
}
