//! Addresses of servers: `unix:PATH`, `tcp:HOST:PORT`, and NBD URIs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an NBD URI without a port.
const DEFAULT_PORT: u16 = 10809;

/// The longest path a Unix socket can have on Linux, in bytes.
const UNIX_PATH_MAX: usize = 107;

/// An address of a server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A Unix stream socket, by the path of its file.
    Unix(PathBuf),
    /// A TCP socket. When listening, port 0 lets the system choose.
    Tcp(SocketAddr),
}

/// A text is not an address. Holds the reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text has neither of the two forms.
    #[error("{text:?} is no address: use unix:PATH, tcp:HOST:PORT or tcp:PORT")]
    Form {
        /// The text.
        text: String,
    },
    /// The path is empty or longer than a socket's path may be.
    #[error("{text:?}: the path of a Unix socket has 1 to 107 bytes")]
    Path {
        /// The text.
        text: String,
    },
    /// The port is not a number below 65536.
    #[error("{text:?}: {port:?} is no port")]
    Port {
        /// The text.
        text: String,
        /// The part that should be a port.
        port: String,
    },
    /// The host has no address.
    #[error("{text:?}: host {host:?} cannot be resolved: {reason}")]
    Host {
        /// The text.
        text: String,
        /// The part that names a host.
        host: String,
        /// The system's words.
        reason: String,
    },
    /// The text is not a usable NBD URI.
    #[error(
        "{text:?} is no NBD URI that can be used: {reason}; use nbd://HOST[:PORT]/EXPORT or \
         nbd+unix:///EXPORT?socket=PATH"
    )]
    Uri {
        /// The text.
        text: String,
        /// The mistake in it.
        reason: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `unix:PATH`, `tcp:HOST:PORT`, or `tcp:PORT` and `tcp::PORT`, which mean loopback. An
    /// IPv6 host stands in brackets. A host name is resolved immediately.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path.into(), text).map(Self::Unix);
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(AddressError::Form { text: text.to_owned() });
        };
        // The last colon, because an IPv6 host has others.
        let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
        let port = parse_port(port, text)?;
        let place = Place::Host { host: host.to_owned(), port };
        let unresolved = || no_address(text, host, NO_ADDRESS);
        place.addresses()?.into_iter().next().ok_or_else(unresolved)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl Address {
    /// The URI of `export` at this address, for other NBD clients.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        let export = encode(export.as_bytes(), b"-._~/");
        match self {
            Self::Unix(path) => {
                let path = encode(path.as_os_str().as_encoded_bytes(), b"-._~/");
                format!("nbd+unix:///{export}?socket={path}")
            }
            Self::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }

    /// Reads an NBD URI: the address and the name of the export, which may be empty. A host with
    /// several addresses gives its first.
    ///
    /// # Errors
    /// `Uri` if the text is not an NBD URI or its scheme needs TLS; `Host` if its host cannot be
    /// resolved.
    pub fn from_uri(text: &str) -> Result<(Self, String), AddressError> {
        let (place, export) = Place::from_uri(text)?;
        let unresolved = || no_address(text, &place.to_string(), NO_ADDRESS);
        let first = place.addresses()?.into_iter().next().ok_or_else(unresolved)?;
        Ok((first, export))
    }
}

const NO_ADDRESS: &str = "it has no address";

/// Returns true if a text begins like an NBD URI. It may still be unusable.
#[must_use]
pub fn is_uri(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| {
        matches!(scheme, "nbd" | "nbds" | "nbd+unix" | "nbds+unix" | "nbd+vsock" | "nbds+vsock")
    })
}

