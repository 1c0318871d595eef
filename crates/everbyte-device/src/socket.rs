//! Blocking sends on a stream socket.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::net::{SendFlags, send};

/// Sends all of `bytes`, blocking as long as it takes.
///
/// # Errors
/// The socket's; some of `bytes` may have been sent. A closed peer is an error, not a signal.
pub fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sends what the socket takes without waiting, and returns the number of bytes.
///
/// # Errors
/// The socket's.
pub(crate) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(socket, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => sent += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}
