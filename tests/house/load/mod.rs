//! The example `load`: what it prints, and that it finds broken promises.

mod checks;
mod runs;
