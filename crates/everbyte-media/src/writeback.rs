//! Fences of file media: `msync` of the pages a thread flushed or streamed since its last fence.
//!
//! Invariants: a range noted by a thread is synced by that thread's next fence or by an earlier fence of a
//! thread on the same shard. Threads with a shared shard wait for each other's `msync`: no fence returns
//! while another is still syncing its pages. After one failure nothing is ever synced again: the kernel may
//! have dropped the dirty pages and would report success.
//!
//! The kernel reports a failed write-back once for each open file, to the first following `msync`, for pages
//! of any thread. So at the end of its own `msync` a fence waits for every `msync` of other threads in
//! progress. It succeeds only after each of those has recorded its result.
//!
//! Writing back more than was asked for is always allowed (any line may become durable at any
//! time), so close ranges are synced together: each `msync` may cost a journal commit.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::mm::{MsyncFlags, msync};

use crate::map::to_usize;
use crate::medium::MediaError;
use crate::shards::{SHARDS, shard};
use crate::units::{BLOCK_U64, PoolOffset};

/// Bytes between two ranges below which one `msync` over both is cheaper than two.
const GAP_MAX: u64 = 1 << 20;
/// Ranges a shard collects before it first merges them.
const RANGES_MIN: usize = 256;

/// Syncs `len` bytes at an address.
type SyncRange = fn(at: *mut u8, len: usize) -> io::Result<()>;

/// Page ranges waiting for a fence, in the order they were noted.
struct Pending {
    ranges: Vec<Range<u64>>,
    /// Merge when there are this many.
    limit: usize,
}

#[repr(align(128))]
struct Shard {
    pending: Mutex<Pending>,
    /// True while a fence with the lock is syncing, and may know of an unreported failure.
    is_syncing: AtomicBool,
}

/// Ranges to sync of a file medium, by shard.
pub(crate) struct WriteBack {
    shards: [Shard; SHARDS],
    failed: OnceLock<MediaError>,
    sync: SyncRange,
}

impl WriteBack {
    pub(crate) fn new() -> Self {
        Self::with_sync(|at, len| {
            // SAFETY: `fence` passes a range of the mapping; syncing changes no memory.
            Ok(unsafe { msync(at.cast(), len, MsyncFlags::SYNC) }?)
        })
    }

    pub(crate) fn with_sync(sync: SyncRange) -> Self {
        let shard = |_| Shard {
            pending: Mutex::new(Pending { ranges: Vec::new(), limit: RANGES_MIN }),
            is_syncing: AtomicBool::new(false),
        };
        Self { shards: std::array::from_fn(shard), failed: OnceLock::new(), sync }
    }

    /// Adds `at .. at + len` to the syncs of this thread's next fence; `len` is not 0.
    pub(crate) fn note(&self, at: PoolOffset, len: u64) {
        let start = at.0 / BLOCK_U64 * BLOCK_U64;
        let end = (at.0 + len).next_multiple_of(BLOCK_U64);
        let mut pending = self.mine();
        match pending.ranges.last_mut() {
            Some(last) if last.start <= start && start <= last.end => last.end = last.end.max(end),
            _ => pending.ranges.push(start..end),
        }
        if pending.ranges.len() >= pending.limit {
            merge(&mut pending.ranges, 0);
            pending.limit = (2 * pending.ranges.len()).max(RANGES_MIN);
        }
    }

    /// Syncs the ranges of this thread's shard, in the mapping at `base`. `each` gets every requested range
    /// before it is synced.
    ///
    /// # Errors
    /// This or an earlier sync failed.
    pub(crate) fn fence(
        &self,
        base: *mut u8,
        each: impl FnMut(&Range<u64>),
    ) -> Result<(), MediaError> {
        let mut pending = self.mine();
        self.check()?;
        pending.ranges.iter().for_each(each);
        merge(&mut pending.ranges, GAP_MAX);
        let is_syncing = &self.shards[shard()].is_syncing;
        is_syncing.store(true, Ordering::SeqCst);
        let synced = pending.ranges.drain(..).try_for_each(|range| self.sync_range(base, &range));
        is_syncing.store(false, Ordering::SeqCst);
        pending.limit = RANGES_MIN;
        drop(pending);
        synced?;
        self.await_others();
        self.check()
    }

    /// Syncs one range; a failure is noted before anyone may take the sync for ended.
    fn sync_range(&self, base: *mut u8, range: &Range<u64>) -> Result<(), MediaError> {
        let len = range.end - range.start;
        let at = base.wrapping_add(to_usize(range.start));
        (self.sync)(at, to_usize(len)).map_err(|error| {
            let (at, reason) = (PoolOffset(range.start), error.to_string());
            self.failed.get_or_init(|| MediaError::WriteBack { at, len, reason }).clone()
        })
    }