/// The server of a URI: a socket's file, or a host whose addresses may change with time.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Unix(PathBuf),
    Host { host: String, port: u16 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Host { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl Place {
    /// Reads an NBD URI without resolving its host.
    ///
    /// # Errors
    /// The mistake in the URI.
    pub(crate) fn from_uri(text: &str) -> Result<(Self, String), AddressError> {
        let wrong = |reason: &str| AddressError::Uri { text: text.into(), reason: reason.into() };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong(&why_no_uri(text)));
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export).and_then(|bytes| String::from_utf8(bytes).ok());
        let export =
            export.ok_or_else(|| wrong("the export's name is not percent-encoded UTF-8"))?;
        let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
        let place = match (scheme, socket) {
            ("nbd", None) => host_and_port(authority, text)?,
            ("nbd", Some(_)) => return Err(wrong("only nbd+unix has a socket")),
            ("nbd+unix", _) if !authority.is_empty() => {
                let reason = format!(
                    "{authority:?} stands where a host does, and a Unix socket has none (three \
                     slashes)"
                );
                return Err(wrong(&reason));
            }
            ("nbd+unix", None) => return Err(wrong("it does not say which socket")),
            ("nbd+unix", Some(socket)) => {
                let path = decode(socket)
                    .ok_or_else(|| wrong("the socket's path is not percent-encoded"))?;
                unix_path(std::os::unix::ffi::OsStringExt::from_vec(path), text).map(Self::Unix)?
            }
            ("nbds" | "nbds+unix", _) => return Err(wrong("TLS is not supported")),
            _ => return Err(wrong(&format!("scheme {scheme:?} is not supported"))),
        };
        Ok((place, export))
    }

    /// Returns the addresses if they are known without a resolver.
    pub(crate) fn known_addresses(&self) -> Option<Vec<Address>> {
        let (host, port) = match self {
            Self::Unix(path) => return Some(vec![Address::Unix(path.clone())]),
            Self::Host { host, port } => (host, *port),
        };
        // Loopback works without a resolver, and whatever the system's hosts file contains.
        if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
            let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
            return Some(loopback.map(|ip| Address::Tcp((ip, port).into())).into());
        }
        let ip: IpAddr = without_brackets(host).parse().ok()?;
        Some(vec![Address::Tcp((ip, port).into())])
    }

    /// Returns all addresses in the order of attempts. May block in the system's resolver.
    ///
    /// # Errors
    /// `Host` if a host has none.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, AddressError> {
        if let Some(addresses) = self.known_addresses() {
            return Ok(addresses);
        }
        let Self::Host { host, port } = self else { return Ok(Vec::new()) };
        let unresolved = |reason: &str| no_address(&self.to_string(), host, reason);
        let found = (without_brackets(host), *port).to_socket_addrs();
        let found: Vec<_> =
            found.map_err(|error| unresolved(&error.to_string()))?.map(Address::Tcp).collect();
        if found.is_empty() { Err(unresolved(NO_ADDRESS)) } else { Ok(found) }
    }
}

fn no_address(text: &str, host: &str, reason: &str) -> AddressError {
    AddressError::Host { text: text.to_owned(), host: host.to_owned(), reason: reason.to_owned() }
}

/// Describes the mistake in a text that has no `://`.
fn why_no_uri(text: &str) -> String {
    match text.split_once(':') {
        Some(("nbd+unix", path)) if !path.is_empty() => {
            let path = path.trim_start_matches('/');
            format!("a socket's path is given as nbd+unix:///EXPORT?socket=/{path}")
        }
        Some((scheme, _)) if is_uri(text) => format!("{scheme}: is followed by two slashes"),
        _ => "it begins with none of nbd:// and nbd+unix://".to_owned(),
    }
}

fn host_and_port(authority: &str, text: &str) -> Result<Place, AddressError> {
    let wrong = |reason: &str| AddressError::Uri { text: text.into(), reason: reason.into() };
    if authority.contains('@') {
        return Err(wrong("there are no user names in NBD"));
    }
    let (host, port) = match authority.rsplit_once(':') {
        // A colon in brackets belongs to an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, parse_port(port, text)?),
        _ => (authority, DEFAULT_PORT),
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(wrong("an IPv6 address stands in brackets"));
    }
    Ok(Place::Host { host: host.to_owned(), port })
}

fn unix_path(path: std::ffi::OsString, text: &str) -> Result<PathBuf, AddressError> {
    if path.is_empty() || path.len() > UNIX_PATH_MAX || path.as_encoded_bytes().contains(&0) {
        return Err(AddressError::Path { text: text.to_owned() });
    }
    Ok(path.into())
}

