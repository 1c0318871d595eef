//! Planted bugs of the file system, for tests of the crash explorer (`everbyte_plant`).

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A name is stored before its inode.
    NameBeforeInode,
    /// A renaming adds the new name in one batch, and removes the old one in another.
    RenameInTwo,
    /// The slot of a freed inode is filled before the free is durable.
    InodeReusedEarly,
    /// The place of a removed entry is filled before the removal is durable.
    EntryReusedEarly,
    /// All inodes of a block count as fresh after the allocation of one.
    InodesFreshByBlock,
    /// A link count changes without a record.
    LinksUnlogged,
    /// A file's size changes before its bytes.
    SizeBeforeData,
    /// The fast path makes a write durable although a crash can make the file smaller.
    DurableBeyondSize,
    /// A sync of a file is skipped.
    FileSyncSkipped,
    /// An open file without a name is not an orphan.
    OrphanNotListed,
    /// A new file gets the generation of the previous file with its number.
    GenerationReused,
    /// The halves of a split bucket are named without a record.
    SplitUnlogged,
    /// The number of inode tables changes without a record.
    TableUnlogged,
    /// Inodes of a new table are free before the table is counted.
    TableCountedLate,
    /// The word that publishes new nodes of an index changes without a record; other words have records.
    IndexSplitUnlogged,
    /// A region of a window is named without a record, before its contents are durable.
    RegionNamedEarly,
    /// Bytes beyond a truncation stay in the file's last block.
    TailKept,
    /// The extended attributes are overwritten in place.
    AttributesInPlace,
    /// An access control list and its mode change in two batches.
    AclBesideMode,
    /// Inode locks are taken in the order of the operation's arguments.
    LocksInOrderOfCall,
    /// Locks of inode tables are taken in the order of a renaming's steps.
    TablesHeldAsTheyCome,
    /// A renaming skips the check of the old name under its locks.
    RenameOfOldName,
    /// A renaming creates its whiteout in another batch.
    WhiteoutInTwo,
    /// A file made without a name is not an orphan.
    UnnamedNotListed,
    /// A file made without a name stays an orphan after it gets a name.
    NamedStillListed,
    /// The dentry cache gets an entry after the release of the directory's lock.
    DentryNotedLate,
    /// The dentry cache keeps the absence of a name after its creation.
    AbsentNameKept,
    /// The dentry cache keeps a name after its removal or replacement.
    DentryKept,
    /// The dentry cache keeps absent names of a directory after its removal.
    AbsentNamesOfDirectoryKept,
    /// A lock-free reader of an open file skips the second look at the sequence.
    OpenFileLooksOnce,
    /// All changes have the same time. This is not a bug: a coarse clock does the same.
    ClockStands,
    /// An open file loses its blocks.
    OpenFileFreed,
}
