//! Repetition of changes that fail for lack of space, after removed files were freed.
//!
//! The kernel reports the last use of a removed file only after programs have the answer to the
//! removal, by a request that a thread of the mount has to read. Invariant: at least one of these
//! threads never waits here.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use everbyte_fs::{FileSystem, FsError};
use everbyte_media::Medium;

/// Longest time that a change or a report of free space waits for the release of removed files. The
/// wait fails if a program has them open, so it also covers a mount whose threads get no processor.
const WAIT_MAX: Duration = Duration::from_millis(200);
/// Time between two looks.
const LOOK: Duration = Duration::from_micros(200);

/// The threads of a mount that wait for space.
pub(crate) struct EnospcRetry {
    waiters: AtomicUsize,
    waiters_max: usize,
    /// Removed files in use, as found by unsuccessful waits of reports.
    held: AtomicU64,
}

impl EnospcRetry {
    /// For a mount with this number of threads, all active.
    pub(crate) fn new(threads: usize) -> Self {
        // One thread stays free to read the kernel's report that frees the file.
        let waiters_max = threads.saturating_sub(1);
        Self { waiters: AtomicUsize::new(0), waiters_max, held: AtomicU64::new(0) }
    }

    /// Waits a short time until removed files without users are freed, so that a report of free
    /// space includes their space. Later reports do not wait for the files that are left.
    pub(crate) fn settle<M: Medium>(&self, fs: &FileSystem<M>) {
        let held = self.held.load(Ordering::Relaxed);
        if fs.nameless_files() > held {
            // Without a free thread the wait could not end before its deadline.
            let Some(_waiter) = self.begin_to_wait() else { return };
            let deadline = Instant::now() + WAIT_MAX;
            while fs.nameless_files() > held && Instant::now() < deadline {
                std::thread::sleep(LOOK);
            }
        }
        // Files that are still open now would delay each later report by the whole time.
        self.held.store(fs.nameless_files(), Ordering::Relaxed);
    }

    /// Makes a change. Repeats it after earlier removed files are freed if it found no space.
    ///
    /// # Errors
    /// Those of the last attempt.
    pub(crate) fn find<M: Medium, R>(
        &self,
        fs: &FileSystem<M>,
        change: impl Fn() -> Result<R, FsError>,
    ) -> Result<R, FsError> {
        // One may be freed while the change is made.
        let may_be_freed = fs.nameless_files() > 0;
        let done = change();
        if !finds_no_space(&done) || !(may_be_freed || fs.nameless_files() > 0) {
            return done;
        }
        let deadline = Instant::now() + WAIT_MAX;
        // Without a place to wait, the change is still repeated once.
        let waiter = self.begin_to_wait();
        loop {
            // Space freed after this read is either found by the change, or seen by the next read.
            let before = free(fs);
            let done = change();
            let has_hope = finds_no_space(&done) && waiter.is_some();
            if !has_hope || !grows(fs, before, deadline) {
                return done;
            }
        }
    }

    /// Notes a waiting thread until the result is dropped; `None` if all other threads wait.
    fn begin_to_wait(&self) -> Option<Waiter<'_>> {
        let more = |waiters| (waiters < self.waiters_max).then_some(waiters + 1);
        let begun = self.waiters.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        begun.ok().map(|_| Waiter(self))
    }
}

/// A thread that waits for space.
struct Waiter<'s>(&'s EnospcRetry);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

fn finds_no_space<R>(done: &Result<R, FsError>) -> bool {
    matches!(done, Err(FsError::NoSpace | FsError::NoInodes { .. }))
}

/// The numbers of free blocks, free inodes, and removed files that may become free.
fn free<M: Medium>(fs: &FileSystem<M>) -> [u64; 3] {
    let status = fs.status();
    [status.free_blocks, status.free_inodes, fs.nameless_files()]
}

