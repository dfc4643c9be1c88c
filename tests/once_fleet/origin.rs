//! Where the work is done that is to be done once: at the referee, a Redis of its own, which writes down what it is told.

use crate::referee::Referee;

/// What was written down about a key.
#[derive(Debug)]
pub(crate) struct Note {
    /// µs.
    pub(crate) at: u64,
    pub(crate) verb: String,
    pub(crate) rest: String,
}

impl Note {
    fn parse(note: &str) -> Self {
        let mut words = note.splitn(3, ' ').map(str::to_owned);
        let mut next = || words.next().unwrap();
        Self { at: next().parse().unwrap(), verb: next(), rest: next() }
    }
}

impl Referee {
    /// A run for a key: what comes of it is never the same.
    pub(crate) async fn run(&self, key: &str, name: &str) -> Vec<u8> {
        let number = self.note(key, "run", name).await;
        [format!("{key} {number} {name} ").as_bytes(), &rand::random::<[u8; 32]>()].concat()
    }

    pub(crate) async fn story(&self, key: &str) -> Vec<Note> {
        self.notes(key).await.iter().map(|note| Note::parse(note)).collect()
    }
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
