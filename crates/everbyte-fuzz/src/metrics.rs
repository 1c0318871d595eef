//! HTTP requests for the page of metrics, in any pieces.
//!
//! Oracle: no panic. A decision is final: further bytes do not change it. The page goes only to
//! requests for its path, and a head of the largest length has a decision.

use everbyte_server::metrics::{Reply, reply_to};

/// Bytes from which on a head must have a decision.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Receives `bytes` one by one.
///
/// # Panics
/// If a promise is broken.
pub fn metrics_request(bytes: &[u8]) {
    let whole = reply_to(bytes);
    // The time for a long head grows with its square.
    let prefixes = bytes.len().min(512);
    let first = (0..prefixes).find(|len| reply_to(&bytes[..*len]) != Reply::Incomplete);
    if let Some(len) = first {
        assert_eq!(reply_to(&bytes[..len]), whole);
    }
    if let Reply::Page { is_head } = whole {
        let start: &[u8] = if is_head { b"HEAD /metrics" } else { b"GET /metrics" };
        assert!(bytes.starts_with(start));
    }
    assert!(whole != Reply::Incomplete || bytes.len() < HEAD_BYTES_MAX);
}
