//! The numbers and messages of the NBD protocol, as the protocol document of the reference
//! implementation gives them. Everything on the wire is big-endian.
//!
//! Knows neither sockets nor devices. No bytes of a peer cause a panic here.

use crate::output::Sink;

/// First word of a server: `NBDMAGIC`.
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of a server, and the start of each option: `IHAVEOPT`.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of each request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of a chunk of a structured reply.
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes in a request without its payload.
pub(crate) const REQUEST_LEN: usize = 28;
/// Bytes in a simple reply without its data.
pub(crate) const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes in the header of a chunk.
pub(crate) const CHUNK_HEADER_LEN: usize = 20;

/// Largest payload of a read or a write, in bytes.
pub(crate) const PAYLOAD_MAX: u32 = 32 << 20;
/// Largest data of an option, in bytes.
pub(crate) const OPTION_DATA_MAX: u32 = 64 << 10;
/// Longest name of an export or of a metadata context, in bytes.
pub(crate) const NAME_MAX: usize = 4096;

/// The only metadata context.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags, which both sides number alike.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 2;
}

/// Flags of an export's abilities.
pub(crate) mod transmission_flag {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options; bit 31 marks the errors.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR | 1;
    pub(crate) const ERR_POLICY: u32 = ERROR | 2;
    pub(crate) const ERR_INVALID: u32 = ERROR | 3;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR | 6;
    pub(crate) const ERR_SHUTDOWN: u32 = ERROR | 7;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR | 9;
}

/// Kinds of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Kinds of requests.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks; bit 15 marks the errors.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR_BIT: u16 = 1 << 15;
    pub(crate) const ERROR: u16 = ERROR_BIT | 1;
}

/// Flags of an extent in a block status.
pub(crate) mod extent_flag {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 2;
}

/// Errors of requests.
pub(crate) mod errno {
    pub(crate) const PERM: u32 = 1;
    pub(crate) const IO: u32 = 5;
    pub(crate) const INVAL: u32 = 22;
    pub(crate) const NOSPC: u32 = 28;
    pub(crate) const OVERFLOW: u32 = 75;
    pub(crate) const NOTSUP: u32 = 95;
    pub(crate) const SHUTDOWN: u32 = 108;
}

/// A request without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// Chosen by the client; opaque, and perhaps not unique.
    pub(crate) cookie: u64,
    /// First byte.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u32,
}

impl Request {
    /// Reads a request, or returns the wrong magic.
    pub(crate) fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, u32> {
        let mut fields = Fields(bytes);
        // Too few bytes cannot be, so the default is never taken.
        let magic = fields.u32().unwrap_or_default();
        if magic != REQUEST_MAGIC {
            return Err(magic);
        }
        Ok(Self {
            flags: fields.u16().unwrap_or_default(),
            command: fields.u16().unwrap_or_default(),
            cookie: fields.u64().unwrap_or_default(),
            offset: fields.u64().unwrap_or_default(),
            len: fields.u32().unwrap_or_default(),
        })
    }

    /// Appends the request to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }
}

/// Appends a simple reply without data.
pub(crate) fn encode_simple_reply(out: &mut impl Sink, error: u32, cookie: u64) {
    out.put(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.put(&error.to_be_bytes());
    out.put(&cookie.to_be_bytes());
}

/// Appends the header of the last chunk of a reply, which announces `len` bytes.
pub(crate) fn encode_last_chunk(out: &mut impl Sink, kind: u16, cookie: u64, len: u32) {
    out.put(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.put(&chunk::FLAG_DONE.to_be_bytes());
    out.put(&kind.to_be_bytes());
    out.put(&cookie.to_be_bytes());
    out.put(&len.to_be_bytes());
}

/// Appends an error chunk with a message, which is cut if it is longer than the protocol allows.
pub(crate) fn encode_error_chunk(out: &mut impl Sink, error: u32, cookie: u64, message: &str) {
    let mut end = message.len().min(NAME_MAX);
    // The protocol's strings are UTF-8. A cut within a character would break this.
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let message = &message.as_bytes()[..end];
    let message_len = u16::try_from(end).unwrap_or(0);
    encode_last_chunk(out, chunk::ERROR, cookie, 6 + u32::from(message_len));
    out.put(&error.to_be_bytes());
    out.put(&message_len.to_be_bytes());
    out.put(message);
}

/// Appends a reply to an option. `data` is at most a few export names long.
pub(crate) fn encode_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&wire_len(len).to_be_bytes());
    for part in data {
        out.extend_from_slice(part);
    }
}

/// Appends the header of an option; `len` bytes of data follow.
pub(crate) fn encode_option(out: &mut Vec<u8>, option: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&wire_len(data.len()).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends a string with its length before it.
pub(crate) fn encode_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&wire_len(text.len()).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Returns a length of the server's own data in wire format. All of them are far below 4 GiB.
pub(crate) fn wire_len(len: usize) -> u32 {
    u32::try_from(len).expect("a message of the server's own is below 4 GiB")
}

/// Takes fields from the front of a message; `None` where the message is too short.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    /// A string with its length before it, in bytes.
    pub(crate) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.bytes(len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_wire() {
        let request = Request {
            flags: 0x0102,
            command: command::WRITE_ZEROES,
            cookie: u64::MAX - 1,
            offset: 0x0102_0304_0506_0708,
            len: 77,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let mut bytes: [u8; REQUEST_LEN] = bytes.try_into().unwrap();
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 1, 2, 0, 6]);
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Request::decode(&bytes), Ok(request));
        bytes[0] = 0;
        assert_eq!(Request::decode(&bytes), Err(0x0060_9513));
    }

    #[test]
    fn replies_have_their_lengths() {
        let mut out = Vec::new();
        encode_simple_reply(&mut out, 0, 1);
        assert_eq!(out.len(), SIMPLE_REPLY_LEN);
        out.clear();
        encode_last_chunk(&mut out, chunk::NONE, 1, 0);
        assert_eq!(out.len(), CHUNK_HEADER_LEN);
        out.clear();
        encode_error_chunk(&mut out, errno::IO, 1, &"ä".repeat(4000));
        let message_len = out.len() - CHUNK_HEADER_LEN - 6;
        assert_eq!(message_len, 4096);
        assert_eq!(out[16..20], u32::try_from(message_len + 6).unwrap().to_be_bytes());
        out.clear();
        encode_error_chunk(&mut out, errno::IO, 1, &format!("x{}", "ä".repeat(4000)));
        assert_eq!(out.len() - CHUNK_HEADER_LEN - 6, 4095, "no half character");
    }

    #[test]
    fn short_messages_are_none() {
        let mut fields = Fields(&[0, 0, 0, 3, b'a', b'b']);
        assert_eq!(fields.counted(), None);
        assert_eq!(Fields(&[1]).u16(), None);
        assert_eq!(Fields(&[0xff; 4]).counted(), None);
    }
}
