//! Leases over the control socket: a server with arbitrary answers to a request for one.
//!
//! Oracle: a client takes a lease exactly if the server's line grants it with usable ranges, and a
//! descriptor came. The ranges are the line's. It never waits in vain.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use arbitrary::Arbitrary;
use everbyte_control::{ControlClient, PROTOCOL_VERSION, Response, send_descriptor};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::socket::{SAID_MAX, peer_saying};
use crate::story;

/// A server's answer to a request for a lease.
#[derive(Debug, Arbitrary)]
struct Story {
    sends: bool,
    /// The ranges are put into a possible order, of so many MiB each.
    is_sound: bool,
    damage: Option<(u16, u8)>,
    /// Bytes instead of an answer.
    raw: Option<Vec<u8>>,
    ranges: Vec<(u64, u64)>,
}

impl Story {
    fn line(&self) -> Vec<u8> {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let response = Response::Lent { ranges: self.ranges() };
        let answer = json!({ "version": PROTOCOL_VERSION, "response": response });
        let mut line = serde_json::to_vec(&answer).unwrap();
        if let Some((at, flip)) = self.damage {
            let at = usize::from(at) % line.len();
            // One byte of a sound line reaches checks that raw bytes seldom pass.
            line[at] ^= flip;
        }
        line.push(b'\n');
        line
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        if !self.is_sound {
            return self.ranges.clone();
        }
        let mut end = 0;
        let sound = self.ranges.iter().map(|(gap, len)| {
            let start = end + ((gap % 16) << 21);
            end = start + ((len % 15 + 1) << 21);
            (start, end)
        });
        sound.collect()
    }
}

/// Lets a client borrow runs from a server with the answer encoded by `bytes`.
///
/// # Panics
/// If a promise is broken.
pub fn lease(bytes: &[u8]) {
    let Some(story) = story::<Story>(bytes) else { return };
    let line = story.line();
    let said = &line[..line.len().min(SAID_MAX)];
    let (near, far) = peer_saying(said);
    let sends = story.sends;
    // The client blocks until the descriptor comes, so the peer needs its own thread.
    let peer = std::thread::spawn(move || answer(&far, sends));
    let borrowed = ControlClient::over(near, PathBuf::from("pool.sock")).borrow_runs("v", 1 << 21);
    peer.join().unwrap();
    let understood = said.split_inclusive(|&byte| byte == b'\n').next().and_then(ranges_said);
    match borrowed {
        Ok(lease) => {
            let ranges: Vec<_> =
                lease.ranges.iter().map(|range| (range.start, range.end)).collect();
            // A lease without its descriptor has no lock, so its runs could be lent twice (L1).
            assert!(sends, "there was no descriptor");
            assert_eq!(Some(&ranges), understood.as_ref(), "of another answer");
            assert!(are_usable(&ranges), "{ranges:?} cannot have been lent");
        }
        Err(error) => {
            drop(error.to_string());
            let is_plain = story.raw.is_none() && story.damage.is_none();
            // Only an unchanged answer obliges: damage may be refused even if it leaves a sound
            // line.
            let must = is_plain && sends && understood.is_some_and(|ranges| are_usable(&ranges));
            assert!(!must, "a sound lease is refused: {error}");
        }
    }
}

/// The lent ranges of a line.
fn ranges_said(line: &[u8]) -> Option<Vec<(u64, u64)>> {
    let line: Value = serde_json::from_slice(line).ok()?;
    match serde_json::from_value(line["response"].clone()).ok()? {
        Response::Lent { ranges } => Some(ranges),
        _ => None,
    }
}

fn are_usable(ranges: &[(u64, u64)]) -> bool {
    let ascend = ranges.windows(2).all(|two| two[0].1 <= two[1].0);
    !ranges.is_empty() && ascend && ranges.iter().all(|(start, end)| start < end)
}

/// Takes the request, and sends a descriptor through its socket.
fn answer(far: &UnixStream, sends: bool) {
    // The request may not have been sent yet.
    far.set_nonblocking(false).unwrap();
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let heard = recvmsg(far, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    if heard.is_err() || !sends {
        return;
    }
    for message in ancillary.drain() {
        let RecvAncillaryMessage::ScmRights(sockets) = message else { continue };
        for socket in sockets {
            let file = File::open("/dev/null").unwrap();
            // The client may have gone by now.
            let _ = send_descriptor(&UnixStream::from(socket), file.as_fd());
        }
    }
}
