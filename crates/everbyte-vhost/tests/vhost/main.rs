//! The server against virtual machines made by hand, and against the crate `virtio-driver`.
#![allow(unsafe_code, reason = "descriptors of the wrong kind")]

mod guest;
mod hostile;
mod requests;
