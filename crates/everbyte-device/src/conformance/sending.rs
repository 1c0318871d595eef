//! Sends to sockets: large, slow, stalled and closed ones.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::twin::pattern;
use crate::device::{BlockDevice, Fua};
use crate::error::SendError;

/// Far beyond the buffer of a socket.
const LARGE: usize = 4 << 20;

/// Time until a stuck device is reported. The test measures no time.
const STUCK: Duration = Duration::from_secs(60);

pub(super) fn run(make: &dyn Fn(u64) -> Arc<dyn BlockDevice>) {
    let device = make(2 * LARGE as u64);
    let data = pattern(9, LARGE);
    check("filling the device", device.write(4096, &data, Fua::No));
    slow(&*device, &data);
    stalled(&device, &data);
    closed(&*device);
}

fn check<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("conformance, sending: {what}: {error}"))
}

/// A reader of small pieces gets every byte once, in order, unaligned start included.
fn slow(device: &dyn BlockDevice, data: &[u8]) {
    let (near, mut far) = check("socket pair", UnixStream::pair());
    let received = thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut received = Vec::new();
            let mut piece = vec![0; 30_011];
            while let Ok(count @ 1..) = far.read(&mut piece) {
                received.extend_from_slice(&piece[..count]);
                if received.len() % 7 == 0 {
                    thread::yield_now();
                }
            }
            received
        });
        check("large send", crate::send(&*device, (4099, LARGE - 3), b"the prefix", near.as_fd()));
        drop(near);
        reader.join().unwrap_or_default()
    });
    assert_eq!(received.len(), 10 + LARGE - 3, "conformance, sending: bytes received");
    assert!(&received[..10] == b"the prefix", "conformance, sending: the prefix differs");
    assert!(received[10..] == data[3..], "conformance, sending: a large send differs");
}

/// A stalled receiver delays neither writers of the same range nor readers.
fn stalled(device: &Arc<dyn BlockDevice>, data: &[u8]) {
    let (near, mut far) = check("socket pair", UnixStream::pair());
    let sender = {
        let device = Arc::clone(device);
        thread::spawn(move || crate::send(&*device, (4096, LARGE), b"", near.as_fd()))
    };
    // One byte means that the send is under way.
    let mut received = vec![0; 1];
    check("first byte", far.read_exact(&mut received));
    let (done, wait) = mpsc::channel();
    let writer = {
        let device = Arc::clone(device);
        let new = vec![2; LARGE];
        thread::spawn(move || {
            let written = device.write(4096, &new, Fua::No);
            let read = device.read(4096, &mut [0; 4096]);
            // If the device was stuck, the receiver of this channel is gone.
            let _ = done.send(written.and(read));
        })
    };
    let Ok(result) = wait.recv_timeout(STUCK) else {
        panic!("conformance, sending: a receiver that does not read stops a writer");
    };
    check("write beside a stalled send", result);
    check("rest of the stalled send", far.read_to_end(&mut received));
    check("stalled send", sender.join().unwrap_or_else(|_| panic!("the sender panicked")));
    assert!(writer.join().is_ok(), "conformance, sending: the writer panicked");
    assert_eq!(received.len(), LARGE, "conformance, sending: bytes of the stalled send");
    for (number, (got, old)) in received.chunks(4096).zip(data.chunks(4096)).enumerate() {
        assert!(
            got == old || got.iter().all(|&byte| byte == 2),
            "conformance, sending: block {number} of the stalled send is neither old nor new"
        );
    }
}

/// A closed receiver is a socket error. The device still serves requests.
fn closed(device: &dyn BlockDevice) {
    let (near, far) = check("socket pair", UnixStream::pair());
    drop(far);
    let result = crate::send(device, (0, LARGE), b"prefix", near.as_fd());
    assert!(
        matches!(result, Err(SendError::Socket(_))),
        "conformance, sending: a closed socket gave {result:?}"
    );
    check("reading after a closed socket", device.read(0, &mut [0; 4096]));
}
