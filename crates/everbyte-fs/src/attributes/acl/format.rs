//! Access control lists of the withdrawn POSIX.1e draft 17: their encoding as extended attributes, and their
//! agreement with a mode.
//!
//! The module knows bytes and permissions only. An [`Acl`] has the required entries in order, so it always
//! has a mode.

use crate::error::FsError;

/// Name of the attribute with the access list of a file.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// Name of the attribute with the default list of a directory: the initial access list of new files in it.
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the encoding, the first four bytes of an attribute.
const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The identifier in an entry without a user or group.
const NOBODY: u32 = u32::MAX;
const PERMISSIONS: u32 = 0o7;

/// The kind of an entry. Entries are ordered by its codes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    const ALL: [Self; 6] =
        [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Others];

    fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|tag| *tag as u16 == code)
    }

    /// Returns true for an entry that names a user or a group.
    fn has_id(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }

    /// The shift of its permissions in an equal mode. A mask takes the place of the owning group.
    fn shift(self) -> u32 {
        match self {
            Self::Owner | Self::User => 6,
            Self::OwningGroup | Self::Group | Self::Mask => 3,
            Self::Others => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AclEntry {
    tag: Tag,
    permissions: u32,
    id: u32,
}

/// A valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Decodes the value of an attribute; `None` if it has no entries, because it then stands for no list.
    ///
    /// # Errors
    /// `InvalidAcl`; `Unsupported` for another version.
    pub(crate) fn parse(value: &[u8]) -> Result<Option<Self>, FsError> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, entries) = value.split_first_chunk().ok_or(FsError::InvalidAcl)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(FsError::Unsupported);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(FsError::InvalidAcl);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let entries = entries.iter().map(AclEntry::decode).collect::<Option<Vec<_>>>();
        let acl = Self(entries.ok_or(FsError::InvalidAcl)?);
        if acl.is_valid() { Ok(Some(acl)) } else { Err(FsError::InvalidAcl) }
    }

    /// Its encoding as an attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEAD_BYTES + self.0.len() * ENTRY_BYTES);
        value.extend(VERSION.to_le_bytes());
        for entry in &self.0 {
            value.extend((entry.tag as u16).to_le_bytes());
            value.extend(u16::try_from(entry.permissions).expect("three bits").to_le_bytes());
            value.extend(entry.id.to_le_bytes());
        }
        value
    }

    /// Checks the order of the entries, the three entries of a mode, and a mask if an entry names a user or a
    /// group.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let names_somebody = self.0.iter().any(|entry| entry.tag.has_id());
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others];
        self.0.is_sorted_by_key(|entry| entry.tag)
            && once.into_iter().all(|tag| count(tag) == 1)
            && (usize::from(names_somebody)..=1).contains(&count(Tag::Mask))
    }

    /// Returns true if a mode expresses the list.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.iter().all(|entry| !entry.tag.has_id() && entry.tag != Tag::Mask)
    }

    /// The tag with the group permissions of a mode.
    fn group_tag(&self) -> Tag {
        let has_mask = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        if has_mask { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The entries with the permissions of a mode.
    fn in_mode(&mut self) -> impl Iterator<Item = &mut AclEntry> {
        let group = self.group_tag();
        self.0.iter_mut().filter(move |e| [Tag::Owner, group, Tag::Others].contains(&e.tag))
    }

    /// The permissions of the mode of the list: the group's are the mask's.
    pub(crate) fn permissions(&self) -> u32 {
        let group = self.group_tag();
        let in_mode = self.0.iter().filter(|e| [Tag::Owner, group, Tag::Others].contains(&e.tag));
        in_mode.map(|entry| entry.permissions << entry.tag.shift()).sum()
    }

    /// Changes the list to a new mode.
    pub(crate) fn set_permissions(&mut self, permissions: u32) {
        for entry in self.in_mode() {
            entry.permissions = permissions >> entry.tag.shift() & PERMISSIONS;
        }
    }

    /// Makes a default list the access list of a new file with `permissions`: both permissions and list
    /// become the intersection.
    pub(crate) fn restrict(&mut self, permissions: u32) {
        for entry in self.in_mode() {
            entry.permissions &= permissions >> entry.tag.shift();
        }
    }
}

impl AclEntry {
    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let tag = Tag::from_code(u16::from_le_bytes([bytes[0], bytes[1]]))?;
        let permissions = u32::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let is_somebody = id != NOBODY;
        let is_valid = permissions <= PERMISSIONS && (is_somebody || !tag.has_id());
        is_valid.then_some(Self { tag, permissions, id: if tag.has_id() { id } else { NOBODY } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value of tags, permissions and identifiers.
    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&value(entries)).unwrap().unwrap()
    }

    const OWNER: (u16, u16, u32) = (1, 7, NOBODY);
    const USER: (u16, u16, u32) = (2, 6, 100);
    const OWNING_GROUP: (u16, u16, u32) = (4, 5, NOBODY);
    const GROUP: (u16, u16, u32) = (8, 4, 200);
    const MASK: (u16, u16, u32) = (16, 3, NOBODY);
    const OTHERS: (u16, u16, u32) = (32, 1, NOBODY);

    #[test]
    fn acl_round_trips_and_has_its_mode() {
        let entries = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS];
        let mut list = acl(&entries);
        assert_eq!(list.encode(), value(&entries));
        assert_eq!((list.permissions(), list.is_mode()), (0o731, false));
        list.set_permissions(0o420);
        assert_eq!(list.permissions(), 0o420);
        assert_eq!(list.0[2].permissions, 5, "the mask stands for the group");
        let mode = acl(&[OWNER, OWNING_GROUP, OTHERS]);
        assert_eq!((mode.permissions(), mode.is_mode()), (0o751, true));
        assert!(!acl(&[OWNER, OWNING_GROUP, MASK, OTHERS]).is_mode());
    }

    #[test]
    fn default_acl_and_mode_intersect() {
        let mut list = acl(&[OWNER, USER, OWNING_GROUP, MASK, OTHERS]);
        list.restrict(0o646);
        assert_eq!(list.permissions(), 0o600);
        assert_eq!(list.0[1].permissions, 6, "the mask restricts the others");
        let mut list = acl(&[OWNER, OWNING_GROUP, OTHERS]);
        list.restrict(0o666);
        assert_eq!((list.permissions(), list.is_mode()), (0o640, true));
    }

    #[test]
    fn invalid_acls_are_refused() {
        for wrong in [
            value(&[OWNER, OWNING_GROUP]),
            value(&[OWNER, OTHERS, OWNING_GROUP]),
            value(&[OWNER, OWNER, OWNING_GROUP, OTHERS]),
            value(&[OWNER, USER, OWNING_GROUP, OTHERS]),
            value(&[OWNER, OWNING_GROUP, MASK, MASK, OTHERS]),
            value(&[OWNER, (2, 7, NOBODY), OWNING_GROUP, MASK, OTHERS]),
            value(&[(1, 8, NOBODY), OWNING_GROUP, OTHERS]),
            value(&[OWNER, OWNING_GROUP, OTHERS, (64, 1, NOBODY)]),
            value(&[OWNER, OWNING_GROUP, OTHERS])[..27].to_vec(),
            vec![2, 0, 0],
        ] {
            assert!(matches!(Acl::parse(&wrong), Err(FsError::InvalidAcl)), "{wrong:?}");
        }
        assert!(matches!(Acl::parse(&3_u32.to_le_bytes()), Err(FsError::Unsupported)));
        assert!(Acl::parse(&[]).unwrap().is_none());
        assert!(Acl::parse(&value(&[])).unwrap().is_none());
    }
}
