//! Runs the tests of all interleavings, or those whose names contain the argument.

use std::time::Instant;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    for (name, test) in interleavings::interleavings::TESTS
        .iter()
        .filter(|(name, _)| name.contains(&filter))
    {
        let began = Instant::now();
        test();
        println!("{name} ... ok, {:?}", began.elapsed());
    }
}
