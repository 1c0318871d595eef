//! The reasons why a server's connection ends.

use std::io;

use crate::exports::OpenError;
use crate::protocol::Request;

/// The reason why a connection ended without a polite goodbye.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DisconnectReason {
    /// The peer closed between requests.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed within a message.
    #[error("the peer closed the connection in the middle of a message")]
    Cut,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(io::Error),
    /// The handshake took too long.
    #[error("the handshake was not finished in time")]
    Late,
    /// A message that had begun made no progress.
    #[error("the peer sent or took nothing for too long in the middle of a message")]
    Stalled,
    /// A newer connection has taken the place of the handshake.
    #[error("the handshake was pending when the server needed its place for a newer connection")]
    Replaced,
    /// The client sent more options than a handshake has.
    #[error("the handshake has more than {0} options")]
    TooManyOptions(u32),
    /// The client sent a payload slowly while others waited for the memory.
    #[error("the payload of a write arrived slowly while other clients waited for the memory")]
    Slow,
    /// Other clients use the memory for payloads.
    #[error("there was no memory for the payload of a write")]
    NoMemory,
    /// No request came for as long as the server allows.
    #[error("no request came for longer than a client may be idle")]
    Idle,
    /// The client sent flags that are undefined or were not offered.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// An option does not start as options do.
    #[error("an option starts with {0:#018x}")]
    OptionMagic(u64),
    /// An option is longer than any sensible one.
    #[error("option {option} has {len} bytes of data")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// Its bytes of data.
        len: u32,
    },
    /// The client requested an unavailable export with the one option without an error reply.
    #[error("export {name:?}: {error}")]
    NoExport {
        /// The requested name.
        name: String,
        /// The reason for the refusal.
        error: OpenError,
    },
    /// A request does not start as requests do.
    #[error("a request starts with {0:#010x}")]
    RequestMagic(u32),
    /// A write has more payload than is allowed.
    #[error("a write has {} bytes of payload", .0.len)]
    PayloadTooLong(Request),
}

impl DisconnectReason {
    /// Returns true if the peer, not the network, is to blame.
    pub(crate) fn is_offence(&self) -> bool {
        match self {
            Self::Closed | Self::Cut | Self::Socket(_) | Self::NoMemory => false,
            // An existing export can be unavailable without a fault of the client.
            Self::NoExport { error, .. } => *error == OpenError::Unknown,
            _ => true,
        }
    }
}

impl From<io::Error> for DisconnectReason {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Cut,
            // The only sockets with a time limit of their own are those that replies go to.
            io::ErrorKind::WouldBlock => Self::Stalled,
            _ => Self::Socket(error),
        }
    }
}
