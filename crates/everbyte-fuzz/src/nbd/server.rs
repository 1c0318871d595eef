//! The server: a client sends arbitrary bytes, mostly close to the protocol.
//!
//! Oracle: the server's answers are exactly the reference's, its device holds exactly the
//! reference's content, and no byte is left to be sent.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use everbyte_device::{
    BlockDevice, DeviceError, Extent, Fua, MemoryDevice, Passthrough, SendError, Transport,
    WriteRequest,
};
use everbyte_nbd::{Export, ExportInfo, Exports, OpenError, serve_connection};

use super::protocol::*;
use super::reference::{EXPORTS, Reference, Said, has_export};
use crate::socket::{drain, peer_saying};

/// Bytes of the device: not a whole number of blocks.
const DEVICE_BYTES: u64 = 10_000;
/// Most bytes sent by a client, so that answers to options fit in the socket's buffer.
const SAID_MAX: usize = 4096;

#[derive(Debug, Arbitrary)]
enum Name {
    Default,
    Disk,
    Other(u8),
}

impl Name {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Default => Vec::new(),
            Self::Disk => b"disk".to_vec(),
            Self::Other(byte) => vec![*byte; 3],
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Query {
    Base,
    BaseAllocation,
    Other(u8),
}

#[derive(Debug, Arbitrary)]
enum HandshakeOption {
    ExportName(Name),
    Abort,
    List,
    Info {
        name: Name,
        wanted: Vec<u8>,
    },
    Go {
        name: Name,
    },
    Structured,
    Context {
        selects: bool,
        name: Name,
        queries: Vec<Query>,
    },
    /// Any number with any data, more or less of which is announced than comes.
    Raw {
        option: u8,
        data: Vec<u8>,
        more: i8,
    },
    Bytes(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
enum Number {
    Small(u16),
    Raw(u64),
}

impl Number {
    fn get(&self) -> u64 {
        match *self {
            Self::Small(value) => value.into(),
            Self::Raw(value) => value,
        }
    }
}

#[derive(Debug, Arbitrary)]
enum Asked {
    Request { command: u8, flags: u8, cookie: u8, offset: Number, len: u16 },
    Write { flags: u8, cookie: u8, offset: Number, len: u8, byte: u8 },
    Raw { magic: bool, flags: u16, command: u16, cookie: u64, offset: u64, len: u32 },
    Bytes(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
struct Conversation {
    flags: u8,
    read_only: bool,
    options: Vec<HandshakeOption>,
    /// Sends options that lead to requests, after any earlier bytes.
    opens: bool,
    asked: Vec<Asked>,
    rest: Vec<u8>,
}

/// Lets a client send the bytes encoded by `bytes`.
///
/// # Panics
/// If a promise is broken.
pub fn nbd_server(bytes: &[u8]) {
    let Some(conversation) = crate::story::<Conversation>(bytes) else { return };
    let mut said = conversation.said();
    // Both readers get the cut bytes, so a cut within a message is a case as well.
    said.truncate(SAID_MAX);
    let (near, far) = peer_saying(&said);
    let device = MemoryDevice::new(DEVICE_BYTES);
    let twin = MemoryDevice::new(DEVICE_BYTES);
    device.set_read_only(conversation.read_only);
    // A device of its own: the reference must not see the server's effects.
    twin.set_read_only(conversation.read_only);
    let shared = Arc::new(Observed { device, far, heard: Mutex::default() });
    let exports = OneExport(Arc::clone(&shared));
    // The end of the connection is the server's choice; its answers and effects are checked.
    let ended = serve_connection(near.as_fd(), &exports, Duration::from_secs(5));
    if let Err(end) = ended {
        drop(end.to_string());
    }
    drop(near);
    shared.listen();
    let (structured, expected) = Reference::new(&said, &twin).answer();
    let heard = std::mem::take(&mut *shared.heard.lock().unwrap());
    check_answers(&heard, structured, &expected);
    assert_eq!(contents(&shared.device), contents(&twin), "the device holds something else");
}

impl Conversation {
    fn said(&self) -> Vec<u8> {
        let mut said = Message::default();
        // Four legal combinations of flags, and an illegal one.
        said.u32(u32::from(self.flags % 5));
        for option in &self.options {
            option.say(&mut said);
        }
        if self.opens {
            HandshakeOption::Go { name: Name::Disk }.say(&mut said);
        }
        for asked in &self.asked {
            asked.say(&mut said);
        }
        said.bytes(&self.rest);
        said.0
    }
}

impl HandshakeOption {
    fn say(&self, said: &mut Message) {
        let mut data = Message::default();
        let mut more = 0;
        let option = match self {
            Self::ExportName(name) => {
                data.bytes(&name.bytes());
                EXPORT_NAME
            }
            Self::Abort => ABORT,
            Self::List => LIST,
            Self::Info { name, wanted } => {
                data.counted(&name.bytes()).u16(wanted.len() as u16);
                for &kind in wanted {
                    data.u16(kind.into());
                }
                INFO
            }
            Self::Go { name } => {
                data.counted(&name.bytes()).u16(0);
                GO
            }
            Self::Structured => STRUCTURED_REPLY,
            Self::Context { selects, name, queries } => {
                data.counted(&name.bytes()).u32(queries.len() as u32);
                for query in queries {
                    match query {
                        Query::Base => data.counted(b"base:"),
                        Query::BaseAllocation => data.counted(b"base:allocation"),
                        Query::Other(byte) => data.counted(&[*byte; 5]),
                    };
                }
                if *selects { SET_META_CONTEXT } else { LIST_META_CONTEXT }
            }
            Self::Raw { option, data: raw, more: announced } => {
                data.bytes(raw);
                more = i32::from(*announced) / 64;
                u32::from(*option)
            }
            Self::Bytes(raw) => {
                said.bytes(raw);
                return;
            }
        };
        // A wrong length shifts all later messages, as a hostile client would.
        let len = (data.0.len() as u32).wrapping_add_signed(more);
        said.u64(OPTION_MAGIC).u32(option).u32(len).bytes(&data.0);
    }
}

impl Asked {
    fn say(&self, said: &mut Message) {
        match self {
            Self::Request { command, flags, cookie, offset, len } => {
                said.u32(REQUEST_MAGIC).u16(u16::from(*flags)).u16(u16::from(command % 9));
                said.u64(u64::from(*cookie)).u64(offset.get()).u32(u32::from(*len));
            }
            Self::Write { flags, cookie, offset, len, byte } => {
                said.u32(REQUEST_MAGIC).u16(u16::from(*flags)).u16(WRITE).u64(u64::from(*cookie));
                said.u64(offset.get()).u32(u32::from(*len)).bytes(&vec![*byte; usize::from(*len)]);
            }
            Self::Raw { magic, flags, command, cookie, offset, len } => {
                said.u32(REQUEST_MAGIC ^ u32::from(!magic)).u16(*flags).u16(*command);
                said.u64(*cookie).u64(*offset).u32(*len);
            }
            Self::Bytes(raw) => {
                said.bytes(raw);
            }
        }
    }
}

/// Compares the received answers with the reference's.
fn check_answers(heard: &[u8], structured: bool, expected: &[Said]) {
    let mut heard = Fields(heard);
    assert_eq!(heard.u64(), Some(INIT_MAGIC));
    assert_eq!(heard.u64(), Some(OPTION_MAGIC));
    assert_eq!(heard.u16(), Some(3), "handshake flags");
    let (options, requests): (Vec<_>, Vec<_>) = expected.iter().partition(|said| {
        matches!(said, Said::Option { .. } | Said::OptionError { .. } | Said::Export { .. })
    });
    for said in options {
        let matches = match said {
            Said::Export { zeroes } => heard.bytes(if *zeroes { 134 } else { 10 }).map(|_| true),
            said => option_reply(&mut heard, said),
        };
        assert_eq!(matches, Some(true), "instead of {said:?}");
    }
    // Replies to requests may come in any order.
    let mut left = requests;
    while !left.is_empty() {
        let mut rest = heard;
        // Each attempt starts at the same byte. Only the matching one advances the stream.
        let found = left.iter().position(|said| {
            rest = heard;
            reply(&mut rest, structured, said) == Some(true)
        });
        let Some(found) = found else { panic!("none of {left:?} is in {:x?}", heard.0) };
        left.remove(found);
        heard = rest;
    }
    assert!(heard.0.is_empty(), "{} bytes too many were said", heard.0.len());
}

fn option_reply(heard: &mut Fields<'_>, said: &Said) -> Option<bool> {
    let magic = heard.u64()?;
    let (option, kind) = (heard.u32()?, heard.u32()?);
    // Texts and data of options are the server's choice.
    heard.counted()?;
    let as_said = match *said {
        Said::Option { option: asked, kind: wanted } => asked == option && wanted == kind,
        Said::OptionError { option: asked } => asked == option && kind & REPLY_ERROR != 0,
        _ => false,
    };
    Some(magic == OPTION_REPLY_MAGIC && as_said)
}

fn reply(heard: &mut Fields<'_>, structured: bool, said: &Said) -> Option<bool> {
    match heard.u32()? {
        SIMPLE_REPLY_MAGIC => {
            let (errno, cookie) = (heard.u32()?, heard.u64()?);
            Some(match said {
                Said::Done { cookie: asked } => errno == 0 && cookie == *asked,
                Said::Failed { cookie: asked } => errno != 0 && cookie == *asked,
                Said::Data { cookie: asked, data, .. } if !structured => {
                    errno == 0 && cookie == *asked && heard.bytes(data.len())? == data
                }
                _ => false,
            })
        }
        STRUCTURED_REPLY_MAGIC if structured => {
            let (flags, kind, cookie) = (heard.u16()?, heard.u16()?, heard.u64()?);
            let mut payload = Fields(heard.counted()?);
            let as_said = match said {
                Said::Done { cookie: asked } => {
                    kind == CHUNK_NONE && cookie == *asked && payload.0.is_empty()
                }
                Said::Failed { cookie: asked } => kind & CHUNK_ERROR != 0 && cookie == *asked,
                Said::Data { cookie: asked, offset, data } => {
                    kind == CHUNK_DATA
                        && cookie == *asked
                        && payload.u64()? == *offset
                        && payload.0 == data
                }
                Said::Status { cookie: asked, extents } => {
                    kind == CHUNK_STATUS && cookie == *asked && status(&mut payload)? == *extents
                }
                _ => false,
            };
            // This server sends each reply in one chunk, so each chunk is the last.
            Some(flags == 1 && as_said)
        }
        _ => Some(false),
    }
}

fn status(payload: &mut Fields<'_>) -> Option<Vec<Extent>> {
    // The number of the context is the server's choice.
    payload.u32()?;
    let mut extents = Vec::new();
    while !payload.0.is_empty() {
        let (len, flags) = (payload.u32()?, payload.u32()?);
        extents.push(Extent { len: len.into(), hole: flags & 1 != 0, zero: flags & 2 != 0 });
    }
    Some(extents)
}

fn contents(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; DEVICE_BYTES as usize];
    device.read(0, &mut bytes).unwrap();
    bytes
}

/// A device that keeps the sockets' buffers from filling up: server and client are one thread.
struct Observed {
    device: MemoryDevice,
    far: UnixStream,
    heard: Mutex<Vec<u8>>,
}

impl Observed {
    fn listen(&self) {
        drain(&self.far, &mut self.heard.lock().unwrap());
    }
}

struct OneExport(Arc<Observed>);

impl Exports for OneExport {
    fn list(&self) -> Vec<ExportInfo> {
        self.0.listen();
        let info = ExportInfo { name: "disk".to_owned(), description: "a disk".to_owned() };
        vec![info; EXPORTS]
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        self.0.listen();
        if !has_export(name.as_bytes()) {
            return Err(OpenError::Unknown);
        }
        Ok(Export::new("disk", Arc::clone(&self.0) as Arc<dyn BlockDevice>))
    }
}

impl Transport for Observed {
    fn send(
        &self,
        offset: u64,
        len: usize,
        prefix: &[u8],
        socket: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.listen();
        // A larger read would let a client demand any amount of memory.
        assert!(len <= PAYLOAD_MAX as usize, "more is to be sent than may be asked for");
        everbyte_device::send(&self.device, (offset, len), prefix, socket)
    }
}

impl everbyte_device::Decorator for Observed {
    type Inner = MemoryDevice;
    const PASSTHROUGH: Passthrough = Passthrough::Whole;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }

    fn transport(&self) -> Option<&dyn Transport> {
        Some(self)
    }

    fn write(&self, offset: u64, data: &[u8], fua: Fua) -> Result<(), DeviceError> {
        self.listen();
        self.device.write(offset, data, fua)
    }

    fn write_batch(&self, requests: &[WriteRequest<'_>]) -> Vec<Result<(), DeviceError>> {
        self.listen();
        self.device.write_batch(requests)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.listen();
        self.device.flush()
    }
}
