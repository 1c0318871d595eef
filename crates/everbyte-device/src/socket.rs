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
