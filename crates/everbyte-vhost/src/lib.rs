//! A vhost-user-blk server: block devices for the guests of virtual machines, over any
//! [`BlockDevice`](everbyte_device::BlockDevice).
//!
//! A [`VhostServer`] serves one device on one Unix socket. Each queue of the guest has one thread. It drains the
//! ring, executes the requests inline and notifies the guest once. If the ring stays empty for a short time, the
//! thread sleeps.
//!
//! The guest is not trusted: it can write any bytes to its rings, and truncate its memory, at any time. An invalid
//! request fails. An invalid ring, message or descriptor ends the connection.
#![allow(unsafe_code, reason = "access to the memory of guests")]

mod config;
mod connection;
mod inflight;
mod memory;
mod notice;
mod request;
mod ring;
mod server;
mod session;

pub use server::{OpenDevice, VhostServer, VhostSettings, serve_connection};
