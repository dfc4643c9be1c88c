//! Mutants that differ from a script in one operator, number or statement.

/// The text in a script, and its replacement in a mutant.
const SWAPS: [(&str, &str); 19] = [
    (" <= ", " < "),
    (" < ", " <= "),
    (" >= ", " > "),
    (" > ", " >= "),
    (" == ", " ~= "),
    (" ~= ", " == "),
    (" and ", " or "),
    (" or ", " and "),
    ("not ", ""),
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " + "),
    ("min(", "max("),
    ("max(", "min("),
    ("floor(", "ceil("),
    ("ceil(", "floor("),
    ("true", "false"),
    ("false", "true"),
    ("KEYS[1]", "KEYS[2]"),
];

/// Mutants that behave like the script: the piece, a part of the changed text, and the reason.
pub(super) const SAME: [(&str, &str, &str); 7] = [
    (
        "permits",
        "lasts <= 0.75",
        "a ttl is renewed a millisecond earlier",
    ),
    (
        "mutex",
        "left - 2 >=",
        "a ttl in a user's value differs by a millisecond",
    ),
    ("cancel", "elseif at > 0 or", "no time is 0"),
    ("cancel", "at >= 1 and (s.now", "no time is 0"),
    ("cancel", "elseif at >= 1 or", "no time is 0"),
    ("cancel", "whole > 0 and", "a charge leaves no count of 0"),
    (
        "cancel",
        "s.ours or 1",
        "what was reset since has an earlier TAT too",
    ),
];

/// Returns whether a mutant behaves like the script.
pub(super) fn is_same(piece: &str, change: &str) -> bool {
    SAME.iter()
        .any(|(name, part, _)| *name == piece && change.contains(part))
}

/// Returns whether a place of a line is code: not in a comment, and not in a text.
fn is_code(line: &str, at: usize) -> bool {
    let before = &line[..at];
    !before.contains("--") && before.matches('\'').count().is_multiple_of(2)
}

/// Returns whether a line is one statement that can go without another one: no declaration, and no part of a block.
fn is_statement(line: &str) -> bool {
    let line = line.trim_start();
    let begins = |word| {
        line.strip_prefix(word)
            .is_some_and(|rest: &str| rest.starts_with([' ', '\0']))
    };
    let is_block = [
        "local", "function", "while", "for", "else", "elseif", "until", "end",
    ]
    .into_iter()
    .any(begins);
    let is_conditional = line.starts_with("if ");
    let first = line.split([' ', '(']).next().unwrap_or_default();
    !is_block
        && (is_conditional && line.ends_with(" end")
            || line.starts_with("return ")
            || !is_conditional
                && (line.contains(" = ") || first.ends_with("call") || line.contains("(")))
        && !line.starts_with("--")
}

/// Returns the mutants of a text, and the change of each.
pub(super) fn mutants(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let mut add = |from: usize, to: usize, instead: &str| {
            let mutant = format!("{}{instead}{}", &text[..begin + from], &text[begin + to..]);
            let shown = format!("{}{instead}{}", &line[..from], &line[to..]);
            found.push((
                mutant,
                format!("{}: {} => {}", number + 1, line.trim(), shown.trim()),
            ));
        };
        for (there, instead) in SWAPS {
            for (at, _) in line
                .match_indices(there)
                .filter(|(at, _)| is_code(line, *at))
            {
                add(at, at + there.len(), instead);
            }
        }
        let ends = |from: usize| {
            line[from..]
                .find(|c: char| !c.is_ascii_digit())
                .map_or(line.len(), |n| from + n)
        };
        let is_word = |c: char| c.is_alphanumeric() || "_.%".contains(c);
        for (at, _) in line.match_indices(|c: char| c.is_ascii_digit()) {
            let is_number =
                !line[..at].ends_with(is_word) && !line[ends(at)..].starts_with(is_word);
            if let Some(Ok(number)) =
                (is_number && is_code(line, at)).then(|| line[at..ends(at)].parse::<u64>())
            {
                add(at, ends(at), &(number + 1).to_string());
            }
        }
        if is_statement(line.trim_end()) {
            add(0, line.trim_end().len(), "do end");
        }
        begin += line.len();
    }
    found
}
