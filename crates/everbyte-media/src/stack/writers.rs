//! Writers of a file or device by owner, mode and access control list.

use std::collections::BTreeMap;
use std::fmt;

use super::system::Node;

/// Permission bits.
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITE: u32 = 0o020;
/// Entries of an access control list (`linux/posix_acl_xattr.h`).
const ACL_HEADER_LEN: usize = 4;
const ACL_ENTRY_LEN: usize = 8;
const ACL_USER: u16 = 0x02;
const ACL_GROUP_OBJ: u16 = 0x04;
const ACL_GROUP: u16 = 0x08;
const ACL_WRITE: u16 = 0x02;

/// The users with write access to the bytes of a pool. Root has it always and is not listed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Writers {
    /// Users, each with the reason.
    users: BTreeMap<u32, String>,
    /// The reason why more users have it, or why it is unknown.
    crowd: Option<String>,
}

/// The writers of a pool in addition to root and a given user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OtherWriters {
    /// No writers.
    Nobody,
    /// One user.
    One(u32),
    /// Several users, or unknown ones.
    Several,
}

impl Writers {
    /// Makes a value from its parts: users with their reasons, and the reason for more users.
    #[must_use]
    pub fn new(users: impl IntoIterator<Item = (u32, String)>, crowd: Option<String>) -> Self {
        Self { users: users.into_iter().collect(), crowd }
    }

    /// Unknown writers, for this reason.
    #[must_use]
    pub fn unknown(reason: String) -> Self {
        Self { users: BTreeMap::new(), crowd: Some(reason) }
    }

    /// The users, each with the reason.
    pub fn users(&self) -> impl Iterator<Item = (u32, &str)> {
        self.users.iter().map(|(uid, reason)| (*uid, reason.as_str()))
    }

    /// The reason for more users.
    #[must_use]
    pub fn crowd(&self) -> Option<&str> {
        self.crowd.as_deref()
    }

    /// The writers in addition to root and user `own`.
    #[must_use]
    pub fn others_than(&self, own: u32) -> OtherWriters {
        let mut others = self.users.keys().filter(|uid| **uid != own && **uid != 0);
        match (&self.crowd, others.next(), others.next()) {
            (None, None, _) => OtherWriters::Nobody,
            (None, Some(uid), None) => OtherWriters::One(*uid),
            _ => OtherWriters::Several,
        }
    }

    /// The first reason for a writer in addition to root and user `own`, in words.
    #[must_use]
    pub fn reason(&self, own: u32) -> Option<&str> {
        let mut others = self.users.iter().filter(|(uid, _)| **uid != own && **uid != 0);
        self.crowd().or_else(|| others.next().map(|(_, reason)| reason.as_str()))
    }

    pub(super) fn add_crowd(&mut self, reason: String) {
        self.crowd.get_or_insert(reason);
    }

    fn add_user(&mut self, uid: u32, reason: impl fmt::Display) {
        if uid != 0 {
            self.users.entry(uid).or_insert_with(|| format!("user {uid} {reason}"));
        }
    }

    /// Adds the writers of a file or device node.
    pub(super) fn add(&mut self, name: &str, node: &Node) {
        self.add_user(node.uid, format_args!("owns {name}"));
        if let Some(uid) = node.served_by {
            self.add_user(uid, format_args!("serves the file system of {name}"));
        }
        if node.mode & OTHERS_WRITE != 0 {
            self.add_crowd(format!("every user can write {name}"));
        }
        if node.mode & GROUP_WRITE == 0 {
            // Neither the group nor an entry of an access control list can write.
            return;
        }
        match &node.acl {
            Some(acl) => self.add_acl(name, node, acl),
            None => self.add_group(name, node, node.gid),
        }
    }

    fn add_group(&mut self, name: &str, node: &Node, gid: u32) {
        // The group of disks has the disks of the system as well.
        let is_trusted = !node.is_file && (gid == 0 || Some(gid) == node.disk_group);
        if !is_trusted {
            self.add_crowd(format!("group {gid} can write {name}"));
        }
    }

    fn add_acl(&mut self, name: &str, node: &Node, acl: &[u8]) {
        let entries = acl.get(ACL_HEADER_LEN..).unwrap_or_default().chunks_exact(ACL_ENTRY_LEN);
        let entries = entries.map(|entry| {
            let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            (half(0), half(2), id)
        });
        for (tag, permissions, id) in entries {
            if permissions & ACL_WRITE == 0 {
                continue;
            }
            match tag {
                ACL_USER => self.add_user(id, format_args!("can write {name} by its ACL")),
                ACL_GROUP_OBJ => self.add_group(name, node, node.gid),
                ACL_GROUP => self.add_group(name, node, id),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACL_MASK: u16 = 0x10;

    fn node(uid: u32, mode: u32, is_file: bool) -> Node {
        Node { uid, gid: 6, mode, is_file, acl: None, served_by: None, disk_group: Some(6) }
    }

    fn writers(node: &Node) -> Writers {
        let mut writers = Writers::default();
        writers.add("x", node);
        writers
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn owners_groups_and_others_are_writers() {
        use OtherWriters::{Nobody, One, Several};
        for (node, expected) in [
            (node(0, 0o100_644, true), Nobody),
            (node(0, 0o100_664, true), Several),
            (node(0, 0o100_602, true), Several),
            (node(7, 0o100_400, true), One(7)),
            (node(0, 0o060_660, false), Nobody),
            (node(0, 0o060_666, false), Several),
            (node(7, 0o060_600, false), One(7)),
            (Node { gid: 100, ..node(0, 0o060_660, false) }, Several),
            (Node { served_by: Some(7), ..node(0, 0o100_600, true) }, One(7)),
            (Node { served_by: Some(0), ..node(0, 0o100_600, true) }, Nobody),
        ] {
            assert_eq!(writers(&node).others_than(0), expected, "{node:?}");
        }
        assert_eq!(writers(&node(7, 0o100_600, true)).others_than(7), Nobody);
        assert_eq!(Writers::unknown("?".to_owned()).others_than(7), Several);
    }

    #[test]
    fn access_control_lists_name_writers() {
        use OtherWriters::{Nobody, One, Several};
        let own = (0x01, 6, u32::MAX);
        let mask = (ACL_MASK, 6, u32::MAX);
        for (entries, expected) in [
            (vec![own, (ACL_USER, 6, 7), (ACL_GROUP_OBJ, 4, u32::MAX), mask], One(7)),
            (vec![own, (ACL_USER, 4, 7), (ACL_GROUP_OBJ, 4, u32::MAX), mask], Nobody),
            (vec![own, (ACL_GROUP, 6, 50), (ACL_GROUP_OBJ, 4, u32::MAX), mask], Several),
            (vec![own, (ACL_GROUP_OBJ, 6, u32::MAX), mask], Several),
            (vec![own, (ACL_USER, 6, 7), (ACL_USER, 6, 8), mask], Several),
        ] {
            let mut node = node(0, 0o100_660, true);
            node.acl = Some(acl(&entries));
            assert_eq!(writers(&node).others_than(0), expected, "{entries:?}");
            // The mask forbids all of it.
            node.mode = 0o100_640;
            assert_eq!(writers(&node).others_than(0), Nobody, "{entries:?}");
        }
        let mut node = node(0, 0o100_660, true);
        node.acl = Some(vec![2, 0, 0]);
        assert_eq!(writers(&node).others_than(0), Nobody, "it has no entry");
    }
}
