//! What to measure and for how long.

use std::env;
use std::time::Duration;

pub struct Settings {
    pub rounds: usize,
    /// How long a cell of a table is measured, and a round of a figure that has no table.
    pub length: Duration,
    filters: Vec<String>,
    only: Option<String>,
}

impl Settings {
    pub fn read() -> Result<Self, String> {
        let length = seconds("SECONDS", 1.0)?;
        let rounds = number("ROUNDS", 5.0)?;
        if !(1.0..=1e6).contains(&rounds) {
            return Err("ROUNDS is at least 1".into());
        }
        // Cargo adds options of its own, such as `--bench`.
        let filters = env::args()
            .skip(1)
            .filter(|argument| !argument.starts_with('-'))
            .collect();
        Ok(Self {
            rounds: rounds as usize,
            length,
            filters,
            only: env::var("ONLY").ok(),
        })
    }

    /// The part of a name that a contestant of a table must have to run; there are no ratios then.
    pub fn only(&self) -> Option<&str> {
        self.only.as_deref()
    }

    /// Whether a figure is asked for, by its name or part of it.
    pub fn wants(&self, figure: &str) -> bool {
        self.filters.is_empty()
            || self
                .filters
                .iter()
                .any(|filter| figure.contains(filter.as_str()))
    }
}

/// A length of time from the environment.
pub fn seconds(name: &str, default: f64) -> Result<Duration, String> {
    let seconds = number(name, default)?;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err(format!("{name} is 0.001 to 86400"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn number(name: &str, default: f64) -> Result<f64, String> {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .map_err(|_| format!("{name} must be a number, is {text:?}")),
        Err(_) => Ok(default),
    }
}
