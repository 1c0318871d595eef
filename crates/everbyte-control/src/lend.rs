//! Leases over the control socket: how the descriptor of a lease gets from the server to a program.
//!
//! Descriptors travel only with requests, so a program that wants a descriptor sends one end of its
//! own pair of sockets. Invariants: the server learns from the kernel the process that made the
//! pair. A descriptor that is not received is closed with the pair, and its locked runs become
//! free.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::client::{ControlClient, ControlError};
use crate::credentials::peer_of;
use crate::message::{Request, Response};
use crate::server::RequestError;

/// Longest time for the descriptor after the server has confirmed its dispatch.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(10);
/// The first words of a server's answer to an unknown request.
const UNKNOWN_REQUEST: &str = "this is no request";

/// Runs of a swap volume lent to this process.
#[derive(Debug)]
pub struct Borrowed {
    /// The pool's file, in a description with the locks of `ranges`. They last as long as the
    /// description or a mapping of it.
    pub file: File,
    /// Usable bytes of the file, ascending.
    pub ranges: Vec<Range<u64>>,
}

impl ControlClient {
    /// Borrows up to `bytes` bytes of the swap volume `volume`, at least one run of 2 MiB.
    ///
    /// # Errors
    /// `Refused` if no run is free, the volume is missing, or the server is of an older version;
    /// else as [`ControlClient::call`]. After an error, any lease ends with this connection.
    pub fn borrow_runs(&mut self, volume: &str, bytes: u64) -> Result<Borrowed, ControlError> {
        // The kernel notes the process that makes the pair, so the server learns the borrower from
        // it.
        let (ours, theirs) = UnixStream::pair().map_err(|error| {
            RequestError::new(format!("cannot make a pair of sockets: {error}"))
        })?;
        let request = Request::Lend { volume: volume.to_owned(), bytes };
        let answer = self.call_attached(request, &[], Some(theirs.as_fd()));
        // If the server has ended, no process has the other end.
        drop(theirs);
        match answer.map_err(explain)? {
            (Response::Lent { ranges }, _) => {
                let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
                // The caller maps these ranges writable, so overlapping ones would be used twice.
                if !are_ranges(&ranges) {
                    return Err(self.nonsense(format!("{ranges:?} cannot have been lent")));
                }
                // After the answer: a refusal sends no descriptor, and this would wait for one.
                let descriptor = receive_descriptor(&ours).map_err(|source| self.broken(source))?;
                Ok(Borrowed { file: File::from(descriptor), ranges })
            }
            (other, _) => {
                Err(self.nonsense(format!("unexpected answer to a lease request: {other:?}")))
            }
        }
    }
}

/// True if these are ranges of at least a byte, ascending.
fn are_ranges(ranges: &[Range<u64>]) -> bool {
    let follow = ranges.windows(2).all(|two| two[0].end <= two[1].start);
    !ranges.is_empty() && follow && ranges.iter().all(|range| range.start < range.end)
}

/// A server of an older version answers in words that do not help a borrower.
fn explain(error: ControlError) -> ControlError {
    match error {
        // An older server knows no cause for this, so its words are compared.
        ControlError::Refused(refused) if refused.reason.starts_with(UNKNOWN_REQUEST) => {
            RequestError::new(
                "the pool's server is of an older version, which lends nothing: serve the pool \
                 with this version",
            )
            .into()
        }
        error => error,
    }
}

/// The process that made the pair of sockets with the end `socket`.
///
/// # Errors
/// It is not a socket, or is not connected.
pub fn maker_of(socket: &UnixStream) -> io::Result<u32> {
    let pid = peer_of(socket)?.pid;
    u32::try_from(pid).map_err(|_| io::ErrorKind::NotConnected.into())
}

/// Sends a descriptor through a socket, without waiting.
///
/// # Errors
/// The system's: no process can receive it.
pub fn send_descriptor(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    // The receiver's queue is its own choice, and must not hold the server's thread.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    // A stream socket passes descriptors with data only, so one byte goes with it.
    sendmsg(socket, &[IoSlice::new(b"d")], &mut ancillary, flags)?;
    Ok(())
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    socket.set_read_timeout(Some(ARRIVAL_TIME_MAX))?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    // Close-on-exec atomically: a child that inherits the descriptor would keep the lease.
    recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = ancillary.drain();
    let descriptor = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
