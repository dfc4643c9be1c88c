//! The referee is told of breaches, each of which it must find.

use super::book::Book;
use super::visit::Visit;
use crate::gateway::PERMITS;
use crate::routes::Route::{
    self, Completion, Event, Export, Invoice, Limited, Read, Report, Webhook, Write,
};

fn visit(route: Route) -> Visit {
    Visit {
        route,
        key: "/k".to_owned(),
        sent: 0,
        work: 0,
        units: 10,
    }
}

/// Several works of these routes, each for so many µs, each beginning so many µs after the one before.
fn works(routes: &[Route], lasts: u64, apart: u64) -> Book {
    let (mut book, count) = (Book::default(), routes.len() as u64);
    let enter = |number: u64| (number * apart, 0, number);
    let leave = |number: u64| (number * apart + lasts, 1, number);
    let mut steps: Vec<_> = (0..count)
        .flat_map(|number| [enter(number), leave(number)])
        .collect();
    steps.sort_unstable();
    for (at, is_end, number) in steps {
        match is_end {
            0 => book.enter(at, (0, number), number + 1, visit(routes[number as usize])),
            _ => {
                book.leave(at, (0, number), true);
                if matches!(routes[number as usize], Webhook | Event) {
                    book.confirm(at, routes[number as usize], "/k");
                }
            }
        }
    }
    book.finish(u64::from(u32::MAX));
    book
}

/// How many breaches there are if the works overlap, and if they do not.
fn breaches(routes: &[Route]) -> [usize; 2] {
    [works(routes, 1_000_000, 10), works(routes, 5, 10)].map(|book| book.breaches.len())
}

/// Panics if the referee misses a breach, or finds one where there is none.
pub fn prove() {
    for pair in [
        [Invoice, Invoice],
        [Write, Write],
        [Report, Report],
        [Read, Write],
        [Write, Read],
    ] {
        assert_eq!(breaches(&pair), [1, 0], "{pair:?}");
    }
    assert_eq!(breaches(&[Read; 20]), [0, 0]);
    assert_eq!(breaches(&[Export; PERMITS as usize]), [0, 0]);
    assert_eq!(breaches(&[Export; PERMITS as usize + 1]), [1, 0]);
    // Handled at once, and again.
    assert_eq!(breaches(&[Webhook, Webhook]), [1, 1]);
    assert_eq!(breaches(&[Event, Event]), [1, 1]);
    // A burst of 3 tokens, and of 20.
    assert_eq!(breaches(&[Limited; 3]), [0, 0]);
    assert_eq!(breaches(&[Limited; 5]), [1, 1]);
    assert_eq!(breaches(&[Completion; 2]), [0, 0]);
    assert_eq!(breaches(&[Completion; 4]), [1, 1]);

    let mut book = Book::default();
    for (at, fence) in [(0, 7), (2, 7)] {
        book.enter(at, (0, at), fence, visit(Invoice));
        book.leave(at + 1, (0, at), true);
    }
    assert_eq!(book.breaches.len(), 1, "a fence that does not rise");

    // A holder that was stopped in time, and one that was not.
    for (left, found) in [(1000, 0), (1_000_000, 1)] {
        let mut book = Book::default();
        book.enter(0, (0, 0), 1, visit(Invoice));
        book.enter(10, (1, 0), 2, visit(Invoice));
        book.leave(left, (0, 0), false);
        book.finish(left);
        assert_eq!(book.breaches.len(), found, "{left}");
    }
    // One of three was stopped in time.
    let mut book = Book::default();
    (0..3).for_each(|number| book.enter(10 * number, (number, 0), number + 1, visit(Invoice)));
    book.leave(1000, (0, 0), false);
    book.finish(1_000_000);
    assert_eq!(book.breaches.len(), 1);
    // One has its permit rightly, and ends before the one that has lost its own is stopped, or never is.
    for (stopped, found) in [(true, 0), (false, 1)] {
        let mut book = Book::default();
        (0..=PERMITS.into()).for_each(|number| book.enter(number, (number, 0), 0, visit(Export)));
        book.leave(1000, (1, 0), true);
        book.leave(2000, (0, 0), !stopped);
        book.finish(2000);
        assert_eq!(book.breaches.len(), found, "{stopped}");
    }
    // An item that nobody has handled.
    let mut book = Book::default();
    book.confirm(0, Webhook, "/k");
    assert_eq!(book.breaches.len(), 1);
}
