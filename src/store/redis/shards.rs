//! The channels by which one master of a Cluster wakes waiters.
//!
//! A message by `PUBLISH` goes to all nodes of a Cluster, one by `SPUBLISH` (Redis 7.0) only to the master and the replicas that
//! serve the slot of its channel. A script may publish to each channel whose slot its node serves. So the slots are divided
//! into groups, and each group has a hash tag with a slot in it. A script gets the tag of the group of its keys. A process
//! subscribes, at each master, to its channels of the groups whose tags are there.
//!
//! Where the tag of a group is at another master than a key of the group, or where nobody is subscribed, scripts publish to
//! all nodes: see `grants.publish` in `lua/grants.lua`. So nothing depends on two processes that know the same masters.

use std::sync::LazyLock;

use super::slots::{SLOTS, slot};

/// The number of groups. More would make the subscription longer; with fewer, more keys are in groups that two masters share.
const GROUPS: u16 = 256;

const PER_GROUP: u16 = SLOTS / GROUPS;

/// The tag of each group, and its slot. Each tag is the first number with a slot in the group.
static TAGS: LazyLock<Vec<(String, u16)>> = LazyLock::new(|| {
    let mut tags = vec![None; GROUPS.into()];
    // All are found below 500.
    for number in 0..1000 {
        let tag = number.to_string();
        let slot = slot(tag.as_bytes());
        let group = tags.get_mut(usize::from(slot / PER_GROUP));
        group
            .into_iter()
            .for_each(|group| *group = group.take().or(Some((tag.clone(), slot))));
    }
    tags.into_iter().flatten().collect()
});

/// The prefix of the channels for a slot, given that of all channels. Without a slot, that is the same.
pub(super) fn prefix(channels: &str, slot: Option<u16>) -> Option<String> {
    let group = slot? / PER_GROUP;
    let (tag, _) = TAGS.get(usize::from(group))?;
    Some(tagged(channels, tag))
}

fn tagged(channels: &str, tag: &str) -> String {
    format!("{channels}{{{tag}}}:")
}

/// The prefixes of the channels, or keys, of all groups, and their slots.
pub(super) fn prefixes(channels: &str) -> impl Iterator<Item = (String, u16)> {
    TAGS.iter()
        .map(move |(tag, slot)| (tagged(channels, tag), *slot))
}

#[cfg(test)]
#[cfg(feature = "cluster")]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_a_tag_in_it() {
        assert_eq!(TAGS.len(), usize::from(GROUPS));
        for (group, (prefix, slot)) in prefixes("td:wake:").enumerate() {
            assert_eq!(usize::from(slot / PER_GROUP), group);
            // The names of processes do not change the slot.
            assert_eq!(
                super::slot(format!("{prefix}0123456789abcdef").as_bytes()),
                slot
            );
            for of_group in [group * 64, group * 64 + 63] {
                let of_group = u16::try_from(of_group).unwrap();
                assert_eq!(
                    super::prefix("td:wake:", Some(of_group)).as_ref(),
                    Some(&prefix)
                );
            }
        }
        assert_eq!(prefix("td:wake:", None), None);
    }

    /// Processes of all versions must name the same channels.
    #[test]
    fn tags_do_not_change() {
        let some: Vec<_> = [0, 1, 128, 255]
            .map(|group: usize| TAGS[group].0.clone())
            .into();
        assert_eq!(some, ["460", "14", "16", "430"]);
    }
}
