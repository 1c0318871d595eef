//! The server's side of the handshake: options, until an export is chosen or the client leaves.
//!
//! Invariants: unknown options are refused and the negotiation continues. A missing export that is
//! requested by the option without an error reply ends the connection. A metadata context holds
//! only for the export of its request.

use std::borrow::Cow;

use everbyte_device::Geometry;

use crate::disconnect::DisconnectReason;
use crate::exports::{Durability, Export, ExportInfo, Exports, OpenError};
use crate::protocol::{
    BASE_ALLOCATION, Fields, INIT_MAGIC, NAME_MAX, OPTION_DATA_MAX, OPTION_MAGIC, PAYLOAD_MAX,
    encode_option_reply, handshake_flag, info, option, option_reply, transmission_flag, wire_len,
};
use crate::remote_text;
use crate::wire::Wire;

/// The number by which replies name the one metadata context.
pub(crate) const CONTEXT_ID: u32 = 1;

/// Smallest preferred block size reported to clients, in bytes.
const PREFERRED_MIN: u32 = 512;

/// Most options of a handshake. A client that lists a thousand exports sends fewer.
const OPTIONS_MAX: u32 = 10_000;

/// The terms that a handshake agreed on.
pub(crate) struct Session {
    pub(crate) export: Export,
    /// True if reads get structured replies.
    pub(crate) structured: bool,
    /// True if the client may ask for `base:allocation`.
    pub(crate) status: bool,
}

/// The phase after an option.
enum Step {
    Continue,
    /// The client said goodbye.
    Leave,
    Transmit(Session),
}

/// Negotiates with a client. `None` means that the client left in order. Calls `note_activity`
/// after each message.
///
/// # Errors
/// The reason why the connection is to be dropped.
pub(crate) fn negotiate(
    wire: &Wire<'_>,
    exports: &dyn Exports,
    note_activity: &dyn Fn(),
) -> Result<Option<Session>, DisconnectReason> {
    let mut greeting = [0; 18];
    greeting[..8].copy_from_slice(&INIT_MAGIC.to_be_bytes());
    greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    let offered = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    greeting[16..].copy_from_slice(&offered.to_be_bytes());
    wire.send_all(&greeting)?;
    let flags = u32::from_be_bytes(wire.recv_array()?);
    // The protocol demands the end of the connection: a client may set only offered flags.
    if flags & !u32::from(offered) != 0 {
        return Err(DisconnectReason::ClientFlags(flags));
    }
    let no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
    let mut state =
        Negotiation { exports, no_zeroes, structured: false, context_for: None, out: Vec::new() };
    let mut data = Vec::new();
    note_activity();
    // Bounds the work for a client that sends options without end.
    for _ in 0..OPTIONS_MAX {
        let number = recv_option(wire, &mut data)?;
        note_activity();
        state.out.clear();
        let step = state.answer(number, &data)?;
        wire.send_all(&state.out)?;
        match step {
            Step::Continue => {}
            Step::Leave => return Ok(None),
            Step::Transmit(session) => return Ok(Some(session)),
        }
    }
    Err(DisconnectReason::TooManyOptions(OPTIONS_MAX))
}

/// Receives an option's number and, into `data`, its data.
fn recv_option(wire: &Wire<'_>, data: &mut Vec<u8>) -> Result<u32, DisconnectReason> {
    let magic = u64::from_be_bytes(wire.recv_array()?);
    if magic != OPTION_MAGIC {
        return Err(DisconnectReason::OptionMagic(magic));
    }
    let option = u32::from_be_bytes(wire.recv_array()?);
    let len = u32::from_be_bytes(wire.recv_array()?);
    // The client chose the length, so it is checked before memory is taken.
    if len > OPTION_DATA_MAX {
        return Err(DisconnectReason::OptionTooLong { option, len });
    }
    data.clear();
    data.resize(len as usize, 0);
    wire.recv_exact(data)?;
    Ok(option)
}

struct Negotiation<'a> {
    exports: &'a dyn Exports,
    no_zeroes: bool,
    structured: bool,
    /// The export whose `base:allocation` was selected.
    context_for: Option<String>,
    /// Replies to the current option.
    out: Vec<u8>,
}

