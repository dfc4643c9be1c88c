//! Which of the 16384 hash slots of a Redis Cluster a key lives in.

use crc16::{State, XMODEM};

use crate::store::key::hash_tag;

/// The slot of a key, by its hash tag where it has one (Redis Cluster specification, "hash tags").
pub(super) fn slot(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % 16384
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"td:{123456789}:tat"), 0x31c3);
        assert_eq!(slot(b"{}123456789"), slot(b"{}123456789"));
        assert_ne!(slot(b"{}123456789"), slot(b""));
    }
}
