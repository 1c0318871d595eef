//! Sends of a device's bytes to a socket.

use std::io;
use std::os::fd::BorrowedFd;

use crate::device::{BlockDevice, check_range};
use crate::error::{DeviceError, SendError};

/// Most bytes in memory for a peer that has stalled.
const HELD_MAX: usize = 2 << 20;

/// Bytes of a block. No read may see a block half written.
const BLOCK_BYTES: u64 = 4096;

/// Sends `prefix` and then `len` bytes of `device` from `offset` on to `socket`. Blocks until all bytes are
/// sent. Uses the device's [`Transport`](crate::Transport) if it has one, and a copy otherwise.
///
/// # Errors
/// `Device` if the read fails: no byte was sent. Otherwise `Socket`.
pub fn send<D: BlockDevice + ?Sized>(
    device: &D,
    (offset, len): (u64, usize),
    prefix: &[u8],
    socket: BorrowedFd<'_>,
) -> Result<(), SendError> {
    if let Some(transport) = device.transport() {
        return transport.send(offset, len, prefix, socket);
    }
    check_range(offset, len as u64, device.geometry().size_bytes)?;
    read_and_send(|at, out| device.read(at, out), (offset, len), prefix, socket)
}

/// Sends the range `offset`, `len` by a copy. `read` gets the offset of each piece. The caller has
/// checked the range, so the size of the device bounds the memory.
///
/// All bytes are read before the first byte is sent, because the protocol reports errors only before data. If the
/// peer stalls, all memory but a part is freed, and the rest is read again later. So a peer that requests much
/// and takes nothing cannot exhaust the memory. Parts end at blocks, so each block is a snapshot.
fn read_and_send(
    read: impl Fn(u64, &mut [u8]) -> Result<(), DeviceError>,
    (offset, len): (u64, usize),
    prefix: &[u8],
    socket: BorrowedFd<'_>,
) -> Result<(), SendError> {
    let mut message = vec![0; prefix.len() + len];
    message[..prefix.len()].copy_from_slice(prefix);
    read(offset, &mut message[prefix.len()..])?;
    // A quick peer gets everything from memory, without a second read of the device.
    let mut sent = crate::socket::send_until_stall(socket, &message)?;
    let total = message.len();
    // The limit for a stalled peer allows this much, so nothing is read again.
    if total - sent <= HELD_MAX {
        crate::socket::send_all(socket, &message[sent..])?;
        return Ok(());
    }
    let device_offset = |at: usize| offset + (at - prefix.len()) as u64;
    let part_end = |from: usize| {
        let end = total.min(from.saturating_add(HELD_MAX));
        let beyond = if end == total { 0 } else { device_offset(end) % BLOCK_BYTES };
        end - usize::try_from(beyond).unwrap_or(0)
    };
    // The prefix is in this part: it cannot be read again.
    let mut part = message[sent..part_end(sent.max(prefix.len()))].to_vec();
    // Before the wait: a stalled peer may take nothing for hours.
    drop(message);
    loop {
        crate::socket::send_all(socket, &part)?;
        sent += part.len();
        if sent == total {
            return Ok(());
        }
        part.resize(part_end(sent) - sent, 0);
        // Bytes have gone out, so only the end of the connection can report the error.
        read(device_offset(sent), &mut part)
            .map_err(|error| SendError::Socket(io::Error::other(error)))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_peer_gets_all_bytes_later() {
        use std::io::Read;
        use std::os::fd::AsFd;
        use std::os::unix::net::UnixStream;

        const LEN: usize = 9 << 20;
        let bytes = |from: u64| u8::try_from(from / 1000 % 251).unwrap();
        let longest = std::sync::Mutex::new(Vec::new());
        let (near, mut far) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let read = |from: u64, out: &mut [u8]| {
                    longest.lock().unwrap().push(out.len());
                    let places = out.iter_mut().zip(from..);
                    places.for_each(|(byte, at)| *byte = bytes(at));
                    Ok(())
                };
                read_and_send(read, (0, LEN), b"prefix", near.as_fd()).unwrap();
            });
            // The sender reads again when the peer has stalled.
            while longest.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(400));
            let mut got = vec![0; LEN + 6];
            far.read_exact(&mut got).unwrap();
            assert_eq!(&got[..6], b"prefix");
            assert!(got[6..].iter().zip(0..).all(|(&byte, at)| byte == bytes(at)));
            sending.join().unwrap();
        });
        let longest = longest.into_inner().unwrap();
        assert_eq!(longest[0], LEN);
        assert!(longest.len() > 1, "a stalled peer frees memory");
        assert!(longest[1..].iter().all(|&len| len <= HELD_MAX), "{longest:?}");
    }

    #[test]
    fn reading_peer_causes_one_read() {
        use std::io::Read;
        use std::os::fd::AsFd;
        use std::os::unix::net::UnixStream;
        use std::sync::atomic::{AtomicUsize, Ordering};

        const LEN: usize = 16 << 20;
        let reads = AtomicUsize::new(0);
        let (near, mut far) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut got = vec![0; LEN + 6];
                far.read_exact(&mut got).unwrap();
                assert!(got[6..].iter().all(|&byte| byte == 7));
            });
            let read = |_, out: &mut [u8]| {
                reads.fetch_add(1, Ordering::Relaxed);
                out.fill(7);
                Ok(())
            };
            read_and_send(read, (0, LEN), b"prefix", near.as_fd()).unwrap();
        });
        assert_eq!(reads.into_inner(), 1);
    }
}
