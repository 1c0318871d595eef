//! Whole messages over a stream socket, with or without a deadline and a cancelling handle.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::cancel::{Cancel, Cancelled};

/// Probes of a silent TCP connection before it fails.
const PROBES: u32 = 5;

/// Lets a TCP connection fail if its peer has neither sent nor taken anything for `silence`, in
/// whole seconds and at least 10 s. The kernel probes after half of this time.
///
/// # Errors
/// The socket's.
pub(crate) fn notice_silence(socket: impl AsFd, silence: Duration) -> rustix::io::Result<()> {
    // The interval between probes is a tenth of this, and the kernel takes whole seconds. Its
    // longest idle time is 32767 s.
    let seconds = u32::try_from(silence.as_secs()).unwrap_or(u32::MAX).clamp(10, 10_000);
    let silence = Duration::from_secs(seconds.into());
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, silence / 2)?;
    sockopt::set_tcp_keepintvl(&socket, silence / (2 * PROBES))?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    // For untaken bytes, while no probe is sent.
    sockopt::set_tcp_user_timeout(&socket, seconds * 1000)
}

/// Receives arrived bytes, at most `out.len()`, and waits for the first. Zero bytes mean that the
/// peer has closed.
///
/// # Errors
/// The socket's.
pub(crate) fn recv_some(socket: BorrowedFd<'_>, out: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *out, RecvFlags::empty()) {
            Ok((count, _)) => return Ok(count),
            // A signal to the process does not end a connection.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives bytes without waiting: `None` if nothing has arrived.
///
/// # Errors
/// The socket's.
pub(crate) fn recv_now(socket: BorrowedFd<'_>, out: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(socket, &mut *out, RecvFlags::DONTWAIT) {
        Ok((count, _)) => Ok(Some(count)),
        // An interruption needs no loop here: each caller waits and tries again.
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Like `recv_some`, waiting for at most `limit` if there is one.
///
/// # Errors
/// The socket's, and `TimedOut`.
pub(crate) fn recv_within(
    socket: BorrowedFd<'_>,
    out: &mut [u8],
    limit: Option<Duration>,
) -> io::Result<usize> {
    let Some(limit) = limit else { return recv_some(socket, out) };
    let deadline = Instant::now() + limit;
    loop {
        // Tried before the first wait: arrived bytes save the call of `poll`.
        if let Some(count) = recv_now(socket, out)? {
            return Ok(count);
        }
        wait(socket, PollFlags::IN, Some(deadline), None)?;
    }
}

/// Waits for one of `events`, or an error.
///
/// # Errors
/// `TimedOut` once `deadline` has passed, `Cancelled`.
pub(crate) fn wait(
    socket: impl AsFd,
    events: PollFlags,
    deadline: Option<Instant>,
    cancel: Option<&Cancel>,
) -> io::Result<PollFlags> {
    let socket = PollFd::from_borrowed_fd(socket.as_fd(), events);
    let polled = match cancel {
        Some(cancel) => &mut [socket, PollFd::from_borrowed_fd(cancel.fd(), PollFlags::IN)][..],
        None => &mut [socket][..],
    };
    loop {
        let timeout = match deadline {
            None => None,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let reason = "the other side did nothing in time";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
                }
                Timespec::try_from(left).ok()
            }
        };
        match poll(polled, timeout.as_ref()) {
            // The next round computes the remaining time, and reports the deadline.
            Ok(0) | Err(Errno::INTR) => {}
            // A cancelled wait ends even if bytes have arrived: its caller wants none.
            Ok(_) if polled.get(1).is_some_and(|cancel| !cancel.revents().is_empty()) => {
                return Err(Cancelled.into());
            }
            Ok(_) => return Ok(polled[0].revents()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns true if the socket was shut on both sides, or has failed.
pub(crate) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    // Without requested events `poll` reports only a hang-up and errors. Unread bytes do not count.
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Sleeps for `time`.
///
/// # Errors
/// `Cancelled`, as soon as the handle is cancelled.
pub(crate) fn nap(time: Duration, cancel: Option<&Cancel>) -> io::Result<()> {
    let Some(cancel) = cancel else {
        std::thread::sleep(time);
        return Ok(());
    };
    // Only `cancel` makes this descriptor readable, so the timeout is the normal end.
    match wait(cancel.fd(), PollFlags::IN, Some(Instant::now() + time), None) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Cancelled.into()),
    }
}

/// A socket with a deadline and a cancelling handle.
#[derive(Clone, Copy)]
pub(crate) struct Wire<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    /// The moment when waiting ends with `TimedOut`; `None` is never.
    pub(crate) deadline: Option<Instant>,
    /// The handle that ends waiting with `Cancelled`.
    pub(crate) cancel: Option<&'a Cancel>,
}

impl Wire<'_> {
    /// Receives arrived bytes, and waits for the first. `None` means that the peer has closed.
    ///
    /// # Errors
    /// The socket's, `TimedOut` at the deadline, `Cancelled`.
    pub(crate) fn recv_some(&self, out: &mut [u8]) -> io::Result<usize> {
        // A receive that blocks is one system call. A poll and a receive are two.
        if self.deadline.is_none() && self.cancel.is_none() {
            return recv_some(self.socket, out);
        }
        loop {
            if let Some(count) = recv_now(self.socket, out)? {
                return Ok(count);
            }
            wait(self.socket, PollFlags::IN, self.deadline, self.cancel)?;
        }
    }

    /// Fills `out`.
    ///
    /// # Errors
    /// As `recv_some`, and `UnexpectedEof`. At the deadline it ends, however steadily the bytes
    /// arrive.
    pub(crate) fn recv_exact(&self, mut out: &mut [u8]) -> io::Result<()> {
        while !out.is_empty() {
            // A peer that sends single bytes never lets `recv_some` wait, so the deadline is also
            // checked here.
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.recv_some(out)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => out = &mut out[count..],
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
    /// The socket's, `TimedOut` at the deadline, `Cancelled`.
    pub(crate) fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            // `send` itself must not wait: a full socket would hold it beyond the deadline. Without
            // `NOSIGNAL` a closed peer could end the process by SIGPIPE.
            wait(self.socket, PollFlags::OUT, self.deadline, self.cancel)?;
            match send(self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn silent_peer_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (asked, seconds) in [(60, 60), (20, 20), (0, 10)] {
            notice_silence(&socket, Duration::from_secs(asked)).unwrap();
            assert!(sockopt::socket_keepalive(&socket).unwrap());
            let probed =
                sockopt::tcp_keepintvl(&socket).unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
            let silence = sockopt::tcp_keepidle(&socket).unwrap() + probed;
            assert_eq!(silence, Duration::from_secs(seconds));
            assert_eq!(
                sockopt::tcp_user_timeout(&socket).unwrap(),
                u32::try_from(seconds).unwrap() * 1000
            );
        }
    }
}
