//! The structures of a file system on the medium.

mod bucket;
pub(crate) mod file_flags;
mod heap;
mod index_run;
mod inode;
pub(crate) mod number;
pub(crate) mod reader;
mod superblock;
mod table;
mod time;

#[cfg(test)]
pub(crate) use bucket::entry_units;
pub(crate) use bucket::{
    Bucket, BucketHead, BucketHeader, HASH_BITS, LINE_SLOTS, RawEntry, SLOTS, Slot, SlotFilter,
    first_line,
};
#[cfg(feature = "testkit")]
pub(crate) use bucket::{is_bucket, reseal_bucket};
pub(crate) use heap::{FreeUnits, HEAP_UNITS, Place, UNIT};
pub(crate) use index_run::{IndexRunTrailer, PREVIOUS_RUN_AT};
pub(crate) use inode::{
    Difference, FILE_BYTES_MAX, FIRST_ENTRIES, Field, INLINE_TARGET_MAX, INODE_AREA_AT,
    INODE_BYTES, InodeImage, InodeWords,
};
pub use superblock::FS;
pub(crate) use superblock::{FsSuperblock, INDEX_WORDS, INDEX_WORDS_AT, TABLES_AT};
pub(crate) use table::{Bit, TABLES_MAX, TableGeometry};
pub use time::TIME_RANGE_NS;
pub(crate) use time::{decode_time, encode_time};