/// Waits until free blocks or inodes exceed `before`. Returns false if this does not happen until
/// `deadline`, or is impossible.
fn grows<M: Medium>(
    fs: &FileSystem<M>,
    [blocks, inodes, nameless]: [u64; 3],
    deadline: Instant,
) -> bool {
    while Instant::now() < deadline {
        let now = free(fs);
        if now[0] > blocks || now[1] > inodes || now[2] < nameless {
            return true;
        }
        // No removed file is left that could be freed.
        if now[2] == 0 {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    false
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use everbyte_fs::{FileType, FsOptions, InodeNo, NewInode, kinds};
    use everbyte_media::{Mapped, MediaOptions};
    use everbyte_pool::{OpenOptions, Pool};

    use super::*;

    /// A file to be made.
    pub(crate) const NEW: NewInode<'static> = NewInode {
        kind: FileType::Regular,
        permissions: 0o600,
        umask: 0,
        uid: 0,
        gid: 0,
        device: 0,
        target: &[],
    };

    /// A file system with so many open files without a name.
    pub(crate) fn with_nameless(count: usize) -> (FileSystem<Mapped>, Vec<InodeNo>) {
        let bytes = 32 << 20;
        let medium = Arc::new(Mapped::anonymous(bytes, &MediaOptions::default()).unwrap());
        Pool::format(&*medium, 2, [1; 16]).unwrap();
        let options = OpenOptions { capacity_blocks: bytes / 4096 };
        let pool = Arc::new(Pool::open(medium, kinds(), &options).unwrap());
        let options = FsOptions { log_bytes: Some(4 << 20), ..FsOptions::default() };
        let fs = FileSystem::create(&pool, "files", 16 << 20, &options).unwrap();
        let made = (0..count).map(|_| fs.create_unnamed(fs.root(), &NEW).unwrap().inode);
        let made = made.collect();
        (fs, made)
    }

    /// The number of attempts at a change that never finds space, and their total time.
    fn in_vain(space: &EnospcRetry, fs: &FileSystem<Mapped>) -> (u32, Duration) {
        let (attempts, start) = (Cell::new(0), Instant::now());
        let refused = space.find(fs, || {
            attempts.set(attempts.get() + 1);
            Err::<(), _>(FsError::NoSpace)
        });
        assert!(matches!(refused, Err(FsError::NoSpace)));
        (attempts.get(), start.elapsed())
    }

    #[test]
    fn change_waits_a_bounded_time_for_freed_files() {
        let (fs, nameless) = with_nameless(40);
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for inode in nameless {
                    if !is_done.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    fs.close_inode(inode).unwrap();
                }
            });
            let (attempts, time) = in_vain(&EnospcRetry::new(2), &fs);
            is_done.store(true, Ordering::Relaxed);
            // Each file that is freed is a reason for one, and most are freed too late.
            assert!((2..20).contains(&attempts), "{attempts}");
            assert!(time >= WAIT_MAX, "{time:?}");
        });
        assert_eq!(in_vain(&EnospcRetry::new(2), &fs).0, 1, "there is nothing to wait for");
    }

    #[test]
    fn report_waits_once_for_a_file_that_stays_open() {
        let (fs, nameless) = with_nameless(2);
        let space = EnospcRetry::new(2);
        let timed = || {
            let start = Instant::now();
            space.settle(&fs);
            start.elapsed()
        };
        assert!(timed() >= WAIT_MAX);
        assert_eq!(space.held.load(Ordering::Relaxed), 2);
        fs.close_inode(nameless[0]).unwrap();
        space.settle(&fs);
        assert_eq!(space.held.load(Ordering::Relaxed), 1, "a later one is waited for");
        assert_eq!(space.waiters.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_thread_of_a_mount_does_not_wait() {
        assert!(EnospcRetry::new(1).begin_to_wait().is_none());
        let (fs, _) = with_nameless(1);
        let space = EnospcRetry::new(3);
        let waiters = [space.begin_to_wait(), space.begin_to_wait()];
        assert!(waiters.iter().all(Option::is_some) && space.begin_to_wait().is_none());
        drop(waiters);
        assert!(in_vain(&space, &fs).1 >= WAIT_MAX);
    }
}
