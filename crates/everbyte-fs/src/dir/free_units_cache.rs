//! A DRAM cache of free heap units of buckets, which spares an insertion the check of every slot.
//!
//! Invariants: the holder of the directory's lock for writing stores units, after a check of all slots of the
//! bucket, or with the plan of the bucket. A cached unit is unused and holds no removed entry that a crash
//! can restore. A plan of an entry removes the entry's units first. A free unit can be missing from the
//! cache; a check of the bucket finds it.

use everbyte_media::BlockNo;
use everbyte_pool::sync::Mutex;

use crate::format::FreeUnits;

/// Entries: 256 KiB. Buckets share an entry, and the last stored one has it.
const PLACES: usize = 4096;

/// Free units of one bucket.
#[derive(Clone, Copy)]
struct BucketUnits {
    bucket: BlockNo,
    free: FreeUnits,
}

/// A cache entry: one line.
#[repr(align(64))]
struct CachePlace(Mutex<BucketUnits>);

/// The cache of a file system.
pub(crate) struct FreeUnitsCache(Box<[CachePlace]>);

impl FreeUnitsCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        // Block 0 belongs to the pool, so it is never a bucket.
        let nothing = BucketUnits { bucket: BlockNo(0), free: FreeUnits::NONE };
        Self((0..PLACES).map(|_| CachePlace(Mutex::new(nothing))).collect())
    }

    fn place(&self, bucket: BlockNo) -> &Mutex<BucketUnits> {
        &self.0[usize::try_from(bucket.0 % PLACES as u64).expect("less than there are places")].0
    }

    /// Cached free units of `bucket`.
    pub(super) fn get(&self, bucket: BlockNo) -> FreeUnits {
        let known = self.place(bucket).lock();
        // A freed bucket's block can become a bucket again. Its plan then stores the new units
        // first.
        if known.bucket == bucket { known.free } else { FreeUnits::NONE }
    }

    /// Stores the free units of `bucket`.
    pub(super) fn note(&self, bucket: BlockNo, free: FreeUnits) {
        *self.place(bucket).lock() = BucketUnits { bucket, free };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_units_last_until_replaced() {
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
