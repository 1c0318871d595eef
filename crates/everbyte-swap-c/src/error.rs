//! Errors for C: a status, and a text for the calling thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use everbyte_swap::RegionError;

/// The outcome of a call. `everbyte_error` has the words to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum EverbyteStatus {
    /// It is done.
    Ok = 0,
    /// A required pointer is null.
    NullArgument = 1,
    /// A pointer is not aligned to its type, or a range has partial units of 4096 bytes.
    Misaligned = 2,
    /// An argument has an invalid value.
    BadArgument = 3,
    /// A range leaves the region.
    OutOfRange = 4,
    /// The length is invalid for a region.
    BadLength = 5,
    /// The DRAM limit is too low.
    LimitTooLow = 6,
    /// The space has too few slots for the region, or cannot be had.
    SpaceTooSmall = 7,
    /// More would be pinned than three quarters of the DRAM limit.
    TooMuchPinned = 8,
    /// Some of the range is pinned.
    Pinned = 9,
    /// Some of the range is not pinned, or is pinned as often as it can be.
    BadPin = 10,
    /// A part of the range is in an unreadable slot.
    Unreadable = 11,
    /// The system has no memory.
    NoMemory = 12,
    /// The store lost written bytes. The region evicts no further units.
    StoreFailed = 13,
    /// The store has no free slot: DRAM beyond the limit is used.
    StoreFull = 14,
    /// The region's userfaultfd was closed.
    DescriptorLost = 15,
    /// A setting of the system forbids userfaultfd.
    Forbidden = 16,
    /// The kernel's userfaultfd lacks a feature needed by regions.
    Unsupported = 17,
    /// The process has as many regions as it can have.
    TooMany = 18,
    /// The system, or a pool's server, refused.
    System = 19,
    /// Direct mode does not support the request.
    NotDirect = 20,
    /// Direct mode needs a second mapping of the store's memory, and the store cannot have one.
    NotMappable = 21,
    /// The system keeps pages of the region in DRAM as if they were locked. The region evicts no
    /// further units.
    Locked = 22,
    /// This process is a forked child, and the region is its parent's.
    ForkedChild = 23,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The reason for the failure of this thread's last failed call, in English; empty before. Valid
/// until this thread's next failed call, and never null.
#[unsafe(no_mangle)]
pub extern "C" fn everbyte_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// A failed call.
pub(crate) struct Failure {
    status: EverbyteStatus,
    words: String,
}

impl Failure {
    pub(crate) fn new(status: EverbyteStatus, words: impl Into<String>) -> Self {
        Self { status, words: words.into() }
    }
}

impl From<RegionError> for Failure {
    fn from(error: RegionError) -> Self {
        let status = match error {
            RegionError::Forbidden { .. } => EverbyteStatus::Forbidden,
            RegionError::Unsupported { .. } => EverbyteStatus::Unsupported,
            RegionError::BadLength { .. } => EverbyteStatus::BadLength,
            RegionError::LimitTooLow { .. } => EverbyteStatus::LimitTooLow,
            RegionError::SpaceTooSmall { .. } => EverbyteStatus::SpaceTooSmall,
            RegionError::OutOfRange { .. } => EverbyteStatus::OutOfRange,
            RegionError::Misaligned { .. } => EverbyteStatus::Misaligned,
            RegionError::TooMuchPinned { .. } => EverbyteStatus::TooMuchPinned,
            RegionError::Pinned { .. } => EverbyteStatus::Pinned,
            RegionError::BadPin { .. } => EverbyteStatus::BadPin,
            RegionError::Unreadable { .. } => EverbyteStatus::Unreadable,
            RegionError::NoMemory { .. } => EverbyteStatus::NoMemory,
            RegionError::StoreFailed => EverbyteStatus::StoreFailed,
            RegionError::StoreFull => EverbyteStatus::StoreFull,
            RegionError::DescriptorLost => EverbyteStatus::DescriptorLost,
            RegionError::TooMany => EverbyteStatus::TooMany,
            RegionError::NotDirect { .. } => EverbyteStatus::NotDirect,
            RegionError::NotMappable => EverbyteStatus::NotMappable,
            RegionError::Locked => EverbyteStatus::Locked,
            RegionError::ForkedChild => EverbyteStatus::ForkedChild,
            _ => EverbyteStatus::System,
        };
        Self::new(status, error.to_string())
    }
}

/// The status of a call. Stores its text for this thread.
pub(crate) fn status(outcome: Result<(), Failure>) -> EverbyteStatus {
    let Err(failure) = outcome else { return EverbyteStatus::Ok };
    let words = CString::new(failure.words.replace('\0', " ")).unwrap_or_default();
    // A thread at its end has no storage for the text.
    let _kept = LAST.try_with(|last| *last.borrow_mut() = words);
    failure.status
}

/// Borrows from a caller's pointer.
///
/// # Errors
/// The pointer is null or misaligned.
///
/// # Safety
/// Otherwise it points to a live `T`, unchanged while the result is used.
pub(crate) unsafe fn borrow<'a, T>(at: *const T, name: &str) -> Result<&'a T, Failure> {
    check(at, name)?;
    // SAFETY: the caller's promise, and the checks.
    Ok(unsafe { &*at })
}

/// Checks a pointer to an output.
///
/// # Errors
/// It is null or misaligned.
pub(crate) fn check<T>(at: *const T, name: &str) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::new(EverbyteStatus::NullArgument, format!("{name} is null")));
    }
    if !at.is_aligned() {
        let words = format!("{name} is not aligned to {} bytes", align_of::<T>());
        return Err(Failure::new(EverbyteStatus::Misaligned, words));
    }
    Ok(())
}

/// The text at a caller's pointer.
///
/// # Errors
/// The pointer is null, or the text is not UTF-8.
///
/// # Safety
/// Otherwise it points to bytes ending with a 0, unchanged while the result is used.
pub(crate) unsafe fn text<'a>(at: *const c_char, name: &str) -> Result<&'a str, Failure> {
    check(at, name)?;
    // SAFETY: the caller's promise, and the check.
    let text = unsafe { CStr::from_ptr(at) };
    let words = || Failure::new(EverbyteStatus::BadArgument, format!("{name} is not UTF-8"));
    text.to_str().map_err(|_| words())
}
