//! Addresses and NBD URIs as people type them.
//!
//! Oracle: no panic, and every accepted text is the same after it was written and read again. Texts
//! with a name for a resolver are skipped.

use std::net::IpAddr;

use everbyte_nbd::Address;

/// Reads `bytes` as an address and as a URI.
///
/// # Panics
/// If a promise is broken.
pub fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(rest) = text.strip_prefix("tcp:") {
        // A resolver would make the result depend on the network, and could block.
        let host = rest.rsplit_once(':').map_or("", |(host, _)| host);
        if !needs_no_resolver(host) {
            return;
        }
    }
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address.clone()), "{text:?} reads differently");
        assert_comes_back(&address, "");
        // Any text is a possible name of an export, so the escapes of URIs meet every character.
        assert_comes_back(&address, text);
    }
    if let Some((_, rest)) = text.split_once("://") {
        let authority = rest.split(['/', '?']).next().unwrap_or("");
        let host = match authority.rsplit_once(':') {
            // A colon within brackets belongs to an IPv6 address, as in the reader under test.
            Some((host, port)) if !port.ends_with(']') => host,
            _ => authority,
        };
        if !needs_no_resolver(host) {
            return;
        }
    }
    if let Ok((address, export)) = Address::from_uri(text) {
        assert_comes_back(&address, &export);
    }
}

fn assert_comes_back(address: &Address, export: &str) {
    let uri = address.uri(export);
    assert_eq!(Address::from_uri(&uri), Ok((address.clone(), export.to_owned())), "{uri}");
}

fn needs_no_resolver(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    host.is_empty() || host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}
