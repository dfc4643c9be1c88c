// The module's documentation is src/docs/wire_format.md.

#[cfg(test)]
mod tests;
