//! Whole messages over a stream socket, with or without a deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Receives what has arrived, at most `out.len()` bytes, waiting for the first. Zero bytes mean
/// that the peer has closed.
///
/// # Errors
/// The socket's.
pub(crate) fn recv_some(socket: BorrowedFd<'_>, out: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *out, RecvFlags::empty()) {
            Ok((count, _)) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same without waiting: `None` if nothing has arrived.
///
/// # Errors
/// The socket's.
pub(crate) fn recv_now(socket: BorrowedFd<'_>, out: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(socket, &mut *out, RecvFlags::DONTWAIT) {
        Ok((count, _)) => Ok(Some(count)),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Fills `out`, waiting as long as it takes.
///
/// # Errors
/// The socket's, and `UnexpectedEof` if the peer closes before.
pub(crate) fn recv_exact(socket: BorrowedFd<'_>, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match recv_some(socket, out)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => out = &mut out[count..],
        }
    }
    Ok(())
}

/// Waits until one of `events` is there, or an error.
///
/// # Errors
/// `TimedOut` once `deadline` has passed.
pub(crate) fn wait(
    socket: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<PollFlags> {
    loop {
        let timeout = match deadline {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Timespec::try_from(left).ok()
            }
        };
        let mut polled = [PollFd::from_borrowed_fd(socket, events)];
        match poll(&mut polled, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(polled[0].revents()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A socket that is used up to a deadline.
pub(crate) struct Wire<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    /// When waiting ends with `TimedOut`; `None` is never.
    pub(crate) deadline: Option<Instant>,
}

impl Wire<'_> {
    /// Fills `out`.
    ///
    /// # Errors
    /// The socket's, `UnexpectedEof`, and `TimedOut` at the deadline, however steadily the bytes
    /// arrive.
    pub(crate) fn recv_exact(&self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            wait(self.socket, PollFlags::IN, self.deadline)?;
            match recv(self.socket, &mut *out, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, _)) => out = &mut out[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives an array.
    ///
    /// # Errors
    /// As `recv_exact`.
    pub(crate) fn recv_array<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.recv_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The socket's, and `TimedOut` at the deadline.
    pub(crate) fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            wait(self.socket, PollFlags::OUT, self.deadline)?;
            match send(self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
