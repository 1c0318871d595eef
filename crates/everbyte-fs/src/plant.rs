//! Planted bugs of the file system, for tests of the crash explorer (`everbyte_plant`).

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A name is stored before its inode.
    NameBeforeInode,
    /// The place of a removed entry is filled before the removal is durable.
    EntryReusedEarly,
    /// A link count changes without a record.
    LinksUnlogged,
    /// A sync of a file is skipped.
    FileSyncSkipped,
    /// An open file without a name is not an orphan.
    OrphanNotListed,
    /// An access control list and its mode change in two batches.
    AclBesideMode,
    /// Inode locks are taken in the order of the operation's arguments.
    LocksInOrderOfCall,
    /// The dentry cache gets an entry after the release of the directory's lock.
    DentryNotedLate,
    /// All changes have the same time. This is not a bug: a coarse clock does the same.
    ClockStands,
}
