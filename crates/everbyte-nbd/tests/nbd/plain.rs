//! A simple server: simple replies, and the features chosen by a test. Its kind can change from one
//! connection to the next.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

const HAS_FLAGS: u16 = 1;
pub(crate) const FLUSH: u16 = 1 << 2;
pub(crate) const FUA: u16 = 1 << 3;
pub(crate) const ZEROES: u16 = 1 << 6;

/// The server's behaviour towards its next clients.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Transmission flags, except the one that announces flags.
    pub(crate) flags: u16,
    /// Smallest and largest block.
    pub(crate) blocks: (u32, u32),
    /// Requests of a connection after which it stops answering.
    pub(crate) silent_after: usize,
    /// Answered requests of a connection after which it closes.
    pub(crate) closes_after: usize,
    /// Error number for requests with FUA, which it does not execute, while it loses unflushed
    /// writes; 0 for none.
    pub(crate) fua_errno: u32,
    /// True if it uses structured replies, and answers a request with endless empty chunks.
    pub(crate) floods: bool,
    /// True if it says nothing at all.
    pub(crate) is_mute: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Self {
            flags: FLUSH | FUA | ZEROES,
            blocks: (1, 32 << 20),
            silent_after: usize::MAX,
            closes_after: usize::MAX,
            fua_errno: 0,
            floods: false,
            is_mute: false,
        }
    }
}

pub(crate) struct PlainServer {
    pub(crate) kind: Mutex<Kind>,
    /// The visible bytes, and the flushed ones.
    pub(crate) bytes: Mutex<(Vec<u8>, Vec<u8>)>,
    /// Requests, as command, offset, length.
    pub(crate) requests: Mutex<Vec<(u16, u64, u32)>>,
    pub(crate) connections: AtomicUsize,
    folder: tempfile::TempDir,
}

impl PlainServer {
    pub(crate) fn new(size_bytes: u64, kind: Kind) -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let size = usize::try_from(size_bytes).unwrap();
        let plain = Arc::new(Self {
            kind: Mutex::new(kind),
            bytes: Mutex::new((vec![0; size], vec![0; size])),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            folder,
        });
        let shared = Arc::clone(&plain);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        plain
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///x?socket={}/s", self.folder.path().display())
    }

    /// `None` once the client has left.
    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        let kind = *self.kind.lock();
        if kind.is_mute {
            return std::io::copy(&mut stream, &mut std::io::sink()).ok().map(drop);
        }
        self.negotiate(&mut stream, &kind)?;
        for done in 0.. {
            if done == kind.closes_after {
                return None;
            }
            let request = take(&mut stream, 28)?;
            if done >= kind.silent_after {
                return std::io::copy(&mut stream, &mut std::io::sink()).ok().map(drop);
            }
            if kind.floods {
                let magic = 0x668e_33ef_u32.to_be_bytes();
                let chunk = [&magic[..], &[0; 4], &request[8..16], &[0; 4]].concat();
                let chunks = chunk.repeat(1024);
                while stream.write_all(&chunks).is_ok() {}
                return None;
            }
            let answer = self.answer(&mut stream, &kind, &request)?;
            stream.write_all(&answer).ok()?;
        }
        None
    }

    fn negotiate(&self, stream: &mut UnixStream, kind: &Kind) -> Option<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").ok()?;
        take(stream, 4)?;
        loop {
            let header = take(stream, 16)?;
            let option = u32::from_be_bytes(header[8..12].try_into().unwrap());
            let len = u32::from_be_bytes(header[12..].try_into().unwrap());
            take(stream, len as usize)?;
            if option == 8 && kind.floods {
                stream.write_all(&reply(option, 1, &[])).ok()?;
                continue;
            }
            if option != 7 {
                stream.write_all(&reply(option, (1 << 31) | 1, &[])).ok()?;
                continue;
            }
            let size = self.bytes.lock().0.len() as u64;
            let flags = (kind.flags | HAS_FLAGS).to_be_bytes();
            let export = [&[0, 0][..], &size.to_be_bytes(), &flags].concat();
            let (minimum, maximum) = kind.blocks;
            let preferred = minimum.max(512);
            let sizes = [minimum, preferred, maximum].map(u32::to_be_bytes).concat();
            let sizes = [&[0, 3][..], &sizes].concat();
            stream.write_all(&reply(7, 3, &export)).ok()?;
            stream.write_all(&reply(7, 3, &sizes)).ok()?;
            return stream.write_all(&reply(7, 1, &[])).ok();
        }
    }

    fn answer(&self, stream: &mut UnixStream, kind: &Kind, request: &[u8]) -> Option<Vec<u8>> {
        let flags = u16::from_be_bytes(request[4..6].try_into().unwrap());
        let command = u16::from_be_bytes(request[6..8].try_into().unwrap());
        let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
        let len = u32::from_be_bytes(request[24..].try_into().unwrap());
        let payload = take(stream, if command == 1 { len as usize } else { 0 })?;
        self.requests.lock().push((command, offset, len));
        let (minimum, maximum) = kind.blocks;
        let is_whole = offset % u64::from(minimum) == 0 && len % minimum == 0;
        // A request without payload may be longer.
        let fits = is_whole && (command > 1 || len <= maximum);
        let mut bytes = self.bytes.lock();
        let (now, durable) = &mut *bytes;
        let from = usize::try_from(offset).unwrap();
        let range = from..from + len as usize;
        let mut data = Vec::new();
        let errno = match command {
            2 => return None,
            _ if flags & 1 != 0 && kind.fua_errno != 0 => {
                now.copy_from_slice(durable);
                kind.fua_errno
            }
            _ if !fits || range.end > now.len() => 22_u32,
            0 => {
                data.extend_from_slice(&now[range]);
                0
            }
            1 | 6 => {
                if command == 1 {
                    now[range.clone()].copy_from_slice(&payload);
                } else {
                    now[range.clone()].fill(0);
                }
                if flags & 1 != 0 {
                    assert!(kind.flags & FUA != 0, "FUA, which was not announced");
                    durable[range.clone()].copy_from_slice(&now[range]);
                }
                0
            }
            3 => {
                durable.copy_from_slice(now);
                0
            }
            _ => 22,
        };
        let cookie = &request[8..16];
        Some([&0x6744_6698_u32.to_be_bytes()[..], &errno.to_be_bytes(), cookie, &data].concat())
    }
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn take(stream: &mut UnixStream, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}
