//! The client's side of the handshake.

use std::io;

use crate::exports::ExportInfo;
use crate::protocol::{
    BASE_ALLOCATION, Fields, INIT_MAGIC, OPTION_DATA_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    PAYLOAD_MAX, encode_option, encode_string, handshake_flag, info, option, option_reply,
};
use crate::wire::Wire;

use super::ClientError;

/// The export's properties after the handshake.
#[derive(Debug)]
pub(super) struct NegotiatedExport {
    pub(super) size_bytes: u64,
    /// Transmission flags.
    pub(super) flags: u16,
    pub(super) structured: bool,
    /// The number of `base:allocation`, if it was selected.
    pub(super) context: Option<u32>,
    pub(super) minimum_bytes: u32,
    pub(super) preferred_bytes: u32,
    pub(super) payload_bytes_max: u32,
}

/// Largest minimum block of the protocol, in bytes.
const MINIMUM_MAX: u32 = 64 << 10;

/// A reply to an option: its kind and data.
type OptionReply = (u32, Vec<u8>);

/// Chooses `export`.
pub(super) fn go(wire: &Wire<'_>, export: &str) -> Result<NegotiatedExport, ClientError> {
    greet(wire)?;
    let mut agreed = NegotiatedExport {
        size_bytes: 0,
        flags: 0,
        structured: false,
        context: None,
        // The protocol's defaults for a server that reports no block sizes.
        minimum_bytes: 1,
        preferred_bytes: 4096,
        payload_bytes_max: PAYLOAD_MAX,
    };
    // First, because servers refuse contexts without structured replies.
    ask(wire, option::STRUCTURED_REPLY, &[])?;
    agreed.structured = last_reply(wire, option::STRUCTURED_REPLY, |_, _| Ok(()))?.is_none();
    if agreed.structured {
        agreed.context = select_context(wire, export)?;
    }
    let mut data = Vec::new();
    encode_string(&mut data, export);
    data.extend_from_slice(&1_u16.to_be_bytes());
    data.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
    ask(wire, option::GO, &data)?;
    let mut has_size = false;
    let refused = last_reply(wire, option::GO, |kind, data| {
        if kind == option_reply::INFO {
            has_size |= take_info(&mut agreed, data)?;
        }
        Ok(())
    })?;
    match refused {
        Some(message) => Err(ClientError::Refused { what: "open the export", message }),
        None if has_size => Ok(agreed),
        None => Err(broken("the server did not tell the export's size")),
    }
}

/// Asks for all exports and leaves.
pub(super) fn list(wire: &Wire<'_>) -> Result<Vec<ExportInfo>, ClientError> {
    greet(wire)?;
    ask(wire, option::LIST, &[])?;
    let mut exports = Vec::new();
    let refused = last_reply(wire, option::LIST, |kind, data| {
        if kind == option_reply::SERVER {
            let mut fields = Fields(data);
            let name = fields.counted().ok_or_else(|| broken("a listed export is cut short"))?;
            exports.push(ExportInfo {
                name: String::from_utf8_lossy(name).into_owned(),
                description: String::from_utf8_lossy(fields.0).into_owned(),
            });
        }
        Ok(())
    })?;
    if let Some(message) = refused {
        return Err(ClientError::Refused { what: "list its exports", message });
    }
    // The answer is of no interest, nor whether there is one.
    let _ = ask(wire, option::ABORT, &[]);
    Ok(exports)
}

fn broken(reason: &str) -> ClientError {
    ClientError::Broken { reason: reason.to_owned() }
}

fn greet(wire: &Wire<'_>) -> Result<(), ClientError> {
    if u64::from_be_bytes(wire.recv_array()?) != INIT_MAGIC {
        return Err(broken("this is no NBD server"));
    }
    let magic = u64::from_be_bytes(wire.recv_array()?);
    let offered = u16::from_be_bytes(wire.recv_array()?);
    if magic != OPTION_MAGIC || offered & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(broken("the server speaks an outdated form of NBD"));
    }
    let flags = offered & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    wire.send_all(&u32::from(flags).to_be_bytes())?;
    Ok(())
}

