//! Network block devices: a server for any set of [`everbyte_device::BlockDevice`]s, and a client
//! that makes a device of a remote export.
//!
//! The fixed newstyle handshake with structured replies, block status (`base:allocation`), FUA,
//! trimming, (fast) zeroing, caching hints and several connections to one export; no TLS.
//! A connection has a thread of its own, which takes and answers requests in batches.
//!
//! Knows devices only by their trait, and nothing of pools.
#![forbid(unsafe_code)]

mod address;
mod blocks;
mod cancel;
mod client;
mod connections;
mod counters;
mod disconnect;
mod exports;
mod handshake;
mod input;
mod listener;
mod output;
mod protocol;
mod reconnecting;
mod remote;
mod server;
mod transmission;
mod wire;

use everbyte_device::unflushed;

pub use address::{Address, AddressError, is_uri};
pub use cancel::Cancel;
pub use client::{Client, ClientError, ClientOptions, Cookie, Reply};
pub use connections::Disconnected;
pub use counters::{ConnectionInfo, ServerStats};
pub use exports::{Durability, Export, ExportInfo, Exports, OpenError};
pub use listener::{BindError, SocketFile};
pub use remote::{Reconnect, RemoteDevice};
pub use server::{ConnectionEnd, Server, Settings, serve_connection};
