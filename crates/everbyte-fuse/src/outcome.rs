//! The outcome of the request that a thread carries out: its bytes and its failure.
//!
//! Invariant: a request and its notes are on one thread.

use std::cell::Cell;

use everbyte_device::meter::ErrorCause;

/// The outcome of a request.
#[derive(Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Bytes read or written.
    pub(crate) bytes: u64,
    /// The cause of its failure.
    pub(crate) error: Option<ErrorCause>,
}

thread_local! {
    static OUTCOME: Cell<Outcome> = const { Cell::new(Outcome { bytes: 0, error: None }) };
}

/// Notes bytes that the request has read or written.
pub(crate) fn note_bytes(bytes: usize) {
    OUTCOME.set(Outcome { bytes: bytes as u64, ..OUTCOME.get() });
}

/// Notes the error number of a failed request, and if the file system is closed.
pub(crate) fn note_error(errno: i32, is_closed: bool) {
    let error = match errno {
        // Answers, not failures: the name, the attribute or the data is absent.
        libc::ENOENT | libc::ENODATA | libc::ENXIO => None,
        _ if is_closed => Some(ErrorCause::Gone),
        libc::EIO => Some(ErrorCause::Media),
        libc::ENOSPC => Some(ErrorCause::NoSpace),
        libc::EROFS => Some(ErrorCause::ReadOnly),
        _ => Some(ErrorCause::Refused),
    };
    OUTCOME.set(Outcome { error, ..OUTCOME.get() });
}

/// Takes the outcome of this thread's request.
pub(crate) fn take() -> Outcome {
    OUTCOME.take()
}
