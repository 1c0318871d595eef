//! Blocking sends on a stream socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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

/// Time without progress after which a peer has stalled.
const STALL: Duration = Duration::from_millis(100);
/// A peer has stalled, too, if it takes fewer bytes per second.
const SLOW_BYTES_PER_S: u64 = 1 << 20;

/// Sends until the peer stalls, and returns the number of bytes.
///
/// # Errors
/// The socket's.
pub(crate) fn send_until_stall(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let since = Instant::now();
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(STALL.subsec_nanos()) };
    let mut sent = 0;
    while sent < bytes.len() {
        // Without a wait in the kernel: the time of a stall is measured here.
        match send(socket, &bytes[sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => sent += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                // The time that a peer at the lowest accepted rate takes for these bytes.
                let due = Duration::from_millis(sent as u64 * 1000 / SLOW_BYTES_PER_S);
                if since.elapsed() > STALL + due {
                    break;
                }
                let mut polled = [PollFd::new(&socket, PollFlags::OUT)];
                match poll(&mut polled, Some(&timeout)) {
                    // The socket had no room for the whole timeout.
                    Ok(0) => break,
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}
