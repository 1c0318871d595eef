//! The answers that a server owes to a client's bytes: a second server, written to be obviously
//! right.
//!
//! Takes all bytes of the client together and works on a separate device. Texts of errors and their
//! numbers are the server's choice; everything else is compared exactly.

use everbyte_device::{BlockDevice, Extent, Fua, Hole, MemoryDevice};

use super::protocol::*;

/// An answer that the server owes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// A reply to an option without an error.
    Option {
        option: u32,
        kind: u32,
    },
    OptionError {
        option: u32,
    },
    /// The export's size and flags, without a header: the oldest way to open an export.
    Export {
        zeroes: bool,
    },
    /// Success without data.
    Done {
        cookie: u64,
    },
    Failed {
        cookie: u64,
    },
    Data {
        cookie: u64,
        offset: u64,
        data: Vec<u8>,
    },
    Status {
        cookie: u64,
        extents: Vec<Extent>,
    },
}

/// Exports by name.
pub(crate) fn has_export(name: &[u8]) -> bool {
    matches!(name, b"" | b"disk")
}

/// Number of exports that are listed.
pub(crate) const EXPORTS: usize = 1;

/// The terms agreed on before requests may come, and the rest of the client's bytes.
pub(crate) struct Reference<'a> {
    input: Fields<'a>,
    device: &'a MemoryDevice,
    read_only: bool,
    no_zeroes: bool,
    pub(crate) structured: bool,
    context_for: Option<Vec<u8>>,
    said: Vec<Said>,
}

/// The phase after an option.
enum Next {
    Option,
    End,
    Requests { status: bool },
}

impl<'a> Reference<'a> {
    pub(crate) fn new(input: &'a [u8], device: &'a MemoryDevice) -> Self {
        Self {
            input: Fields(input),
            device,
            read_only: device.geometry().read_only,
            no_zeroes: false,
            structured: false,
            context_for: None,
            said: Vec::new(),
        }
    }

    /// Returns all answers that the server owes after its greeting.
    pub(crate) fn answer(mut self) -> (bool, Vec<Said>) {
        // The end of the input ends the conversation at any point.
        let _ = self.talk();
        (self.structured, self.said)
    }

    fn talk(&mut self) -> Option<()> {
        let flags = self.input.u32()?;
        // Two flags were offered. Any other one ends the connection.
        if flags > 3 {
            return None;
        }
        self.no_zeroes = flags & 2 != 0;
        let status = loop {
            if self.input.u64()? != OPTION_MAGIC {
                return None;
            }
            let option = self.input.u32()?;
            let len = self.input.u32()?;
            if len > OPTION_DATA_MAX {
                return None;
            }
            let data = self.input.bytes(len as usize)?;
            match self.option(option, data) {
                Some(Next::Option) => {}
                Some(Next::End) => return None,
                Some(Next::Requests { status }) => break status,
                // A refusal does not end the handshake.
                None => self.said.push(Said::OptionError { option }),
            }
        };
        loop {
            self.request(status)?;
        }
    }

    fn say(&mut self, option: u32, kind: u32) {
        self.said.push(Said::Option { option, kind });
    }

    /// Answers an option; returns `None` if it is refused.
    fn option(&mut self, option: u32, data: &[u8]) -> Option<Next> {
        match option {
            EXPORT_NAME => {
                // The option has no error reply.
                if !has_export(data) {
                    return Some(Next::End);
                }
                self.said.push(Said::Export { zeroes: !self.no_zeroes });
                return Some(Next::Requests { status: self.context_for.as_deref() == Some(data) });
            }
            ABORT => {
                self.say(option, REPLY_ACK);
                return Some(Next::End);
            }
            LIST if data.is_empty() => {
                (0..EXPORTS).for_each(|_| self.say(option, REPLY_SERVER));
                self.say(option, REPLY_ACK);
            }
            STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.say(option, REPLY_ACK);
            }
            INFO | GO => return self.info(option, data),
            LIST_META_CONTEXT | SET_META_CONTEXT => self.contexts(option, data)?,
            _ => return None,
        }
        Some(Next::Option)
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Option<Next> {
        let mut fields = Fields(data);
        let name = fields.counted()?;
        let count = fields.u16()?;
        let wanted: Vec<u16> = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
        if !fields.0.is_empty() || !has_export(name) {
            return None;
        }
        // Size and flags, block sizes, and the requested ones of name and description.
        let more = [1, 2].into_iter().filter(|kind| wanted.contains(kind)).count();
        (0..2 + more).for_each(|_| self.say(option, REPLY_INFO));
        self.say(option, REPLY_ACK);
        let status = self.context_for.as_deref() == Some(name);
        Some(if option == GO { Next::Requests { status } } else { Next::Option })
    }

