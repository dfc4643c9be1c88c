//! Parts that all stores share: each task that waits for them is woken.
//!
//! Not covered: the recipients of the notifier, a call that no task awaits, and the scheduler are each behind one lock.

use std::sync::Arc;

use crate::clock;
use crate::store::notifier::{Link, Notifier};
use crate::store::owed::Owed;
use crate::sync::{block_on, check, spawn};

/// A task that waits until no operation is owed is woken by the last one.
pub(crate) fn the_end_of_what_is_owed_is_told() {
    check(|| {
        let owed = Arc::new(Owed::default());
        owed.add(2);
        let done = || {
            let owed = owed.clone();
            spawn(move || owed.done(1))
        };
        let (one, other) = (done(), done());
        block_on(owed.none());
        assert_eq!(owed.count(), 0);
        one.join().unwrap();
        other.join().unwrap();
    });
}

/// A thread that sees that pushes arrive again also sees that they were missed before.
pub(crate) fn pushes_that_were_missed_are_known_when_they_arrive_again() {
    check(|| {
        let (notifier, before) = (Arc::new(Notifier::new(Link::Down)), clock::now());
        let mut link = notifier.link();
        let relinks = {
            let notifier = notifier.clone();
            spawn(move || notifier.relink())
        };
        block_on(link.changed()).unwrap();
        assert!(notifier.may_have_missed(before));
        relinks.join().unwrap();
    });
}
