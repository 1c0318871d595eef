//! The ends of the heaps of buckets that were looked through lately, in DRAM: who adds an entry need not look at
//! every slot of the bucket again.
//!
//! Invariants: an end is noted by who holds the lock of the bucket's directory for writing, after all slots of the
//! bucket were found right, or when the bucket is planned. Nothing in use lies at the end or beyond, nor anything that
//! was removed and may come back. An end that is too high costs room, until the bucket is looked through again.

use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::BlockNo;

/// Places for ends: 32 KiB. Buckets share them, and the last one noted has it.
const PLACES: usize = 4096;
/// Bits of a place that are the end, in units of a heap; above them is the block.
const END_BITS: u32 = 10;

/// The ends of the heaps of a file system's buckets, as far as they are known.
pub(crate) struct BucketEnds(Box<[AtomicU64]>);

impl BucketEnds {
    /// None is known.
    pub(crate) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, bucket: BlockNo) -> &AtomicU64 {
        &self.0[usize::try_from(bucket.0 % PLACES as u64).expect("less than there are places")]
    }

    /// The end of the heap of `bucket`, if it is known.
    pub(super) fn get(&self, bucket: BlockNo) -> Option<usize> {
        // Who noted it had the lock that the caller has.
        let word = self.place(bucket).load(Ordering::Relaxed);
        let end = usize::try_from(word & ((1 << END_BITS) - 1)).ok()?;
        (word >> END_BITS == bucket.0).then_some(end)
    }

    /// Notes the end of the heap of `bucket`.
    pub(super) fn note(&self, bucket: BlockNo, end: usize) {
        self.place(bucket).store(bucket.0 << END_BITS | end as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_known_until_another_bucket_has_its_place() {
        let ends = BucketEnds::new();
        let (one, other) = (BlockNo(77), BlockNo(77 + PLACES as u64));
        assert_eq!(ends.get(one), None);
        for end in [512, 130] {
            ends.note(one, end);
            assert_eq!((ends.get(one), ends.get(other)), (Some(end), None));
        }
        ends.note(other, 200);
        assert_eq!((ends.get(one), ends.get(other)), (None, Some(200)));
    }
}
