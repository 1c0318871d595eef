//! userfaultfd: the descriptor, its ioctls and its messages.
//!
//! Declares the interface here, because the crate `userfaultfd` needs libclang to build and cannot
//! copy write-protected; see decision 18. Layouts and numbers are from `linux/userfaultfd.h`. Every
//! call except [`Uffd::open`] may run in a signal handler.
//!
//! Knows no units, slots or regions.

#![allow(unsafe_code, reason = "ioctls take pointers to structures and fill them in")]

use std::fs::OpenOptions;
use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_ulong};

const DEVICE: &str = "/dev/userfaultfd";
const IOC_NEW: c_ulong = (0xAA << 8) as c_ulong;
const USER_MODE_ONLY: c_int = 1;

const API: u64 = 0xAA;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_SIGBUS: u64 = 1 << 7;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const COPY_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1;
const FLAG_WP: u64 = 2;

#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeCall {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterCall {
    range: RangeCall,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyCall {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct ZeroCall {
    range: RangeCall,
    mode: u64,
    zeroed: i64,
}

#[repr(C)]
struct ProtectCall {
    range: RangeCall,
    mode: u64,
}

#[repr(C)]
struct PoisonCall {
    range: RangeCall,
    mode: u64,
    updated: i64,
}

/// A message of the descriptor, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

/// The number of an ioctl with a read and written `T`.
const fn read_write<T>(number: c_ulong) -> c_ulong {
    3 << 30 | (size_of::<T>() as c_ulong) << 16 | 0xAA << 8 | number
}

/// The number of an ioctl with a `T` marked as read in the header.
const fn read<T>(number: c_ulong) -> c_ulong {
    2 << 30 | (size_of::<T>() as c_ulong) << 16 | 0xAA << 8 | number
}

/// Resolver of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The faulting thread, in a signal handler.
    Sigbus,
    /// A reader of messages from the descriptor.
    Messages,
}

/// A fault reported by a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FaultMessage {
    pub(crate) address: usize,
    pub(crate) is_store: bool,
    pub(crate) is_present: bool,
}

/// A failure to get a descriptor.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// A setting forbids it.
    Forbidden { setting: &'static str, source: io::Error },
    /// The kernel cannot do it.
    Unsupported(io::Error),
}

/// A userfaultfd.
pub(crate) struct Uffd {
    /// Dropped only while it is one.
    fd: ManuallyDrop<OwnedFd>,
}

impl Uffd {
    /// Opens a descriptor.
    pub(crate) fn open(delivery: Delivery) -> Result<Self, OpenFailure> {
        let (fd, features) = match delivery {
            Delivery::Sigbus => (new_descriptor(USER_MODE_ONLY), FEATURE_SIGBUS),
            Delivery::Messages => (new_descriptor(libc::O_NONBLOCK), 0),
        };
        let fd = fd.or_else(|error| match delivery {
            Delivery::Messages if error.raw_os_error() == Some(libc::EPERM) => from_device(error),
            _ => Err(refused(error)),
        })?;
        let uffd = Self { fd: ManuallyDrop::new(fd) };
        let features = features | FEATURE_PAGEFAULT_FLAG_WP;
        let mut call = ApiCall { api: API, features, ioctls: 0 };
        // SAFETY: the request takes a pointer to an `ApiCall`.
        unsafe { uffd.call(read_write::<ApiCall>(0x3F), &mut call) }
            .map_err(OpenFailure::Unsupported)?;
        Ok(uffd)
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Reports missing pages and stores to protected ones in `start .. start + len` from now on.
    pub(crate) fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let range = range(start, len);
        let mut call = RegisterCall { range, mode: MODE_MISSING | MODE_WP, ioctls: 0 };
        // SAFETY: the request takes a pointer to a `RegisterCall`.
        unsafe { self.call(read_write::<RegisterCall>(0), &mut call) }
    }

