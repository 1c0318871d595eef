//! The server against virtual machines made by hand, and against the crate `virtio-driver`.
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(unsafe_code, reason = "descriptors of the wrong kind, and shared memory")]

mod driver;
mod guest;
mod hostile;
mod requests;
