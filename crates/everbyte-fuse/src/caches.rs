//! The kernel's caches of a mount: names, attributes and bytes that it believes for long, and that it
//! must forget when somebody else than the kernel changes them.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::thread;

use everbyte_fs::InodeNo;
use fuser::Notifier;

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
    fn forget_attributes(&self, inode: InodeNo) {
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

/// The kernel's caches of a mount for those who answer its requests, from when it is mounted on.
#[derive(Clone, Default)]
pub(crate) struct OwnCaches(Arc<OnceLock<KernelCaches>>);

impl OwnCaches {
    /// Notes which they are.
    pub(crate) fn set(&self, caches: KernelCaches) {
        // A mount is made once.
        let _ = self.0.set(caches);
    }

    /// Makes the kernel forget `inode`, and then calls `answer`, which answers the request that changed what the kernel
    /// does not expect. A thread of its own does both: forgetting waits for reads of the file, which the caller's thread
    /// may have to answer.
    pub(crate) fn forget_then(&self, inode: InodeNo, answer: impl FnOnce() + Send + 'static) {
        let Some(caches) = self.0.get().cloned() else { return answer() };
        let forget = move || {
            caches.forget_inode(inode);
            answer();
        };
        if let Err(error) = thread::Builder::new().name("forget".to_owned()).spawn(forget) {
            // The answer is an I/O error, which whoever drops it gives.
            tracing::error!(%inode, %error, "the kernel has not forgotten a file that was changed");
        }
    }

    /// Calls `answer`, which makes the kernel write and forget bytes of a file and answers a request, in a thread of its
    /// own: that waits for requests which the caller's thread may have to answer. Without caches yet nothing is in them.
    pub(crate) fn answer_apart(&self, answer: impl FnOnce(Option<&KernelCaches>) + Send + 'static) {
        let Some(caches) = self.0.get().cloned() else { return answer(None) };
        let apart = move || answer(Some(&caches));
        if let Err(error) = thread::Builder::new().name("write back".to_owned()).spawn(apart) {
            // The answer is an I/O error, which whoever drops it gives.
            tracing::error!(%error, "a question about a file is not answered");
        }
    }

    /// Calls `answer`, which answers a request to set the size of `inode` that failed, and makes the kernel forget the
    /// file. Before the answer it forgets attributes only: to forget bytes it may write some first, and it writes
    /// nothing of a file whose size is being set.
    pub(crate) fn forget_after(&self, inode: InodeNo, answer: impl FnOnce()) {
        let Some(caches) = self.0.get().cloned() else { return answer() };
        caches.forget_attributes(inode);
        answer();
        let forget = move || caches.forget_inode(inode);
        if let Err(error) = thread::Builder::new().name("forget".to_owned()).spawn(forget) {
            tracing::error!(%inode, %error, "the kernel has not forgotten a file that was changed");
        }
    }
}