    /// Returns once every fence now syncing has recorded its result. The caller holds no shard's lock, so
    /// fences that wait for each other continue.
    fn await_others(&self) {
        for other in self.shards.iter().filter(|other| other.is_syncing.load(Ordering::SeqCst)) {
            drop(other.pending.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// # Errors
    /// A sync failed.
    pub(crate) fn check(&self) -> Result<(), MediaError> {
        self.failed.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn mine(&self) -> MutexGuard<'_, Pending> {
        // A panic elsewhere leaves the list usable: it is only ever added to or drained.
        self.shards[shard()].pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sorts `ranges` and joins ranges with an overlap or a gap of at most `gap_max` bytes.
fn merge(ranges: &mut Vec<Range<u64>>, gap_max: u64) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let join = next.start <= kept.end + gap_max;
        if join {
            kept.end = kept.end.max(next.end);
        }
        join
    });
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ptr;
    use std::time::Duration;

    use super::*;
    use crate::shards::OWNS_NONE;

    thread_local! {
        static SYNCED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
    }

    fn record(at: *mut u8, len: usize) -> io::Result<()> {
        SYNCED.with_borrow_mut(|synced| synced.push((at.addr(), len)));
        Ok(())
    }

    fn record_and_fail(at: *mut u8, len: usize) -> io::Result<()> {
        record(at, len)?;
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    fn synced() -> Vec<(usize, usize)> {
        SYNCED.take()
    }

    #[test]
    fn fence_syncs_merged_pages_once() {
        let write_back = WriteBack::with_sync(record);
        let far = 16 << 20;
        write_back.note(PoolOffset(far + 4095), 2);
        write_back.note(PoolOffset(100), 1);
        write_back.note(PoolOffset(50_000), 64);
        write_back.fence(ptr::null_mut(), |_| {}).unwrap();
        assert_eq!(synced(), [(0, 53_248), (to_usize(far), 8192)]);
        write_back.fence(ptr::null_mut(), |_| {}).unwrap();
        assert_eq!(synced(), []);
    }

    #[test]
    fn many_scattered_ranges_are_all_synced() {
        let write_back = WriteBack::with_sync(record);
        let stride = 2 * GAP_MAX;
        for i in (0..1000).rev() {
            write_back.note(PoolOffset(i * stride), 1);
            write_back.note(PoolOffset(i * stride), 1);
        }
        write_back.fence(ptr::null_mut(), |_| {}).unwrap();
        let expected: Vec<_> = (0..1000).map(|i| (to_usize(i * stride), 4096)).collect();
        assert_eq!(synced(), expected);
    }

    #[test]
    fn fence_syncs_own_shard_only() {
        let write_back = WriteBack::with_sync(record);
        write_back.note(PoolOffset(0), 1);
        let mine = shard();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_ne!(shard(), mine, "this process has fewer threads than shards");
                write_back.fence(ptr::null_mut(), |_| {}).unwrap();
                assert_eq!(synced(), []);
            });
        });
        write_back.fence(ptr::null_mut(), |_| {}).unwrap();
        assert_eq!(synced(), [(0, 4096)]);
    }

    #[test]
    fn fence_waits_for_sync_of_same_range() {
        static STARTED: AtomicBool = AtomicBool::new(false);
        static FINISHED: AtomicBool = AtomicBool::new(false);
        let write_back = WriteBack::with_sync(|_, _| {
            STARTED.store(true, Ordering::SeqCst);
            // Long enough for a fence that does not wait to be caught; never too short for one
            // that does.
            std::thread::sleep(Duration::from_millis(50));
            FINISHED.store(true, Ordering::SeqCst);
            Ok(())
        });
        std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                OWNS_NONE.set(true);
                write_back.note(PoolOffset(0), 1);
                write_back.fence(ptr::null_mut(), |_| {}).unwrap();
                shard()
            });
            let other = scope.spawn(|| {
                OWNS_NONE.set(true);
                while !STARTED.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                write_back.fence(ptr::null_mut(), |_| {}).unwrap();
                assert!(FINISHED.load(Ordering::SeqCst), "the fence returned too early");
                shard()
            });
            assert_eq!(one.join().unwrap(), other.join().unwrap(), "they share a shard");
        });
    }

    #[test]
    fn sync_failure_fails_each_concurrent_fence() {
        static TOLD: AtomicBool = AtomicBool::new(false);
        // As the kernel does: it reports a failure once, to the first caller, before that caller could report
        // it to others.
        let write_back = WriteBack::with_sync(|_, _| {
            if TOLD.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
            Err(io::Error::from_raw_os_error(libc::EIO))
        });
        let until_told = || {
            while !TOLD.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let told = scope.spawn(|| {
                write_back.note(PoolOffset(0), 1);
                write_back.fence(ptr::null_mut(), |_| {}).unwrap_err();
                shard()
            });
            let with_pages = scope.spawn(|| {
                write_back.note(PoolOffset(8192), 1);
                until_told();
                write_back.fence(ptr::null_mut(), |_| {}).unwrap_err();
                shard()
            });
            // Another thread of its shard may have synced its pages.
            let without = scope.spawn(|| {
                until_told();
                write_back.fence(ptr::null_mut(), |_| {}).unwrap_err();
            });
            assert_ne!(told.join().unwrap(), with_pages.join().unwrap(), "too many threads");
            without.join().unwrap();
        });
    }

    #[test]
    fn sync_failure_is_final() {
        let write_back = WriteBack::with_sync(record_and_fail);
        write_back.note(PoolOffset(8192), 1);
        let first = write_back.fence(ptr::null_mut(), |_| {}).unwrap_err();
        assert!(
            matches!(first, MediaError::WriteBack { at: PoolOffset(8192), len: 4096, .. }),
            "{first}"
        );
        assert_eq!(synced().len(), 1);
        write_back.note(PoolOffset(0), 1);
        assert!(write_back.fence(ptr::null_mut(), |_| {}).is_err());
        assert!(write_back.check().is_err());
        assert_eq!(synced(), [], "nothing is synced after a failure");
    }
}
