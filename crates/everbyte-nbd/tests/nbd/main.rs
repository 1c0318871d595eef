//! The server and the client against each other and against raw bytes.

#![expect(clippy::unwrap_used, reason = "in tests a failure is to panic")]

mod connections;
mod crowd;
mod handshake;
mod hostile;
mod lifecycle;
mod limits;
mod plain;
mod reconnect;
mod remote;
mod support;
mod transmission;
