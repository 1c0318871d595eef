//! Notices of a changed size to the virtual machine, on its channel for requests of the server.
//!
//! The crate `vhost` takes the descriptor of this channel and has no message for the notice. So the descriptor is
//! duplicated from the waiting message before the crate receives it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use everbyte_device::BlockDevice;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg,
    sendmsg,
};

/// Time between two looks at the size.
const LOOK: Duration = Duration::from_secs(1);

/// The number of `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// The number of `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;
/// The version in the flags of a message.
const VERSION: u32 = 1;

/// The notices of one connection.
#[derive(Default)]
pub(crate) struct SizeNotices {
    channel: Option<OwnedFd>,
    size_bytes: u64,
}

impl SizeNotices {
    /// Takes the channel from the message that waits in `socket`, if it brings one.
    pub(crate) fn look_at(&mut self, socket: BorrowedFd<'_>, device: &dyn BlockDevice) {
        if let Some(channel) = waiting_channel(socket) {
            self.channel = Some(channel);
            self.size_bytes = device.geometry().size_bytes;
        }
    }

    /// Longest wait until the next call of `send`; `None` is for ever.
    pub(crate) fn look_time(&self) -> Option<Duration> {
        self.channel.as_ref().map(|_| LOOK)
    }

    /// Sends a notice if the size has changed since the last one.
    pub(crate) fn send(&mut self, device: &dyn BlockDevice) {
        let size_bytes = device.geometry().size_bytes;
        let Some(channel) = &self.channel else { return };
        if size_bytes == self.size_bytes {
            return;
        }
        let message: Vec<u8> =
            [CONFIG_CHANGE, VERSION, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let (pieces, mut none) = ([IoSlice::new(&message)], SendAncillaryBuffer::default());
        match sendmsg(channel.as_fd(), &pieces, &mut none, flags) {
            Ok(_) => self.size_bytes = size_bytes,
            // It has not read earlier ones; the next look tries again.
            Err(rustix::io::Errno::AGAIN) => {}
            // Not a socket, or closed.
            Err(_) => self.channel = None,
        }
    }
}

/// Duplicates the descriptor of a waiting `SET_BACKEND_REQ_FD`. The message stays.
fn waiting_channel(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut number = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut number)], &mut ancillary, flags).ok()?;
    // Descriptors of other messages are closed here.
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let channel = descriptors.flatten().next();
    let is_channel = received.bytes == 4 && u32::from_ne_bytes(number) == SET_BACKEND_REQ_FD;
    channel.filter(|_| is_channel)
}
