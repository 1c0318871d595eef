//! The NBD server against hostile clients, and the client against hostile servers.

mod client;
mod protocol;
mod reference;
mod server;

pub use client::nbd_client;
pub use server::nbd_server;
