//! What happened, and which bounds do not hold.

use std::time::{Duration, Instant};

use super::book::{Book, Breach, Excuse};
use super::events::Event;
use super::samples::{Sample, thirds};
use super::terms::TTL;
use crate::common::report::{note, number};
use crate::common::table::Table;
use crate::load::Load;
use crate::routes::Route;

/// So many of a kind are told one by one.
const TOLD: usize = 10;

pub struct Report<'a> {
    pub length: Duration,
    pub began: Instant,
    pub referee_began: Instant,
    pub load: Load,
    pub events: Vec<(Event, Instant)>,
    pub samples: Vec<Sample>,
    pub book: &'a Book,
    /// Keys without a ttl, after all gateways have ended.
    pub lasting: Vec<String>,
}

impl Report<'_> {
    pub fn print(&self) {
        let seconds = |time: Duration| format!("{:.1}", time.as_secs_f64());
        self.load.print(format!("deploys, {:?}", self.length));
        let title = format!("{} events", self.events.len());
        let mut table = Table::new(
            title,
            [
                "event",
                "times",
                "failed requests",
                "the last after, s",
                "may, s",
            ],
        );
        for event in Event::ALL {
            let times = self
                .events
                .iter()
                .filter(|(other, _)| *other == event)
                .count();
            let errors: Vec<_> = self
                .errors()
                .filter(|(cause, ..)| *cause == Some(event))
                .map(|(_, after, _)| after)
                .collect();
            let last = errors.iter().max().copied().unwrap_or_default();
            table.row([
                event.title().to_owned(),
                number(times as f64),
                number(errors.len() as f64),
                seconds(last),
                seconds(event.bound()),
            ]);
        }
        table.print();
        let mut table = Table::new(
            "The referee",
            ["promise", "works", "breaches", "stopped late", "unsure"],
        );
        for route in Route::ALL {
            let breaches = self
                .book
                .breaches
                .iter()
                .filter(|breach| breach.route == route)
                .count() as u64;
            let excused = |excuse| {
                self.book
                    .excused
                    .iter()
                    .filter(|of| (of.1, of.2) == (route, excuse))
                    .count() as u64
            };
            let works = self.book.judged[route as usize];
            let counts = [
                works,
                breaches,
                excused(Excuse::Late),
                excused(Excuse::Unsure),
            ];
            let [works, breaches, late, unsure] = counts.map(|count| number(count as f64));
            table.row([route.title().to_owned(), works, breaches, late, unsure]);
        }
        table.print();
        let mut table = Table::new("Flat", ["quantity", "first third", "last third", "may be"]);
        for (name, values) in thirds(&self.samples, self.length) {
            let [first, last, most] = values.map(number);
            table.row([name.to_owned(), first, last, most]);
        }
        table.print();
        note(format!(
            "Medians of {} samples; the first tenth of the time is left out.",
            self.samples.len()
        ));
    }

    /// Each bound that does not hold.
    pub fn problems(&self) -> Vec<String> {
        let late = self
            .errors()
            .filter(|(cause, after, _)| cause.is_none_or(|event| *after > event.bound()));
        let late = late.map(|(cause, after, error)| format!("{error}, {}", since(cause, after)));
        let lasting = self
            .lasting
            .iter()
            .map(|key| format!("a key without a ttl is left: {key}"));
        let mut problems: Vec<_> = late
            .take(TOLD)
            .chain(lasting.take(TOLD))
            .chain(self.load.silent())
            .collect();
        for route in Route::ALL {
            if self.book.judged[route as usize] == 0 {
                problems.push(format!("{}: no work was judged", route.title()));
            }
            let of_route = self
                .book
                .breaches
                .iter()
                .filter(|breach| breach.route == route);
            problems.extend(of_route.take(TOLD).map(|breach| self.tell(breach)));
        }
        // The first lease that an event costs ends a ttl after it.
        let follows = |event: Event, after| after <= event.bound() + TTL;
        for (at, route, _) in &self.book.excused {
            let (cause, after) = self.event_before(self.time(*at));
            if !cause.is_some_and(|event| follows(event, after)) {
                problems.push(format!(
                    "{}: excused without an event, {}",
                    route.title(),
                    since(cause, after)
                ));
            }
        }
        for (name, [first, last, most]) in thirds(&self.samples, self.length) {
            // Nor if one is not known.
            if last.is_nan() || most.is_nan() || last > most {
                problems.push(format!("{name} grew from {first} to {last}"));
            }
        }
        problems
    }

    /// Each failed request: the event before it, how long after that, and why.
    fn errors(&self) -> impl Iterator<Item = (Option<Event>, Duration, &str)> {
        self.load.errors.iter().map(|(at, error)| {
            let (cause, after) = self.event_before(*at);
            (cause, after, error.as_str())
        })
    }

    fn event_before(&self, at: Instant) -> (Option<Event>, Duration) {
        match self.events.iter().rfind(|(_, begin)| *begin <= at) {
            Some((event, begin)) => (Some(*event), at - *begin),
            None => (None, at - self.began),
        }
    }

    fn time(&self, at: u64) -> Instant {
        self.referee_began + Duration::from_micros(at)
    }

    fn tell(&self, Breach { at, route, what }: &Breach) -> String {
        let (cause, after) = self.event_before(self.time(*at));
        format!("{}: {what}, {}", route.title(), since(cause, after))
    }
}

fn since(cause: Option<Event>, after: Duration) -> String {
    let cause = cause.map_or("the start", Event::title);
    format!("{:.3} s after: {cause}", after.as_secs_f64())
}
