//! A connected pair of sockets used by one thread: the peer says everything before the other side
//! runs, and the answers wait in the socket.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// Most bytes of a peer: they and their answers must fit in the sockets' buffers.
pub(crate) const SAID_MAX: usize = 32 << 10;

/// Requested size of a socket's buffer.
const BUFFER_LEN: usize = 1 << 20;

/// Makes a peer and the receiving socket. The peer has sent `bytes`, and sends no more.
pub(crate) fn peer_saying(bytes: &[u8]) -> (UnixStream, UnixStream) {
    let (near, mut far) = UnixStream::pair().unwrap();
    // One thread plays both sides. A full buffer would block it forever.
    for end in [&near, &far] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, BUFFER_LEN).unwrap();
    }
    far.write_all(&bytes[..bytes.len().min(SAID_MAX)]).unwrap();
    // The other side sees the end, so it never waits for more.
    far.shutdown(Shutdown::Write).unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

/// Appends the arrived bytes of `end` to `heard`.
pub(crate) fn drain(mut end: &UnixStream, heard: &mut Vec<u8>) {
    match end.read_to_end(heard) {
        Ok(_) => {}
        Err(error)
            // The other side may close with unread bytes, which resets the connection.
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset) => {}
        Err(error) => panic!("the socket failed: {error}"),
    }
}
