//! Shared answers to requests of the kernel.

use everbyte_fs::FsError;
use fuser::{Errno, ReplyEmpty, ReplyLseek, ReplyXattr};

use crate::convert::errno;

/// Answers an operation without a result.
pub(crate) fn reply_empty(done: Result<(), FsError>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers with bytes of at most `size`, or with how many there are if `size` is 0.
pub(crate) fn reply_bytes(bytes: Result<Vec<u8>, FsError>, size: u32, reply: ReplyXattr) {
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => return reply.error(errno(&error)),
    };
    match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(&bytes),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Answers with a place in a file.
pub(crate) fn reply_lseek(found: Result<u64, FsError>, reply: ReplyLseek) {
    match found {
        Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        Err(error) => reply.error(errno(&error)),
    }
}
