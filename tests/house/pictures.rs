//! The computed pictures in `docs/` show what the crate does now.

#[path = "../../examples/pictures/false_positives.rs"]
mod false_positives;
#[path = "../../examples/pictures/token_level.rs"]
mod token_level;

#[test]
fn the_computed_pictures_are_up_to_date() {
    let (tokens, filter) = (
        include_str!("../../docs/token-level.svg"),
        include_str!("../../docs/false-positives.svg"),
    );
    compare("token-level", tokens, &token_level::draw().unwrap());
    compare("false-positives", filter, &false_positives::draw().unwrap());
}

fn compare(name: &str, file: &str, drawn: &str) {
    let (file_lines, drawn_lines) = (file.lines().count(), drawn.lines().count());
    let different = file
        .lines()
        .zip(drawn.lines())
        .position(|(one, other)| one != other);
    let line = different.unwrap_or(file_lines.min(drawn_lines)) + 1;
    assert!(
        file == drawn,
        "docs/{name}.svg is out of date from line {line} on.\n  in the file: {:?}\n  drawn now:   {:?}\n\
         Run `cargo run --features operator --example pictures -- {name}`, look at the picture, and commit it.",
        file.lines().nth(line - 1),
        drawn.lines().nth(line - 1),
    );
}
