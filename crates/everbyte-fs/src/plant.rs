//! The mistakes that tests plant in the file system with `everbyte_plant`, to see the crash explorer
//! catch them.

/// A mistake in how files are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A name is there before its inode is certain to be.
    NameBeforeInode,
    /// A renaming gives the new name in one batch, and takes the old one away in another.
    RenameInTwo,
    /// The slot of an inode is filled again before it is durable that the inode was freed.
    InodeReusedEarly,
    /// The place of an entry is filled again before it is durable that the entry was removed.
    EntryReusedEarly,
    /// All inodes of a block need no record once one of them was made.
    InodesFreshByBlock,
    /// A number of links changes without a record.
    LinksUnlogged,
    /// A file's size changes before its bytes do.
    SizeBeforeData,
    /// A write is made durable at once where a crash may make the file smaller than that.
    DurableBeyondSize,
    /// A sync of a file makes nothing durable.
    FileSyncSkipped,
    /// A file without a name that somebody has open is not listed.
    OrphanNotListed,
    /// A file has the generation of one that had its number before.
    GenerationReused,
    /// The halves of a bucket that is cut in two are named without a record.
    SplitUnlogged,
    /// The number of inode tables changes without a record.
    TableUnlogged,
    /// Inodes of a new table are free for others before the table counts as one.
    TableCountedLate,
    /// The word that makes new nodes of an index reachable changes without a record, unlike what goes with
    /// it.
    IndexSplitUnlogged,
    /// A region of a window is named without a record, before what it holds is certain to be there.
    RegionNamedEarly,
    /// Bytes that are cut off a file's last block stay there.
    TailKept,
    /// The extended attributes are written over in place.
    AttributesInPlace,
    /// An access control list is set in another batch than the mode that goes with it.
    AclBesideMode,
    /// The locks of inodes are taken in the order in which an operation names the inodes.
    LocksInOrderOfCall,
    /// The tables of inodes are locked as a renaming comes to them.
    TablesHeldAsTheyCome,
    /// A renaming does not look again, under its locks, which file has the old name.
    RenameOfOldName,
    /// A renaming leaves a whiteout in another batch.
    WhiteoutInTwo,
    /// A file that is made without a name is not listed.
    UnnamedNotListed,
    /// A file that was made without a name is still listed when it has one.
    NamedStillListed,
    /// The file that a name was found to lead to is noted when the directory's lock is given back already.
    DentryNotedLate,
    /// That a name is absent is still noted when it is made.
    AbsentNameKept,
    /// A name still counts as leading to a file when it is removed, or another file's.
    DentryKept,
    /// That names are absent is still noted when their directory is removed.
    AbsentNamesOfDirectoryKept,
    /// Who reads an open file without the lock of its inode does not look again whether anybody had it.
    OpenFileLooksOnce,
    /// All changes have the same time: no mistake, but what a coarse clock does.
    ClockStands,
    /// A file loses its blocks although somebody has it open.
    OpenFileFreed,
}
