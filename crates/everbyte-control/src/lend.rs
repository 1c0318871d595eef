//! Leases over the control socket: how the descriptor of a lease gets from the server to a program.
//!
//! Descriptors travel with requests only, so a program that wants one back sends one end of a pair of
//! sockets of its own. Invariants: the server learns from the kernel which process made the pair; a
//! descriptor that nobody receives is closed with the pair, and what it has locked is free again.

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
use crate::server::Refused;

/// Longest time that the descriptor may take once the server has said that it was sent.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(10);
/// The first words of a server's answer to a request that it does not know.
const UNKNOWN_REQUEST: &str = "this is no request";

/// Runs of a swap volume that this process was lent.
#[derive(Debug)]
pub struct Borrowed {
    /// The pool's file, in a description that has the locks of `ranges`. They last as long as it or a
    /// mapping of it does.
    pub file: File,
    /// Bytes of the file that may be used, ascending.
    pub ranges: Vec<Range<u64>>,
}

impl ControlClient {
    /// Borrows up to `bytes` bytes of the swap volume `volume`, at least one run of 2 MiB.
    ///
    /// # Errors
    /// `Refused` if nothing is free, there is no such volume, or the server is of an older version; else
    /// as [`ControlClient::call`]. Nothing is lent then for longer than this connection lives.
    pub fn borrow_runs(&mut self, volume: &str, bytes: u64) -> Result<Borrowed, ControlError> {
        let (ours, theirs) = UnixStream::pair()
            .map_err(|error| Refused::new(format!("cannot make a pair of sockets: {error}")))?;
        let request = Request::Lend { volume: volume.to_owned(), bytes };
        let answer = self.call_attached(request, &[], Some(theirs.as_fd()));
        // If the server has gone, nobody else has the other end.
        drop(theirs);
        match answer.map_err(explain)? {
            (Response::Lent { ranges }, _) => {
                let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
                if !are_ranges(&ranges) {
                    return Err(self.nonsense(format!("{ranges:?} cannot have been lent")));
                }
                let descriptor = receive_descriptor(&ours).map_err(|source| self.broken(source))?;
                Ok(Borrowed { file: File::from(descriptor), ranges })
            }
            (other, _) => Err(self.nonsense(format!("it is no lease: {other:?}"))),
        }
    }
}

/// True if these are ranges of at least a byte, ascending.
fn are_ranges(ranges: &[Range<u64>]) -> bool {
    let follow = ranges.windows(2).all(|two| two[0].end <= two[1].start);
    !ranges.is_empty() && follow && ranges.iter().all(|range| range.start < range.end)
}

/// A server of an older version answers in words that say nothing to who wants memory.
fn explain(error: ControlError) -> ControlError {
    match error {
        ControlError::Refused(refused) if refused.reason.starts_with(UNKNOWN_REQUEST) => {
            Refused::new(
                "the pool's server is of an older version, which lends nothing: serve the pool \
                 with this version",
            )
            .into()
        }
        error => error,
    }
}

/// The process that made the pair of sockets of which `socket` is one end.
///
/// # Errors
/// It is no socket, or is connected to nothing.
pub fn maker_of(socket: &UnixStream) -> io::Result<u32> {
    let pid = peer_of(socket)?.pid;
    u32::try_from(pid).map_err(|_| io::ErrorKind::NotConnected.into())
}

/// Sends a descriptor through a socket, without waiting.
///
/// # Errors
/// The system's: nobody can receive it.
pub fn send_descriptor(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(b"d")], &mut ancillary, flags)?;
    Ok(())
}

fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    socket.set_read_timeout(Some(ARRIVAL_TIME_MAX))?;
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = ancillary.drain();
    let descriptor = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
