//! The kernel's caches of a mount: names, attributes and bytes that it believes for long, and that it
//! must forget when somebody else than the kernel changes them.

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

/// The kernel's caches of a mounted file system. To be told of every change that the kernel did
/// not ask for, by somebody who holds no lock of the file system: forgetting waits for requests of
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

    /// Makes the kernel write what it has of bytes `range` of `inode`, of which there is one at least, and forget them.
    pub(crate) fn forget_range(&self, inode: InodeNo, range: &Range<u64>) {
        let start = i64::try_from(range.start).unwrap_or(i64::MAX);
        // No length is one to the end of the file.
        let len = i64::try_from(range.end - range.start).unwrap_or(0);
        if let Err(error) = self.notifier.inval_inode(number(self.root, inode), start, len) {
            tracing::debug!(%inode, %error, "the kernel has not forgotten bytes of a file");
        }
    }

    /// Makes the kernel forget the attributes of `inode`, which waits for nothing.
    pub(crate) fn forget_attributes(&self, inode: InodeNo) {
        if let Err(error) = self.notifier.inval_inode(number(self.root, inode), -1, 0) {
            tracing::debug!(%inode, %error, "the kernel has not forgotten attributes");
        }
    }

    /// Makes the kernel forget which file `name` is in the directory `parent`, or that there is none.
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

/// The kernel's caches of a mount for those who answer its requests, from when it is mounted on.
///
/// The threads that read requests never make the kernel forget bytes: forgetting waits for requests that they may have to
/// answer. A few other threads do. Each job but those of `forget_after` answers a request that a program waits for, and
/// `forget_after` has one job for each file at most: programs and files bound the queue.
#[derive(Clone, Default)]
pub(crate) struct OwnCaches(Arc<OnceLock<Forgetting>>);

struct Forgetting {
    caches: KernelCaches,
    jobs: Sender<Job>,
    /// The files that a job of `forget_after` waits for.
    pending: Arc<Mutex<HashSet<InodeNo>>>,
}

impl OwnCaches {
    /// Notes which they are, and starts the threads. They end when the last clone of this has gone.
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
                    let job = queue.lock().recv();
                    let Ok(job) = job else { return };
                    job(&caches);
                }
            };
            thread::Builder::new().name(format!("forget-{number}")).spawn(work)?;
        }
        // A mount is made once.
        let _ = self.0.set(Forgetting { caches: caches.clone(), jobs, pending: Arc::default() });
        Ok(())
    }

    /// Makes the kernel forget `inode`, and then calls `answer`, which answers the request that changed what the kernel
    /// does not expect, or must follow on the bytes that the kernel writes first.
    pub(crate) fn forget_then(&self, inode: InodeNo, answer: impl FnOnce() + Send + 'static) {
        self.answer_apart(move |caches| {
            if let Some(caches) = caches {
                caches.forget_inode(inode);
            }
            answer();
        });
    }

    /// Calls `answer`, which makes the kernel write and forget bytes of a file and answers a request, in another thread.
    /// Without caches yet nothing is in them.
    pub(crate) fn answer_apart(&self, answer: impl FnOnce(Option<&KernelCaches>) + Send + 'static) {
        let Some(own) = self.0.get() else { return answer(None) };
        own.give(Box::new(move |caches| answer(Some(caches))));
    }

    /// Calls `answer`, which answers a request to set the size of `inode` that failed, and makes the kernel forget the
    /// file. Before the answer it forgets attributes only: to forget bytes it may write some first, and it writes
    /// nothing of a file whose size is being set.
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

impl Forgetting {
    fn give(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            // The answer is an I/O error, which dropping it gives.
            tracing::error!("no thread makes the kernel forget");
        }
    }
}
