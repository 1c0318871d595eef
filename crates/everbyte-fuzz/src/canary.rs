//! The canary: a target with a planted mistake, to prove that finding and reporting work.
//!
//! Comparisons that chance alone does not pass hide the mistake, as in real code.

/// Takes a length-prefixed message apart and trusts a wrong length.
///
/// # Panics
/// For messages with the prefix `EVER`, a version of at least 7, and a length beyond their end.
pub fn canary(bytes: &[u8]) {
    // One byte after the other, so that a fuzzer can detect progress.
    let mut rest = bytes;
    for wanted in b"EVER" {
        match rest.split_first() {
            Some((byte, after)) if byte == wanted => rest = after,
            _ => return,
        }
    }
    let [version, len, payload @ ..] = rest else { return };
    // A value that few inputs of a corpus have by chance.
    if *version < 7 {
        return;
    }
    // The planted mistake: the length is not checked.
    let payload = &payload[..usize::from(*len)];
    assert!(payload.len() == usize::from(*len), "a slice has the length it was cut to");
}
