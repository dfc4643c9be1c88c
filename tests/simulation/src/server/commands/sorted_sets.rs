//! Sorted sets.

use super::super::database::{Database, Outcome, SYNTAX};
use super::super::reply::{Bytes, Reply, number};
use super::super::sorted_set::{Bound, SortedSet};
use super::{float, integer, option, part, score as score_of};

fn bound(text: &[u8]) -> Result<Bound, String> {
    let (is_open, text) = text.strip_prefix(b"(").map_or((false, text), |text| (true, text));
    // Here no text is a number.
    let score = if text.is_empty() { Some(0.0) } else { float(text) };
    let score = score.ok_or("ERR min or max is not a float")?;
    Ok(Bound { score, is_open })
}

fn told(score: Option<f64>) -> Reply {
    score.map_or(Reply::Nil, |score| Reply::bulk(number(score)))
}

#[derive(Default)]
struct Adding {
    only_new: bool,
    only_old: bool,
    greater: bool,
    less: bool,
    counts_changes: bool,
}

pub fn add(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let mut adding = Adding::default();
    let mut at = 2;
    while let Some(word) = arguments.get(at) {
        match option(word).as_str() {
            "NX" => adding.only_new = true,
            "XX" => adding.only_old = true,
            "GT" => adding.greater = true,
            "LT" => adding.less = true,
            "CH" => adding.counts_changes = true,
            _ => break,
        }
        at += 1;
    }
    let pairs = &arguments[at..];
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return Err(SYNTAX.into());
    }
    if adding.only_new && adding.only_old {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    let compared = u8::from(adding.only_new) + u8::from(adding.greater) + u8::from(adding.less);
    if compared > 1 {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
    }
    let scores: Vec<_> = pairs.chunks(2).map(|pair| score_of(&pair[0])).collect::<Result<_, _>>()?;
    if database.sorted_set(&arguments[1])?.is_none() && adding.only_old {
        return Ok(Reply::Int(0));
    }
    let set = database.sorted_set_or_new(&arguments[1])?;
    let (mut added, mut changed) = (0, 0);
    for (pair, score) in pairs.chunks(2).zip(scores) {
        match set.score(&pair[1]) {
            None if !adding.only_old => added += 1,
            Some(before) => {
                let fits = !adding.only_new
                    && (!adding.greater || score > before)
                    && (!adding.less || score < before);
                if !fits || score == before {
                    continue;
                }
                changed += 1;
            }
            None => continue,
        }
        set.insert(&pair[1], score);
    }
    database.drop_empty(&arguments[1]);
    Ok(Reply::Int(if adding.counts_changes { added + changed } else { added }))
}

pub fn increase(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let by = score_of(&arguments[2])?;
    let set = database.sorted_set_or_new(&arguments[1])?;
    let sum = set.score(&arguments[3]).map_or(by, |score| score + by);
    if sum.is_nan() {
        return Err("ERR resulting score is not a number (NaN)".into());
    }
    set.insert(&arguments[3], sum);
    Ok(told(Some(sum)))
}

pub fn remove(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let Some(set) = database.sorted_set(&arguments[1])? else { return Ok(Reply::Int(0)) };
    let removed = arguments[2..].iter().filter(|member| set.remove(member)).count();
    database.drop_empty(&arguments[1]);
    Ok(Reply::count(removed))
}

pub fn score(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let set = database.sorted_set(&arguments[1])?;
    Ok(told(set.and_then(|set| set.score(&arguments[2]))))
}

pub fn scores(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let set = database.sorted_set(&arguments[1])?;
    let score = |member: &Bytes| told(set.as_ref().and_then(|set| set.score(member)));
    Ok(Reply::Array(arguments[2..].iter().map(score).collect()))
}

pub fn card(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    Ok(Reply::count(database.sorted_set(&arguments[1])?.map_or(0, |set| set.len())))
}

pub fn rank(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let set = database.sorted_set(&arguments[1])?;
    Ok(set.and_then(|set| set.rank(&arguments[2])).map_or(Reply::Nil, Reply::count))
}

pub fn count(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (bound(&arguments[2])?, bound(&arguments[3])?);
    let set = database.sorted_set(&arguments[1])?;
    Ok(Reply::count(set.map_or(0, |set| set.between(from, to).count())))
}

pub fn remove_by_score(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (bound(&arguments[2])?, bound(&arguments[3])?);
    let Some(set) = database.sorted_set(&arguments[1])? else { return Ok(Reply::Int(0)) };
    let members: Vec<_> = set.between(from, to).map(|(member, _)| member.clone()).collect();
    for member in &members {
        set.remove(member);
    }
    database.drop_empty(&arguments[1]);
    Ok(Reply::count(members.len()))
}

#[derive(Default)]
struct Listing {
    by_score: bool,
    reversed: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

fn listing(arguments: &[Bytes], by_score: bool) -> Result<Listing, String> {
    let mut listing = Listing { by_score, ..Listing::default() };
    let (mut rest, is_plain) = (arguments.iter(), by_score);
    while let Some(word) = rest.next() {
        match option(word).as_str() {
            "BYSCORE" if !is_plain && !listing.by_score => listing.by_score = true,
            "REV" if !is_plain && !listing.reversed => listing.reversed = true,
            "WITHSCORES" => listing.with_scores = true,
            "LIMIT" => match (rest.next(), rest.next()) {
                (Some(skip), Some(count)) => listing.limit = Some((integer(skip)?, integer(count)?)),
                _ => return Err(SYNTAX.into()),
            },
            _ => return Err(SYNTAX.into()),
        }
    }
    if listing.limit.is_some_and(|(_, count)| count != -1) && !listing.by_score {
        return Err(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX".into()
        );
    }
    Ok(listing)
}

pub fn range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let listing = listing(&arguments[4..], false)?;
    listed(database, arguments, &listing)
}

pub fn range_by_score(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let listing = listing(&arguments[4..], true)?;
    listed(database, arguments, &listing)
}

fn listed(database: &mut Database, arguments: &[Bytes], listing: &Listing) -> Outcome {
    let (first, last) = (&arguments[2], &arguments[3]);
    let bounds = match (listing.by_score, listing.reversed) {
        (false, _) => None,
        (true, false) => Some((bound(first)?, bound(last)?)),
        (true, true) => {
            let (to, from) = (bound(first)?, bound(last)?);
            Some((from, to))
        }
    };
    let positions = if bounds.is_none() { (integer(first)?, integer(last)?) } else { (0, -1) };
    let empty = SortedSet::default();
    let set = database.sorted_set(&arguments[1])?.map_or(&empty, |set| set);
    let found: Vec<_> = match bounds {
        Some((from, to)) => {
            let (skip, most) = listing.limit.unwrap_or((0, -1));
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            // A negative position skips all.
            let skip = usize::try_from(skip).unwrap_or(usize::MAX);
            match listing.reversed {
                false => set.between(from, to).skip(skip).take(most).collect(),
                true => set.between(from, to).rev().skip(skip).take(most).collect(),
            }
        }
        None => {
            let part = part(set.len(), positions.0, positions.1);
            match listing.reversed {
                false => set.iter().skip(part.start).take(part.len()).collect(),
                true => set.iter().rev().skip(part.start).take(part.len()).collect(),
            }
        }
    };
    let told = |(member, score): (&Bytes, f64)| {
        let score = listing.with_scores.then(|| Reply::bulk(number(score)));
        std::iter::once(Reply::Bulk(member.clone())).chain(score)
    };
    Ok(Reply::Array(found.into_iter().flat_map(told).collect()))
}
