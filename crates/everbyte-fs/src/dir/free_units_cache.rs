//! Units of buckets' heaps that were found free lately, in DRAM: who adds an entry need not look at every slot of the
//! bucket again.
//!
//! Invariants: units are noted by who holds the lock of the bucket's directory for writing, after all slots of the
//! bucket were found right, or when the bucket is planned. Nothing in use lies in them, nor anything that was removed and
//! may come back: who plans an entry there takes them away first. A unit that is free and not known so costs space, until
//! the bucket is looked through again.

use everbyte_media::BlockNo;
use everbyte_pool::sync::Mutex;

use crate::format::FreeUnits;

/// Places: 256 KiB. Buckets share them, and the last one noted has it.
const PLACES: usize = 4096;

/// Units of one bucket that are known to be free.
#[derive(Clone, Copy)]
struct BucketUnits {
    bucket: BlockNo,
    free: FreeUnits,
}

/// A place, which is a line.
#[repr(align(64))]
struct CachePlace(Mutex<BucketUnits>);

/// Free units of a file system's buckets, as far as they are known.
pub(crate) struct FreeUnitsCache(Box<[CachePlace]>);

impl FreeUnitsCache {
    /// Nothing is known.
    pub(crate) fn new() -> Self {
        // Block 0 is the pool's.
        let nothing = BucketUnits { bucket: BlockNo(0), free: FreeUnits::NONE };
        Self((0..PLACES).map(|_| CachePlace(Mutex::new(nothing))).collect())
    }

    fn place(&self, bucket: BlockNo) -> &Mutex<BucketUnits> {
        &self.0[usize::try_from(bucket.0 % PLACES as u64).expect("less than there are places")].0
    }

    /// Units of `bucket` that are free.
    pub(super) fn get(&self, bucket: BlockNo) -> FreeUnits {
        let known = self.place(bucket).lock();
        if known.bucket == bucket { known.free } else { FreeUnits::NONE }
    }

    /// Notes which units of `bucket` are free.
    pub(super) fn note(&self, bucket: BlockNo, free: FreeUnits) {
        *self.place(bucket).lock() = BucketUnits { bucket, free };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_known_until_another_bucket_has_their_place() {
        let known = FreeUnitsCache::new();
        let (one, other) = (BlockNo(77), BlockNo(77 + PLACES as u64));
        assert_eq!(known.get(one), FreeUnits::NONE);
        for free in [FreeUnits::behind(0), FreeUnits::behind(200)] {
            known.note(one, free);
            assert_eq!((known.get(one), known.get(other)), (free, FreeUnits::NONE));
        }
        known.note(other, FreeUnits::behind(5));
        assert_eq!(known.get(one), FreeUnits::NONE);
    }
}
