// The module's documentation is src/docs/protocol.md.

#[cfg(test)]
mod tests;
