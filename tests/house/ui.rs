//! What the compiler says to common mistakes: each message names the remedy. After a change of the compiler's own words,
//! `TRYBUILD=overwrite cargo test --all-features --test house ui:: -- --ignored` writes them anew; read the difference.

#[test]
#[ignore = "compiles all dependencies once more, which takes minutes: .ci/long runs it"]
fn mistakes_are_told_with_their_remedy() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
