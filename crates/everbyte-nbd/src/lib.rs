//! Network block devices: a server for any set of [`everbyte_device::BlockDevice`]s, and a client
//! that presents a remote export as a device.
//!
//! The fixed newstyle handshake with structured replies, block status (`base:allocation`), FUA,
//! trimming, (fast) zeroing, caching hints and several connections to one export; no TLS. Each
//! connection has one thread, which takes and answers requests in batches.
//!
//! Knows devices only by their trait, and nothing of pools.
//!
//! # Example
//! A server with one export, and a client of it:
//! ```
//! use std::sync::Arc;
//!
//! use everbyte_device::{Fua, MemoryDevice};
//! use everbyte_nbd::{Client, Export, ExportInfo, Exports, OpenError, Server};
//!
//! struct OneDisk(Arc<MemoryDevice>);
//!
//! impl Exports for OneDisk {
//!     fn list(&self) -> Vec<ExportInfo> {
//!         vec![ExportInfo { name: "disk".into(), description: "volatile memory".into() }]
//!     }
//!     fn open(&self, name: &str) -> Result<Export, OpenError> {
//!         if name != "disk" {
//!             return Err(OpenError::Unknown);
//!         }
//!         Ok(Export::new(name, Arc::<MemoryDevice>::clone(&self.0)))
//!     }
//! }
//!
//! let exports = Arc::new(OneDisk(Arc::new(MemoryDevice::new(1 << 20))));
//! let server = Server::bind(&"tcp:127.0.0.1:0".parse()?, exports)?; // a free port
//! let mut client = Client::connect_uri(&server.address().uri("disk"))?;
//! client.write(4096, b"hello", Fua::Yes)?;
//! assert_eq!(client.read(4096, 5)?, b"hello");
//! client.disconnect()?;
//! server.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! [`RemoteDevice`] presents an export as a [`BlockDevice`](everbyte_device::BlockDevice). It
//! reconnects after the loss of the server.
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
mod payloads;
mod protocol;
mod reconnecting;
mod remote;
mod remote_text;
mod server;
mod transmission;
mod wire;

use everbyte_device::unflushed;

pub use address::{Address, AddressError, is_uri};
pub use cancel::Cancel;
pub use client::{Client, ClientError, ClientOptions, Cookie, Reply};
pub use connections::Disconnected;
pub use counters::ServerStats;
pub use exports::{Durability, Export, ExportInfo, Exports, OpenError};
pub use listener::{BindError, Listener, SocketFile};
pub use payloads::PayloadMemory;
pub use remote::{Reconnect, RemoteDevice};
pub use server::{ConnectionEnd, Server, Settings, serve_connection};
