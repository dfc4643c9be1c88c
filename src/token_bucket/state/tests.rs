use super::*;
use crate::Quota;

const NOW: i64 = 1_760_000_000_000_000;

/// A quota whose tokens come back after whole µs, others after fractions, and one whose burst comes back after a fraction.
fn paces() -> [Pace; 4] {
    let quotas = [
        Quota::per_second(10).burst(5),
        Quota::per_second(7).burst(3),
        Quota::per_second(7).burst(14),
        Quota::per_second(4_000_000).burst(1),
    ];
    quotas.map(|quota| Quotas::new([quota]).unwrap().limits()[0].pace)
}

/// The time that is one part of a µs later.
fn just_after(pace: &Pace, time: Moment) -> Moment {
    let parts = time.part + 1;
    Moment { whole: time.whole + parts / pace.den, part: parts % pace.den }
}

#[test]
fn a_level_owes_what_is_more_than_its_burst() {
    for pace in paces() {
        let level = Level::full(pace.tokens);
        let empty = Moment::at(NOW).advance(&pace, pace.burst);
        assert!(!level.owes(Moment::at(NOW), NOW, 0) && !level.owes(empty, NOW, 0), "{pace:?}");
        assert!(level.owes(just_after(&pace, empty), NOW, 0) && level.owes(empty, NOW - 1, 0), "{pace:?}");
    }
    let never = Quotas::new([Quota::non_refilling(5)]).unwrap().limits()[0].tokens;
    assert!(!Level::full(never).owes(Moment::used(500), NOW, 0));
}

#[test]
fn times_move_by_exactly_the_time_of_their_tokens() {
    for pace in paces() {
        let mut time = Moment::at(NOW);
        for tokens in 0..50 {
            let parts = i128::from(time.whole - NOW) * i128::from(pace.den) + i128::from(time.part);
            assert_eq!(parts, i128::from(tokens * pace.num), "{pace:?}");
            assert_eq!(Moment::at(NOW).advance(&pace, tokens), time);
            assert_eq!(time.minus(&pace, Moment::at(NOW)), Moment::default().advance(&pace, tokens));
            assert_eq!(Moment::at(NOW).minus(&pace, Moment::at(NOW)).advance(&pace, tokens).ceil(), {
                (time.whole - NOW) + i64::from(time.part != 0)
            });
            time = time.advance(&pace, 1);
        }
    }
}

/// Tokens count from the moment at which they are back.
#[test]
fn tokens_are_back_when_their_time_has_passed() {
    for pace in paces() {
        let mut level = Level::full(pace.tokens);
        level.charge(&pace, NOW, NOW, pace.burst + 2);
        for tokens in -2..=pace.burst {
            let back = Moment::at(NOW).advance(&pace, tokens + 2).ceil();
            assert_eq!(level.tokens(&pace, back).max(tokens), level.tokens(&pace, back));
            assert!(level.tokens(&pace, back - 1) < tokens, "{pace:?}: {tokens}");
        }
        assert_eq!(level.tokens(&pace, NOW), -2);
        assert_eq!(level.tokens(&pace, NOW + 1_000_000_000_000), pace.burst);
        assert_eq!(level.act(&pace, 0), Moment::at(NOW).advance(&pace, 2).ceil());
    }
}

/// A charge remembers the reservations that have not acted yet, for the case that it is taken back.
#[test]
fn a_charge_remembers_reservations_until_they_act() {
    for pace in paces() {
        let mut reserved = Level::full(pace.tokens);
        // A reservation that acts at this time, after a cancellation.
        reserved.last = Moment::at(NOW + pace.span);
        for (now, is_pending) in [(NOW - 1, true), (NOW, false), (NOW + 1, false)] {
            let mut level = reserved;
            level.charge(&pace, now, now, 1);
            let charged = Moment::at(now).advance(&pace, 1);
            let before = if is_pending { reserved.last } else { Moment::default() };
            assert_eq!((level.tat, level.before), (charged, before));
            assert_eq!(level.last, before.max(charged));
        }
    }
}

/// The product of the time and the rate is more than 64 bits can hold.
#[test]
fn a_share_of_very_few_tokens_is_counted() {
    let mut pace = paces()[0];
    (pace.tokens.num, pace.tokens.den) = (1 << 62, 1000);
    for (span, part, tokens) in
        [(1 << 61, 0, 500), (1 << 61, 1, 499), (3 << 61, 0, 1500), (-(1 << 61), 1, -501)]
    {
        assert_eq!(tokens_in(&pace, span, part), tokens, "{span} {part}");
    }
}