fn ask(wire: &Wire<'_>, number: u32, data: &[u8]) -> io::Result<()> {
    let mut out = Vec::new();
    encode_option(&mut out, number, data);
    wire.send_all(&out)
}

fn recv_reply(wire: &Wire<'_>, number: u32) -> Result<OptionReply, ClientError> {
    if u64::from_be_bytes(wire.recv_array()?) != OPTION_REPLY_MAGIC {
        return Err(broken("a reply to an option has the wrong magic"));
    }
    if u32::from_be_bytes(wire.recv_array()?) != number {
        return Err(broken("a reply is to another option than the one sent"));
    }
    let kind = u32::from_be_bytes(wire.recv_array()?);
    let len = u32::from_be_bytes(wire.recv_array()?);
    // The server chose the length, so it is checked before memory is taken.
    if len > OPTION_DATA_MAX {
        return Err(broken("a reply to an option is too long"));
    }
    let mut data = vec![0; len as usize];
    wire.recv_exact(&mut data)?;
    Ok((kind, data))
}

/// Receives the replies to an option up to the last one, and passes all but the last to `take`.
/// Returns the words of the error if the last one is an error.
fn last_reply(
    wire: &Wire<'_>,
    number: u32,
    mut take: impl FnMut(u32, &[u8]) -> Result<(), ClientError>,
) -> Result<Option<String>, ClientError> {
    loop {
        // The number of replies has no bound. The deadline of the handshake ends an endless list.
        let (kind, data) = recv_reply(wire, number)?;
        if kind == option_reply::ACK {
            return Ok(None);
        }
        if kind & option_reply::ERROR != 0 {
            let text = String::from_utf8_lossy(&data);
            let number = kind & !option_reply::ERROR;
            return Ok(Some(match kind {
                option_reply::ERR_UNKNOWN if text.is_empty() => "no such export".to_owned(),
                _ if text.is_empty() => format!("error {number}"),
                _ => format!("{text} (error {number})"),
            }));
        }
        take(kind, &data)?;
    }
}

fn select_context(wire: &Wire<'_>, export: &str) -> Result<Option<u32>, ClientError> {
    let mut data = Vec::new();
    encode_string(&mut data, export);
    data.extend_from_slice(&1_u32.to_be_bytes());
    encode_string(&mut data, BASE_ALLOCATION);
    ask(wire, option::SET_META_CONTEXT, &data)?;
    let mut context = None;
    let refused = last_reply(wire, option::SET_META_CONTEXT, |kind, data| {
        let mut fields = Fields(data);
        if let (option_reply::META_CONTEXT, Some(id)) = (kind, fields.u32())
            && fields.0 == BASE_ALLOCATION.as_bytes()
        {
            context = Some(id);
        }
        Ok(())
    })?;
    // A server without contexts is a good server.
    Ok(if refused.is_some() { None } else { context })
}

/// Takes one piece of information; `true` if it was the size and the flags.
fn take_info(agreed: &mut NegotiatedExport, data: &[u8]) -> Result<bool, ClientError> {
    let cut = || broken("a piece of information about the export is cut short");
    let mut fields = Fields(data);
    match fields.u16().ok_or_else(cut)? {
        info::EXPORT => {
            agreed.size_bytes = fields.u64().ok_or_else(cut)?;
            agreed.flags = fields.u16().ok_or_else(cut)?;
            Ok(true)
        }
        info::BLOCK_SIZE => {
            let minimum = fields.u32().ok_or_else(cut)?;
            let preferred = fields.u32().ok_or_else(cut)?;
            let maximum = fields.u32().ok_or_else(cut)?;
            // Requests are divided and rounded by these numbers, so no value of a server may be
            // zero.
            let is_sensible = minimum.is_power_of_two()
                && minimum <= MINIMUM_MAX
                && preferred.is_power_of_two()
                && maximum >= minimum;
            if !is_sensible {
                return Err(broken("the server's block sizes make no sense"));
            }
            agreed.minimum_bytes = minimum;
            agreed.preferred_bytes = preferred;
            agreed.payload_bytes_max = maximum.min(PAYLOAD_MAX);
            Ok(false)
        }
        _ => Ok(false),
    }
}
