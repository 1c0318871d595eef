//! Right checksums for damaged images, so that readers reach the checks behind the checksums.
//!
//! Only the feature `testkit` has it: it needs the private layout types.

use everbyte_media::{BLOCK, BlockNo, Medium};
use zerocopy::{FromBytes, IntoBytes};

use crate::attributes::xattr_block;
use crate::format::{FsSuperblock, InodeWords, TableGeometry, is_bucket, reseal_bucket};

/// Corrects the checksums of a block of any structure of a file system.
pub fn reseal<M: Medium>(medium: &M, block: BlockNo) {
    let mut bytes = [0; BLOCK];
    medium.read(block.offset(), &mut bytes);
    let first = u64::from_le_bytes(*bytes.first_chunk().expect("a block has a word"));
    if let Ok((superblock, _)) = FsSuperblock::read_from_prefix(&bytes)
        && superblock.has_magic()
    {
        bytes[..size_of::<FsSuperblock>()].copy_from_slice(superblock.sealed().as_bytes());
    } else if TableGeometry::is_head(first) {
        reseal_inodes(&mut bytes);
    } else if is_bucket(first) {
        reseal_bucket(&mut bytes);
    } else {
        xattr_block::reseal(&mut bytes);
    }
    medium.store(block.offset(), &bytes);
}

fn reseal_inodes(table: &mut [u8; BLOCK]) {
    for slot in table.chunks_exact_mut(256).skip(1).filter(|slot| slot.iter().any(|&b| b != 0)) {
        let checksum = InodeWords::of_bytes(slot).checksum();
        slot[..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Replaces the random key of the hash of names in the only file system on `medium`, which is empty.
pub fn fix_hash_key<M: Medium>(medium: &M, blocks: std::ops::Range<u64>) {
    for block in blocks.map(BlockNo) {
        let mut bytes = [0; size_of::<FsSuperblock>()];
        medium.read(block.offset(), &mut bytes);
        let Ok(mut superblock) = FsSuperblock::read_from_bytes(&bytes) else { continue };
        if superblock.has_magic() {
            superblock.hash_key = [7, 9];
            medium.store(block.offset(), superblock.sealed().as_bytes());
        }
    }
}