    /// Wakes threads waiting for pages of `start .. start + len`. Without such threads it only
    /// checks that the descriptor is still a userfaultfd.
    pub(crate) fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        // SAFETY: the request takes a pointer to a `RangeCall`.
        unsafe { self.call(read::<RangeCall>(2), &mut range(start, len)) }
    }

    /// Fills pages at `to` with a copy of `len` bytes at `from`, write-protected if `protect`.
    /// Returns the number of copied bytes, at least a page.
    ///
    /// # Safety
    /// No references into `to .. to + len` exist that a new page there would contradict.
    pub(crate) unsafe fn copy(
        &self,
        to: usize,
        from: *const u8,
        len: usize,
        protect: bool,
    ) -> io::Result<usize> {
        let mode = if protect { COPY_MODE_WP } else { 0 };
        let (dst, src) = (to as u64, from.addr() as u64);
        let mut call = CopyCall { dst, src, len: len as u64, mode, copied: 0 };
        // SAFETY: the request takes a pointer to a `CopyCall`; the caller answers for its effect on
        // the memory.
        let done = unsafe { self.call(read_write::<CopyCall>(3), &mut call) };
        partial(done, call.copied)
    }

    /// Makes pages of zeroes. As [`copy`](Self::copy).
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn zero(&self, to: usize, len: usize) -> io::Result<usize> {
        let mut call = ZeroCall { range: range(to, len), mode: 0, zeroed: 0 };
        // SAFETY: the request takes a pointer to a `ZeroCall`; the rest is the caller's business.
        let done = unsafe { self.call(read_write::<ZeroCall>(4), &mut call) };
        partial(done, call.zeroed)
    }

    /// Write-protects the present pages, or makes them writable.
    pub(crate) fn protect(&self, start: usize, len: usize, protect: bool) -> io::Result<()> {
        let mode = if protect { WRITEPROTECT_MODE_WP } else { 0 };
        let mut call = ProtectCall { range: range(start, len), mode };
        // SAFETY: the request takes a pointer to a `ProtectCall`.
        unsafe { self.call(read_write::<ProtectCall>(6), &mut call) }
    }

    /// Ends every access to a missing page in SIGBUS (Linux 6.6).
    pub(crate) fn poison(&self, start: usize, len: usize) -> io::Result<()> {
        let mut call = PoisonCall { range: range(start, len), mode: 0, updated: 0 };
        // SAFETY: the request takes a pointer to a `PoisonCall`.
        unsafe { self.call(read_write::<PoisonCall>(8), &mut call) }
    }

    /// The next reported fault; `None` if no message or another one is pending.
    pub(crate) fn read_fault(&self) -> io::Result<Option<FaultMessage>> {
        let mut message = Message::default();
        let place = (&raw mut message).cast();
        // SAFETY: `message` has space for the kernel's bytes, and any bytes are valid.
        let got = unsafe { libc::read(self.as_raw_fd(), place, size_of::<Message>()) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        let is_fault = message.event == EVENT_PAGEFAULT;
        Ok(is_fault.then(|| FaultMessage {
            address: crate::slots::index(message.address),
            is_store: message.flags & (FLAG_WRITE | FLAG_WP) != 0,
            is_present: message.flags & FLAG_WP != 0,
        }))
    }

    /// # Safety
    /// `request` takes a pointer to a `T`.
    unsafe fn call<T>(&self, request: c_ulong, argument: &mut T) -> io::Result<()> {
        // SAFETY: the caller vouches for the type, and the reference is valid for the call.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        const PAGE: usize = 4096;
        // After a close by the program the number may belong to another file: do not close that
        // file.
        let somewhere = std::ptr::from_ref(self).addr() / PAGE * PAGE;
        if self.wake(somewhere, PAGE).is_ok() {
            // SAFETY: dropped only here, and unused afterwards.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn range(start: usize, len: usize) -> RangeCall {
    RangeCall { start: start as u64, len: len as u64 }
}

/// Converts an error after at least one page into the number of bytes done.
fn partial(done: io::Result<()>, bytes: i64) -> io::Result<usize> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => done.map(|()| 0),
    }
}

fn new_descriptor(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags alone.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) };
    owned(fd)
}

fn owned(fd: i64) -> io::Result<OwnedFd> {
    match c_int::try_from(fd) {
        // SAFETY: the kernel has just created this descriptor, and no other code has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a descriptor with faults of kernel accesses by the device file; `error` is the failure of
/// the system call.
fn from_device(error: io::Error) -> Result<OwnedFd, OpenFailure> {
    let Ok(device) = OpenOptions::new().read(true).write(true).open(DEVICE) else {
        return Err(refused(error));
    };
    // SAFETY: the request takes flags alone.
    let fd =
        unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    owned(fd.into()).map_err(refused)
}

fn refused(source: io::Error) -> OpenFailure {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenFailure::Forbidden {
            setting: "the sysctl vm.unprivileged_userfaultfd is 0, this process lacks \
                      CAP_SYS_PTRACE and access to /dev/userfaultfd, or a seccomp filter forbids \
                      the system call",
            source,
        },
        _ => OpenFailure::Unsupported(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_numbers_match_header() {
        assert_eq!(read_write::<ApiCall>(0x3F), 0xC018_AA3F);
        assert_eq!(read_write::<RegisterCall>(0), 0xC020_AA00);
        assert_eq!(read::<RangeCall>(2), 0x8010_AA02);
        assert_eq!(read_write::<CopyCall>(3), 0xC028_AA03);
        assert_eq!(read_write::<ZeroCall>(4), 0xC020_AA04);
        assert_eq!(read_write::<ProtectCall>(6), 0xC018_AA06);
        assert_eq!(read_write::<PoisonCall>(8), 0xC020_AA08);
        assert_eq!(size_of::<Message>(), 32);
    }
}