    fn contexts(&mut self, option: u32, data: &[u8]) -> Option<()> {
        let selects = option == SET_META_CONTEXT;
        if selects {
            self.context_for = None;
        }
        if !self.structured {
            return None;
        }
        let mut fields = Fields(data);
        let name = fields.counted()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.counted()?);
        }
        if !fields.0.is_empty() || !has_export(name) {
            return None;
        }
        let exact = queries.contains(&&b"base:allocation"[..]);
        let listed = queries.is_empty() || queries.contains(&&b"base:"[..]);
        if exact || (!selects && listed) {
            self.say(option, REPLY_META_CONTEXT);
            if selects {
                self.context_for = Some(name.to_vec());
            }
        }
        self.say(option, REPLY_ACK);
        Some(())
    }

    /// Answers a request; returns `None` once the conversation is over.
    fn request(&mut self, status: bool) -> Option<()> {
        if self.input.u32()? != REQUEST_MAGIC {
            return None;
        }
        let (flags, command) = (self.input.u16()?, self.input.u16()?);
        let (cookie, offset, len) = (self.input.u64()?, self.input.u64()?, self.input.u32()?);
        if command == DISC {
            return None;
        }
        // Answered before its payload, which the server does not receive.
        if command == WRITE && len > PAYLOAD_MAX {
            self.said.push(Said::Failed { cookie });
            return None;
        }
        // A write that is cut short is not executed and not answered.
        let payload = if command == WRITE { self.input.bytes(len as usize)? } else { &[] };
        // FUA is offered, so every command may carry it.
        let allowed = FLAG_FUA
            | match command {
                READ if self.structured => FLAG_DF,
                WRITE_ZEROES => FLAG_NO_HOLE | FLAG_FAST_ZERO,
                BLOCK_STATUS => FLAG_REQ_ONE,
                _ => 0,
            };
        let known =
            matches!(command, READ | WRITE | FLUSH | TRIM | CACHE | WRITE_ZEROES | BLOCK_STATUS);
        let changes = matches!(command, WRITE | TRIM | WRITE_ZEROES);
        let refused = !known
            || flags & !allowed != 0
            || (changes && self.read_only)
            || (command == BLOCK_STATUS && !status)
            || (command == READ && len > PAYLOAD_MAX);
        let said = if refused {
            Said::Failed { cookie }
        } else {
            self.done(command, flags, cookie, offset, len, payload)
        };
        self.said.push(said);
        Some(())
    }

    fn done(
        &self,
        command: u16,
        flags: u16,
        cookie: u64,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> Said {
        let device = self.device;
        let size_bytes = device.geometry().size_bytes;
        let wide = u64::from(len);
        let fits = offset.checked_add(wide).is_some_and(|end| end <= size_bytes);
        // A flush has no range, whatever its fields contain.
        if command != FLUSH && !fits {
            return Said::Failed { cookie };
        }
        let hole = if flags & FLAG_NO_HOLE == 0 { Hole::Allowed } else { Hole::Forbidden };
        let done = match command {
            READ => {
                let mut data = vec![0; len as usize];
                device.read(offset, &mut data).unwrap();
                return match len {
                    // A chunk of data must not be empty.
                    0 => Said::Done { cookie },
                    _ => Said::Data { cookie, offset, data },
                };
            }
            BLOCK_STATUS => {
                let extents_max = if flags & FLAG_REQ_ONE == 0 { 1024 } else { 1 };
                return match device.status(offset, wide, extents_max) {
                    Ok(extents) => Said::Status { cookie, extents },
                    Err(_) => Said::Failed { cookie },
                };
            }
            // Durability does not show in the contents of a device in DRAM.
            WRITE => device.write(offset, payload, Fua::No),
            TRIM => device.discard(offset, wide, Fua::No),
            WRITE_ZEROES => device.write_zeroes(offset, wide, hole, false, Fua::No),
            _ => Ok(()),
        };
        done.unwrap();
        Said::Done { cookie }
    }
}