/// An error reply to an option: its kind, and a message for people.
type Refusal = (u32, Cow<'static, str>);

const MALFORMED: Refusal =
    (option_reply::ERR_INVALID, Cow::Borrowed("the option's data is malformed"));

/// Returns the refusal for a client that cannot have an export.
fn no_export(error: &OpenError) -> Refusal {
    let kind = match error {
        OpenError::Unknown | OpenError::Unavailable { .. } => option_reply::ERR_UNKNOWN,
        OpenError::Forbidden { .. } => option_reply::ERR_POLICY,
        OpenError::ShuttingDown => option_reply::ERR_SHUTDOWN,
    };
    (kind, remote_text::of_open_error(error))
}

impl Negotiation<'_> {
    fn answer(&mut self, number: u32, data: &[u8]) -> Result<Step, DisconnectReason> {
        let answered = match number {
            // This option has no error reply, so its failure ends the connection.
            option::EXPORT_NAME => return self.export_name(data).map(Step::Transmit),
            option::ABORT => {
                self.reply(number, option_reply::ACK, &[]);
                return Ok(Step::Leave);
            }
            option::LIST => self.list(data),
            option::INFO => self.info(number, data).map(|_| Step::Continue),
            option::GO => self.info(number, data).map(Step::Transmit),
            option::STRUCTURED_REPLY => self.structured_reply(data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(number, data),
            // Clients probe for options, so an unknown one is answered and the handshake goes on.
            _ => Err((option_reply::ERR_UNSUP, "this server does not know the option".into())),
        };
        Ok(answered.unwrap_or_else(|(kind, message)| {
            self.reply(number, kind, &[message.as_bytes()]);
            Step::Continue
        }))
    }

    fn reply(&mut self, number: u32, kind: u32, data: &[&[u8]]) {
        encode_option_reply(&mut self.out, number, kind, data);
    }

    fn list(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        if !data.is_empty() {
            return Err(MALFORMED);
        }
        for export in self.exports.list() {
            let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
            let len = wire_len(name.len()).to_be_bytes();
            self.reply(option::LIST, option_reply::SERVER, &[&len, name, description]);
        }
        self.reply(option::LIST, option_reply::ACK, &[]);
        Ok(Step::Continue)
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<Step, Refusal> {
        if !data.is_empty() {
            return Err(MALFORMED);
        }
        self.structured = true;
        self.reply(option::STRUCTURED_REPLY, option_reply::ACK, &[]);
        Ok(Step::Continue)
    }

    fn export_name(&mut self, data: &[u8]) -> Result<Session, DisconnectReason> {
        let no_export = |error| {
            // The name goes to the log, and a hostile one may be long.
            let name = &data[..data.len().min(NAME_MAX)];
            DisconnectReason::NoExport { name: String::from_utf8_lossy(name).into_owned(), error }
        };
        let name = export_name(data).map_err(|_| no_export(OpenError::Unknown))?;
        let export = self.exports.open(name).map_err(no_export)?;
        let geometry = export.device.geometry();
        self.out.extend_from_slice(&geometry.size_bytes.to_be_bytes());
        self.out.extend_from_slice(&self.flags(&export, &geometry).to_be_bytes());
        // The protocol pads this reply unless both sides agreed to leave out the zeroes.
        if !self.no_zeroes {
            self.out.extend_from_slice(&[0; 124]);
        }
        Ok(self.session(name, export))
    }

    fn session(&self, name: &str, export: Export) -> Session {
        // The selected export and the opened one may differ, and a context holds only for its
        // export.
        let status = self.context_for.as_deref() == Some(name);
        Session { export, structured: self.structured, status }
    }

    fn flags(&self, export: &Export, geometry: &Geometry) -> u16 {
        use transmission_flag as flag;
        // All connections share the export's device. So a flush on one of them covers the answered
        // writes of all, as `CAN_MULTI_CONN` promises.
        let mut flags = flag::HAS_FLAGS | flag::SEND_CACHE | flag::CAN_MULTI_CONN;
        flags |= match export.durability {
            Durability::AtFlush => flag::SEND_FLUSH | flag::SEND_FUA,
            Durability::WhenAnswered => flag::SEND_FUA,
            Durability::Never => 0,
        };
        flags |= if geometry.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        if self.structured {
            // Only structured replies can be fragmented, so the flag has no meaning without them.
            flags |= flag::SEND_DF;
        }
        flags
    }

    /// Answers `INFO` and `GO`. They differ only in the next step.
    fn info(&mut self, number: u32, data: &[u8]) -> Result<Session, Refusal> {
        let mut fields = Fields(data);
        let name = fields.counted().ok_or(MALFORMED)?;
        let count = fields.u16().ok_or(MALFORMED)?;
        // The vector grows with the received bytes, and not with the client's `count`.
        let wanted: Vec<u16> = (0..count).map_while(|_| fields.u16()).collect();
        if wanted.len() != usize::from(count) || !fields.is_empty() {
            return Err(MALFORMED);
        }
        let name = export_name(name)?;
        let export = self.exports.open(name).map_err(|error| no_export(&error))?;
        let geometry = export.device.geometry();
        let size = geometry.size_bytes.to_be_bytes();
        let flags = self.flags(&export, &geometry).to_be_bytes();
        self.reply(number, option_reply::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        let preferred = geometry.preferred_bytes.clamp(PREFERRED_MIN, PAYLOAD_MAX);
        self.reply(
            number,
            option_reply::INFO,
            &[
                &info::BLOCK_SIZE.to_be_bytes(),
                &1_u32.to_be_bytes(),
                &preferred.to_be_bytes(),
                &PAYLOAD_MAX.to_be_bytes(),
            ],
        );
        // Unknown kinds stay unanswered: the protocol leaves the choice to the server.
        if wanted.contains(&info::NAME) || wanted.contains(&info::DESCRIPTION) {
            self.describe(number, &export.name, &wanted);
        }
        self.reply(number, option_reply::ACK, &[]);
        Ok(self.session(name, export))
    }

    fn describe(&mut self, number: u32, name: &str, wanted: &[u16]) {
        let found = self.exports.list().into_iter().find(|export| export.name == name);
        // The export may have gone since it was opened. The client still gets its name.
        let export = found
            .unwrap_or_else(|| ExportInfo { name: name.to_owned(), description: String::new() });
        if wanted.contains(&info::NAME) {
            let kind = info::NAME.to_be_bytes();
            self.reply(number, option_reply::INFO, &[&kind, export.name.as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description.is_empty() {
            let kind = info::DESCRIPTION.to_be_bytes();
            self.reply(number, option_reply::INFO, &[&kind, export.description.as_bytes()]);
        }
    }

    fn meta_context(&mut self, number: u32, data: &[u8]) -> Result<Step, Refusal> {
        let select = number == option::SET_META_CONTEXT;
        if select {
            // Even a selection that fails replaces the one before.
            self.context_for = None;
        }
        if !self.structured {
            let first = "structured replies must be agreed on first";
            return Err((option_reply::ERR_INVALID, first.into()));
        }
        let mut fields = Fields(data);
        let name = fields.counted().ok_or(MALFORMED)?;
        let count = fields.u32().ok_or(MALFORMED)?;
        // An empty list of queries lists all contexts and selects none.
        let mut matches = count == 0 && !select;
        for _ in 0..count {
            let query = fields.counted().ok_or(MALFORMED)?;
            // `base:` asks for all contexts of the namespace. A selection needs the whole name.
            matches |= query == BASE_ALLOCATION.as_bytes() || (!select && query == b"base:");
        }
        if !fields.is_empty() {
            return Err(MALFORMED);
        }
        let name = export_name(name)?;
        // Opened only to refuse an unavailable export; the device is dropped again.
        self.exports.open(name).map_err(|error| no_export(&error))?;
        if matches {
            let id = if select { CONTEXT_ID } else { 0 }.to_be_bytes();
            let context = [&id[..], BASE_ALLOCATION.as_bytes()];
            self.reply(number, option_reply::META_CONTEXT, &context);
            if select {
                self.context_for = Some(name.to_owned());
            }
        }
        self.reply(number, option_reply::ACK, &[]);
        Ok(Step::Continue)
    }
}

/// Returns the name of an export, if it can be one.
fn export_name(bytes: &[u8]) -> Result<&str, Refusal> {
    if bytes.len() > NAME_MAX {
        return Err((option_reply::ERR_TOO_BIG, "names have at most 4096 bytes".into()));
    }
    std::str::from_utf8(bytes)
        .map_err(|_| (option_reply::ERR_INVALID, "the export's name is not UTF-8".into()))
}
