//! The client: a server sends arbitrary bytes, mostly close to the protocol.
//!
//! Oracle: every call returns; a broken connection stays broken; extents lie in the range that was
//! asked for. The server chooses the data, so the oracle demands nothing of it.

use std::os::fd::OwnedFd;

use arbitrary::Arbitrary;
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole};
use everbyte_nbd::{Client, RemoteDevice};

use super::protocol::*;
use crate::socket::peer_saying;

/// Most calls of a conversation.
const CALLS_MAX: usize = 8;

/// The server's answer to an option.
#[derive(Debug, Arbitrary)]
enum Answer {
    Ack,
    Refusal(Vec<u8>),
    Raw { magic: bool, option: u8, kind: u32, data: Vec<u8>, more: i8 },
}

#[derive(Debug, Arbitrary)]
struct Export {
    size_bytes: u64,
    flags: u16,
    /// Minimum, preferred, and largest payload.
    blocks: Option<(u32, u32, u32)>,
    /// A further piece of information of any kind.
    more: Option<(u16, Vec<u8>)>,
}

#[derive(Debug, Arbitrary)]
enum Piece {
    Simple { errno: u8, cookie: u8, len: u16 },
    Data { done: bool, cookie: u8, offset: u16, len: u16, announced: i8 },
    Hole { done: bool, cookie: u8, offset: u64, len: u32 },
    Extents { done: bool, cookie: u8, id: u8, extents: Vec<(u16, u8)> },
    Failed { cookie: u8, errno: u32, message: Vec<u8>, announced: i8 },
    Chunk { flags: u16, kind: u16, cookie: u8, len: u32, data: Vec<u8> },
    Bytes(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
enum Call {
    Read { offset: u16, len: u16 },
    Write { offset: u16, len: u16, fua: bool },
    Flush,
    Discard { offset: u64, len: u64, fua: bool },
    Zero { offset: u64, len: u64, hole: bool, fast: bool },
    Status { offset: u64, len: u64, extents_max: u8 },
    Cache { offset: u64, len: u64 },
}

#[derive(Debug, Arbitrary)]
struct Conversation {
    flags: u8,
    structured: Answer,
    /// Context sent before the next answer.
    context: Option<u8>,
    context_answer: Answer,
    export: Export,
    export_answer: Answer,
    /// True if exports are listed instead.
    lists: bool,
    calls: Vec<Call>,
    pieces: Vec<Piece>,
    rest: Vec<u8>,
}

/// The byte that all data is made of.
const BYTE: u8 = 0xD7;

/// Lets a server send the bytes encoded by `bytes`.
///
/// # Panics
/// If a promise is broken.
pub fn nbd_client(bytes: &[u8]) {
    let Some(conversation) = crate::story::<Conversation>(bytes) else { return };
    let (near, far) = peer_saying(&conversation.said());
    match Client::over(OwnedFd::from(near), "disk").map(RemoteDevice::new) {
        Ok(device) => {
            let mut broken = false;
            for call in conversation.calls.iter().take(CALLS_MAX) {
                // Never reset: no later reply may revive a broken connection.
                broken |= do_call(&device, call, broken);
            }
            // The goodbye may fail after any conversation, and must only return.
            drop(device.disconnect());
        }
        Err(error) => drop(error.to_string()),
    }
    drop(far);
}

/// Makes a call; returns true if the connection is known to be broken now.
fn do_call(device: &RemoteDevice, call: &Call, broken: bool) -> bool {
    let fua = |wanted| if wanted { Fua::Yes } else { Fua::No };
    // A call without a request cannot find the connection broken.
    let asks_nothing;
    let done = match *call {
        Call::Read { offset, len } => {
            let mut data = vec![0; usize::from(len)];
            asks_nothing = len == 0;
            device.read(offset.into(), &mut data)
        }
        Call::Write { offset, len, fua: wanted } => {
            asks_nothing = len == 0;
            device.write(offset.into(), &vec![BYTE; usize::from(len)], fua(wanted))
        }
        Call::Flush => {
            asks_nothing = true;
            device.flush()
        }
        Call::Discard { offset, len, fua: wanted } => {
            asks_nothing = len == 0;
            device.discard(offset, len, fua(wanted))
        }
        Call::Zero { offset, len, hole, fast } => {
            asks_nothing = len == 0;
            let hole = if hole { Hole::Allowed } else { Hole::Forbidden };
            device.write_zeroes(offset, len, hole, fast, Fua::No)
        }
        Call::Status { offset, len, extents_max } => {
            // A server without extents gets no request for them.
            asks_nothing = true;
            device.status(offset, len, extents_max.into()).map(|extents| {
                let covered: u64 = extents.iter().map(|extent| extent.len).sum();
                assert!(covered > 0 && covered <= len, "extents beyond the range");
                assert!(extents.iter().all(|extent| extent.len > 0), "an extent is empty");
                assert!(extents.len() <= usize::from(extents_max).max(1), "too many extents");
            })
        }
        Call::Cache { offset, len } => {
            asks_nothing = true;
            device.prefetch(offset, len)
        }
    };
    assert!(!broken || asks_nothing || done.is_err(), "{call:?} on a broken connection");
    matches!(done, Err(DeviceError::Media { reason, .. }) if reason.contains("is broken"))
}

impl Conversation {
    fn said(&self) -> Vec<u8> {
        let mut said = Message::default();
        said.u64(INIT_MAGIC).u64(OPTION_MAGIC).u16(3 ^ u16::from(self.flags / 16));
        if self.lists {
            self.export_answer.say(&mut said, LIST);
        }
        self.structured.say(&mut said, STRUCTURED_REPLY);
        // The client asks for a context only after structured replies are agreed on.
        if matches!(self.structured, Answer::Ack) {
            if let Some(id) = self.context {
                let mut data = Message::default();
                data.u32(id.into()).bytes(b"base:allocation");
                option_reply(&mut said, SET_META_CONTEXT, REPLY_META_CONTEXT, &data.0);
            }
            self.context_answer.say(&mut said, SET_META_CONTEXT);
        }
        self.export.say(&mut said);
        self.export_answer.say(&mut said, GO);
        for piece in &self.pieces {
            piece.say(&mut said);
        }
        said.bytes(&self.rest);
        said.0
    }
}

fn option_reply(said: &mut Message, option: u32, kind: u32, data: &[u8]) {
    said.u64(OPTION_REPLY_MAGIC).u32(option).u32(kind).counted(data);
}

impl Answer {
    fn say(&self, said: &mut Message, asked: u32) {
        match self {
            Self::Ack => option_reply(said, asked, REPLY_ACK, &[]),
            Self::Refusal(words) => option_reply(said, asked, REPLY_ERROR | 1, words),
            Self::Raw { magic, option, kind, data, more } => {
                // Half of the raw answers are to the right option, and reach the checks behind it.
                let option = if *option < 128 { asked } else { (*option).into() };
                said.u64(OPTION_REPLY_MAGIC ^ u64::from(!magic)).u32(option).u32(*kind);
                // The announced length is off by at most two, and right in half of the cases.
                let len = (data.len() as u32).wrapping_add_signed(i32::from(*more) / 64);
                said.u32(len).bytes(data);
            }
        }
    }
}

impl Export {
    fn say(&self, said: &mut Message) {
        let mut data = Message::default();
        data.u16(0).u64(self.size_bytes).u16(self.flags);
        option_reply(said, GO, REPLY_INFO, &data.0);
        if let Some((minimum, preferred, payload)) = self.blocks {
            let mut data = Message::default();
            data.u16(3).u32(minimum).u32(preferred).u32(payload);
            option_reply(said, GO, REPLY_INFO, &data.0);
        }
        if let Some((kind, more)) = &self.more {
            let mut data = Message::default();
            data.u16(*kind).bytes(more);
            option_reply(said, GO, REPLY_INFO, &data.0);
        }
    }
}

impl Piece {
    fn say(&self, said: &mut Message) {
        let mut data = Message::default();
        match self {
            Self::Simple { errno, cookie, len } => {
                said.u32(SIMPLE_REPLY_MAGIC).u32(u32::from(*errno)).u64((*cookie).into());
                // Sent also after an error, where the protocol has no data.
                said.bytes(&vec![BYTE; usize::from(len % 8192)]);
            }
            Self::Data { done, cookie, offset, len, announced } => {
                let len = len % 8192;
                let announced = (u32::from(len) + 8).wrapping_add_signed((*announced / 64).into());
                said.u32(STRUCTURED_REPLY_MAGIC).u16((*done).into()).u16(CHUNK_DATA);
                said.u64((*cookie).into()).u32(announced).u64((*offset).into());
                said.bytes(&vec![BYTE; usize::from(len)]);
            }
            Self::Hole { done, cookie, offset, len } => {
                data.u64(*offset).u32(*len);
                chunk(said, (*done).into(), CHUNK_HOLE, *cookie, &data.0);
            }
            Self::Extents { done, cookie, id, extents } => {
                data.u32((*id).into());
                for (len, flags) in extents {
                    data.u32((*len).into()).u32((*flags).into());
                }
                chunk(said, (*done).into(), CHUNK_STATUS, *cookie, &data.0);
            }
            Self::Failed { cookie, errno, message, announced } => {
                let len = (message.len() as u16).wrapping_add_signed((*announced / 64).into());
                data.u32(*errno).u16(len).bytes(message);
                chunk(said, 1, CHUNK_ERROR | 1, *cookie, &data.0);
            }
            Self::Chunk { flags, kind, cookie, len, data } => {
                said.u32(STRUCTURED_REPLY_MAGIC).u16(*flags).u16(*kind).u64((*cookie).into());
                said.u32(*len).bytes(data);
            }
            Self::Bytes(bytes) => {
                said.bytes(bytes);
            }
        }
    }
}

fn chunk(said: &mut Message, flags: u16, kind: u16, cookie: u8, data: &[u8]) {
    said.u32(STRUCTURED_REPLY_MAGIC).u16(flags).u16(kind).u64(cookie.into()).counted(data);
}
