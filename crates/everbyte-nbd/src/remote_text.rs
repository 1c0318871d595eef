//! Error texts for clients. A client may be on another machine.
//!
//! Owns the choice of each such text. Invariants: a text consists of words of this file, numbers of
//! the request, and reasons written for clients. Reasons of devices go only to the log, because
//! they may name paths, addresses and owners.

use std::borrow::Cow;

use everbyte_device::DeviceError;

use crate::exports::OpenError;

/// Longest reason sent, in bytes. The protocol's strings have at most 4096.
const REASON_MAX: usize = 1024;

/// The text for a client whose export cannot be opened.
pub(crate) fn of_open_error(error: &OpenError) -> Cow<'static, str> {
    match error {
        OpenError::Unknown => "there is no export of this name".into(),
        OpenError::Unavailable { reason } => with_reason("the export is not available", reason),
        OpenError::Forbidden { reason } => with_reason("the export is not to be opened", reason),
        OpenError::ShuttingDown => "the server is shutting down".into(),
    }
}

fn with_reason(text: &str, reason: &str) -> Cow<'static, str> {
    match is_sendable(reason) {
        true => format!("{text}: {reason}").into(),
        false => format!("{text}; the server's log says why").into(),
    }
}

/// Returns false for a reason that may contain a path, or is not plain text.
fn is_sendable(reason: &str) -> bool {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !b"/\\".contains(&byte);
    reason.len() <= REASON_MAX && reason.bytes().all(is_plain)
}

/// The text for a client whose request has failed.
pub(crate) fn of_device_error(error: &DeviceError) -> Cow<'static, str> {
    match error {
        DeviceError::NoSpace { offset, len, .. } => {
            format!("no space left for {len} bytes at {offset}").into()
        }
        DeviceError::ReadOnly { .. } => "the export is read-only".into(),
        DeviceError::Media { offset, len, .. } => {
            format!("media error at {offset}+{len}; the server's log says more").into()
        }
        DeviceError::OutOfRange { .. } | DeviceError::NotFast | DeviceError::Gone => {
            error.to_string().into()
        }
        _ => "the request failed; the server's log says why".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: [&str; 6] = [
        "/srv/customer data/ACME merger 2026/disk image.raw",
        "'/mnt/a b'",
        "/mnt/two\nlines",
        "/mnt/\"quoted\"/ä\u{2003}b",
        "nbd+unix:///x?socket=/run/s e",
        "C:\\disks\\a b",
    ];

    #[test]
    fn reasons_stay_on_the_servers_machine() {
        for secret in SECRETS {
            let secret = || format!("open {secret}: no such file");
            for (error, words) in [
                (OpenError::Unavailable { reason: secret() }, "not available; "),
                (OpenError::Forbidden { reason: secret() }, "not to be opened; "),
            ] {
                let text = of_open_error(&error);
                assert!(text.contains(words) && !text.contains("no such file"), "{text}");
            }
            let (offset, len) = (4096, 512);
            for (error, words) in [
                (DeviceError::NoSpace { offset, len, reason: secret() }, "512 bytes at 4096"),
                (DeviceError::ReadOnly { reason: secret() }, "read-only"),
                (DeviceError::Media { offset, len, reason: secret() }, "at 4096+512"),
            ] {
                let text = of_device_error(&error);
                assert!(text.contains(words) && !text.contains("no such file"), "{text}");
            }
        }
        let reason = "it is lent".to_owned();
        let text = of_open_error(&OpenError::Unavailable { reason });
        assert_eq!(text, "the export is not available: it is lent");
    }
}