fn parse_port(port: &str, text: &str) -> Result<u16, AddressError> {
    let wrong = |_| AddressError::Port { text: text.to_owned(), port: port.to_owned() };
    port.parse().map_err(wrong)
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

/// Percent-encodes all but letters, digits and `plain`.
fn encode(bytes: &[u8], plain: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        text.parse::<Address>().map_or_else(|e| e.to_string(), |a| a.to_string())
    }

    #[test]
    fn address_forms_are_parsed() {
        assert_eq!(parsed("unix:/run/a b.sock"), "unix:/run/a b.sock");
        assert_eq!(parsed("tcp:10809"), "tcp:127.0.0.1:10809");
        assert_eq!(parsed("tcp::7"), "tcp:127.0.0.1:7");
        assert_eq!(parsed("tcp:0.0.0.0:7"), "tcp:0.0.0.0:7");
        assert_eq!(parsed("tcp:[::1]:7"), "tcp:[::1]:7");
        assert_eq!(parsed("tcp:localhost:7"), "tcp:127.0.0.1:7");
    }

    #[test]
    fn errors_say_what_is_wrong() {
        assert!(parsed("/run/x").contains("use unix:PATH"));
        assert!(parsed("unix:").contains("1 to 107"));
        assert!(parsed(&format!("unix:/{}", "x".repeat(107))).contains("1 to 107"));
        assert!(parsed("tcp:localhost").contains("\"localhost\" is no port"));
        assert!(parsed("tcp:1.2.3.4:70000").contains("\"70000\" is no port"));
        assert!(parsed("tcp:no host:1").contains("cannot be resolved"));
    }

    #[test]
    fn uris_and_back() {
        for (address, export, uri) in [
            ("unix:/tmp/a b?.sock", "", "nbd+unix:///?socket=/tmp/a%20b%3F.sock"),
            ("unix:/s", "v/1 %", "nbd+unix:///v/1%20%25?socket=/s"),
            ("tcp:[::1]:10809", "ä", "nbd://[::1]:10809/%C3%A4"),
            ("tcp:127.0.0.1:1", "x", "nbd://127.0.0.1:1/x"),
        ] {
            let address: Address = address.parse().unwrap();
            assert_eq!(address.uri(export), uri);
            assert_eq!(Address::from_uri(uri), Ok((address, export.to_owned())));
        }
        let (address, export) = Address::from_uri("nbd://127.0.0.1").unwrap();
        assert_eq!((address.to_string(), &*export), ("tcp:127.0.0.1:10809".to_owned(), ""));
        let (address, _) = Address::from_uri("nbd://[::1]/x").unwrap();
        assert_eq!(address.to_string(), "tcp:[::1]:10809");
        for wrong in ["http://x/", "nbds://x/", "nbd+unix:///x", "nbd+unix://h/?socket=/x", "x"] {
            assert!(Address::from_uri(wrong).is_err(), "{wrong}");
        }
        assert!(Address::from_uri("nbd://127.0.0.1/%zz").is_err());
        assert!(Address::from_uri("nbd://127.0.0.1/%f").is_err());
    }

    #[test]
    fn wrong_uris_are_errors_with_reason_and_form() {
        for (uri, words) in [
            ("nbd+unix:/run/s", "as nbd+unix:///EXPORT?socket=/run/s"),
            ("nbd+unix:///x", "does not say which socket"),
            ("nbd+unix://run/s", "\"run\" stands where a host does"),
            ("nbd+unix://h/?socket=/x", "a Unix socket has none"),
            ("nbd:h/x", "followed by two slashes"),
            ("nbds://h/x", "TLS is not supported"),
            ("nbd+vsock://1/x", "\"nbd+vsock\" is not supported"),
            ("nbd:///x?socket=/s", "only nbd+unix has a socket"),
            ("nbd://u:p@h/x", "no user names"),
            ("nbd://::1/x", "stands in brackets"),
            ("nbd://h/%zz", "percent-encoded"),
            ("/run/s", "begins with none of"),
        ] {
            let error = Address::from_uri(uri).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(error.contains("use nbd://HOST[:PORT]/EXPORT or nbd+unix:///"), "{error}");
            assert_eq!(is_uri(uri), uri.starts_with("nbd"), "{uri}");
        }
        let error = Address::from_uri("nbd://h:x/").unwrap_err().to_string();
        assert!(error.contains("\"x\" is no port"), "{error}");
    }

    #[test]
    fn host_has_all_its_addresses() {
        let (place, _) = Place::from_uri("nbd://localhost:7/x").unwrap();
        let all: Vec<_> = place.addresses().unwrap().iter().map(Address::to_string).collect();
        assert_eq!(all, ["tcp:127.0.0.1:7", "tcp:[::1]:7"]);
    }
}
