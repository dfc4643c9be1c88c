//! The example `prometheus`: its dashboard and its alerts name only metrics and labels that exist.

mod alerts;
mod dashboard;
mod expression;
mod names;
mod scraped;
