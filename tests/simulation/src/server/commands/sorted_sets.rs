//! Sorted sets.

use super::super::database::{Database, Outcome, SYNTAX};
use super::super::reply::{Bytes, Reply, number};
use super::super::sorted_set::{Bound, SortedSet};
use super::{float, integer, option, part, score as score_of};

fn bound(text: &[u8]) -> Result<Bound, String> {
    let is_open = text.starts_with(b"(");
    let score = match &text[usize::from(is_open)..] {
        // Here no text is a number.
        b"" => Some(0.0),
        text => float(text),
    };
    let score = score.ok_or("ERR min or max is not a float")?;
    Ok(Bound { score, is_open })
}

fn told(score: Option<f64>) -> Reply {
    score.map_or(Reply::Nil, |score| Reply::bulk(number(score)))
}

pub fn add(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let words = arguments[2..].iter().map(|word| option(word));
    let options: Vec<_> = words
        .take_while(|word| matches!(word.as_str(), "NX" | "XX" | "GT" | "LT" | "CH"))
        .collect();
    let [only_new, only_old, greater, less, counts_changes] =
        ["NX", "XX", "GT", "LT", "CH"].map(|word| options.iter().any(|option| option == word));
    let pairs = &arguments[2 + options.len()..];
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return Err(SYNTAX.into());
    }
    if only_new && only_old {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    if u8::from(only_new) + u8::from(greater) + u8::from(less) > 1 {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
    }
    let scores = pairs.chunks(2).map(|pair| score_of(&pair[0]));
    let scores = scores.collect::<Result<Vec<_>, _>>()?;
    if database.sorted_set(&arguments[1])?.is_none() && only_old {
        return Ok(Reply::Int(0));
    }
    let set = database.sorted_set_or_new(&arguments[1])?;
    let (mut added, mut changed) = (0, 0);
    for (pair, score) in pairs.chunks(2).zip(scores) {
        match set.score(&pair[1]) {
            None if !only_old => added += 1,
            Some(before) => {
                let fits = !only_new && (!greater || score > before) && (!less || score < before);
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
    let changed = if counts_changes { changed } else { 0 };
    Ok(Reply::Int(added + changed))
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
    let Some(set) = database.sorted_set(&arguments[1])? else {
        return Ok(Reply::Int(0));
    };
    let members = arguments[2..].iter();
    let removed = members.filter(|member| set.remove(member)).count();
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
    let set = database.sorted_set(&arguments[1])?;
    Ok(Reply::count(set.map_or(0, |set| set.len())))
}

pub fn rank(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let set = database.sorted_set(&arguments[1])?;
    let rank = set.and_then(|set| set.rank(&arguments[2]));
    Ok(rank.map_or(Reply::Nil, Reply::count))
}

pub fn count(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (bound(&arguments[2])?, bound(&arguments[3])?);
    let set = database.sorted_set(&arguments[1])?;
    let count = set.map_or(0, |set| set.between(from, to).count());
    Ok(Reply::count(count))
}

pub fn remove_by_score(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let (from, to) = (bound(&arguments[2])?, bound(&arguments[3])?);
    let Some(set) = database.sorted_set(&arguments[1])? else {
        return Ok(Reply::Int(0));
    };
    let members = set.between(from, to).map(|(member, _)| member.clone());
    let members: Vec<_> = members.collect();
    members.iter().for_each(|member| _ = set.remove(member));
    database.drop_empty(&arguments[1]);
    Ok(Reply::count(members.len()))
}

/// `ZRANGE` and `ZRANGEBYSCORE`.
pub fn range(database: &mut Database, arguments: &[Bytes]) -> Outcome {
    let mut by_score = option(&arguments[0]) == "ZRANGEBYSCORE";
    let (is_plain, mut is_reversed, mut with_scores, mut limit) = (by_score, false, false, None);
    let mut rest = arguments[4..].iter();
    while let Some(word) = rest.next() {
        match option(word).as_str() {
            "BYSCORE" if !by_score => by_score = true,
            "REV" if !is_plain && !is_reversed => is_reversed = true,
            "WITHSCORES" => with_scores = true,
            "LIMIT" => match (rest.next(), rest.next()) {
                (Some(skip), Some(count)) => limit = Some((integer(skip)?, integer(count)?)),
                _ => return Err(SYNTAX.into()),
            },
            _ => return Err(SYNTAX.into()),
        }
    }
    if limit.is_some_and(|(_, count)| count != -1) && !by_score {
        return Err(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"
                .into(),
        );
    }
    let (first, last) = (&arguments[2], &arguments[3]);
    let (first, last) = if by_score && is_reversed {
        (last, first)
    } else {
        (first, last)
    };
    let empty = &mut SortedSet::default();
    let (all, skip, most): (Box<dyn DoubleEndedIterator<Item = _>>, _, _) = match by_score {
        true => {
            let (from, to) = (bound(first)?, bound(last)?);
            // A negative position skips all, and a negative count takes all.
            let [skip, most] = <[i64; 2]>::from(limit.unwrap_or((0, -1)))
                .map(|one| usize::try_from(one).unwrap_or(usize::MAX));
            let set = database.sorted_set(&arguments[1])?.unwrap_or(empty);
            (Box::new(set.between(from, to)), skip, most)
        }
        false => {
            let (from, to) = (integer(first)?, integer(last)?);
            let set = database.sorted_set(&arguments[1])?.unwrap_or(empty);
            let part = part(set.len(), from, to);
            (Box::new(set.iter()), part.start, part.len())
        }
    };
    let told = |(member, score): (&Bytes, f64)| {
        let score = with_scores.then(|| Reply::bulk(number(score)));
        std::iter::once(Reply::Bulk(member.clone())).chain(score)
    };
    Ok(Reply::Array(match is_reversed {
        false => all.skip(skip).take(most).flat_map(told).collect(),
        true => all.rev().skip(skip).take(most).flat_map(told).collect(),
    }))
}
