//! The kernel's caches of a mount: long-lived names, attributes and bytes. The kernel must forget
//! them after a change that it did not make.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::{io, thread};

use everbyte_fs::InodeNo;
use fuser::Notifier;
use parking_lot::Mutex;

use crate::convert::number;

/// The kernel's caches of a mounted file system. Every change without a request of the kernel must
/// be reported here, by a caller without locks of the file system: forgetting waits for requests of
/// programs.
#[derive(Clone, Debug)]
pub struct KernelCaches {
    pub(crate) notifier: Notifier,
    pub(crate) root: InodeNo,
}

impl KernelCaches {
    /// Makes the kernel forget the attributes and the bytes of `inode`, or the entries of a directory.
    pub fn forget_inode(&self, inode: InodeNo) {
        if let Err(error) = self.notifier.inval_inode(number(self.root, inode), 0, 0) {
            tracing::debug!(%inode, %error, "the kernel has not forgotten a file");
        }
    }

    /// Makes the kernel write and forget its bytes `range` of `inode`. The range is not empty.
    pub(crate) fn forget_range(&self, inode: InodeNo, range: &Range<u64>) {
        let start = i64::try_from(range.start).unwrap_or(i64::MAX);
        // No length is one to the end of the file.
        let len = i64::try_from(range.end - range.start).unwrap_or(0);
        if let Err(error) = self.notifier.inval_inode(number(self.root, inode), start, len) {
            tracing::debug!(%inode, %error, "the kernel has not forgotten bytes of a file");
        }
    }

    /// Makes the kernel forget the attributes of `inode`. This never waits.
    pub(crate) fn forget_attributes(&self, inode: InodeNo) {
        if let Err(error) = self.notifier.inval_inode(number(self.root, inode), -1, 0) {
            tracing::debug!(%inode, %error, "the kernel has not forgotten attributes");
        }
    }

    /// Makes the kernel forget the file `name` in the directory `parent`, or its absence.
    pub fn forget_name(&self, parent: InodeNo, name: &[u8]) {
        let name = OsStr::from_bytes(name);
        if let Err(error) = self.notifier.inval_entry(number(self.root, parent), name) {
            tracing::debug!(%parent, %error, "the kernel has not forgotten a name");
        }
    }
}

/// The threads of a mount that make the kernel forget.
const FORGETTERS: usize = 4;

/// Work for one of these threads.
type Job = Box<dyn FnOnce(&KernelCaches) + Send>;

/// The kernel's caches of a mount for the threads that answer its requests, from the start of the
/// mount on.
///
/// The threads that read requests never make the kernel forget bytes: forgetting waits for requests
/// that they may have to answer. Other threads do it. Each job but those of `forget_after` answers
/// a request of a waiting program, and `forget_after` has at most one job for each file: programs
/// and files bound the queue.
#[derive(Clone, Default)]
pub(crate) struct CacheInvalidation(Arc<OnceLock<InvalidationThread>>);

struct InvalidationThread {
    caches: KernelCaches,
    jobs: Sender<Job>,
    /// The files of waiting `forget_after` jobs.
    pending: Arc<Mutex<HashSet<InodeNo>>>,
}

impl CacheInvalidation {
    /// Sets the caches, and starts the threads. They end with the last clone.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn start(&self, caches: &KernelCaches) -> io::Result<()> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..FORGETTERS {
            let (caches, queue) = (caches.clone(), Arc::clone(&queue));
            let work = move || {
                loop {
                    // One thread waits in the queue, and the others wait for the lock. The lock is
                    // free during the job.
                    let job = queue.lock().recv();
                    let Ok(job) = job else { return };
                    job(&caches);
                }
            };
            thread::Builder::new().name(format!("forget-{number}")).spawn(work)?;
        }
        // A mount is made once.
        let _ = self.0.set(InvalidationThread {
            caches: caches.clone(),
            jobs,
            pending: Arc::default(),
        });
        Ok(())
    }

    /// Makes the kernel forget `inode`, and then calls `answer`. It answers the request for a
    /// change that the kernel does not expect, or that must follow the kernel's write-back.
    pub(crate) fn forget_then(&self, inode: InodeNo, answer: impl FnOnce() + Send + 'static) {
        self.answer_apart(move |caches| {
            if let Some(caches) = caches {
                caches.forget_inode(inode);
            }
            answer();
        });
    }

    /// Calls `answer` in another thread. It makes the kernel write and forget bytes of a file and
    /// answers a request. Before the mount has started, its caches are empty.
    pub(crate) fn answer_apart(&self, answer: impl FnOnce(Option<&KernelCaches>) + Send + 'static) {
        let Some(own) = self.0.get() else { return answer(None) };
        own.give(Box::new(move |caches| answer(Some(caches))));
    }

    /// Calls `answer`, which answers a failed request to set the size of `inode`, and makes the
    /// kernel forget the file. Before the answer it forgets only attributes: to forget bytes the
    /// kernel may write some first, and it writes no bytes of a file while its size is being set.
    pub(crate) fn forget_after(&self, inode: InodeNo, answer: impl FnOnce()) {
        let Some(own) = self.0.get() else { return answer() };
        own.caches.forget_attributes(inode);
        answer();
        if !own.pending.lock().insert(inode) {
            return;
        }
        let pending = Arc::clone(&own.pending);
        own.give(Box::new(move |caches| {
            // A request that fails from here on has a job of its own.
            pending.lock().remove(&inode);
            caches.forget_inode(inode);
        }));
    }

    /// Makes the kernel forget the attributes of `inode`.
    pub(crate) fn forget_attributes(&self, inode: InodeNo) {
        if let Some(own) = self.0.get() {
            own.caches.forget_attributes(inode);
        }
    }
}

impl InvalidationThread {
    fn give(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            // The answer is an I/O error, which dropping it gives.
            tracing::error!("no thread makes the kernel forget");
        }
    }
}
