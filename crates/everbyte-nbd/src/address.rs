//! Where servers listen and clients connect: `unix:PATH`, `tcp:HOST:PORT`, and NBD URIs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// The port that an NBD URI means when it names none.
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

/// Why a text is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Neither of the two forms.
    #[error("{text:?} is no address: use unix:PATH, tcp:HOST:PORT or tcp:PORT")]
    Form {
        /// What was given.
        text: String,
    },
    /// The path is empty or longer than a socket's path may be.
    #[error("{text:?}: the path of a Unix socket has 1 to 107 bytes")]
    Path {
        /// What was given.
        text: String,
    },
    /// The port is no number below 65536.
    #[error("{text:?}: {port:?} is no port")]
    Port {
        /// What was given.
        text: String,
        /// The part that should be a port.
        port: String,
    },
    /// The host has no address.
    #[error("{text:?}: host {host:?} cannot be resolved: {reason}")]
    Host {
        /// What was given.
        text: String,
        /// The part that names a host.
        host: String,
        /// The system's words.
        reason: String,
    },
    /// Not an NBD URI that can be used here.
    #[error(
        "{text:?} is no NBD URI: use nbd://HOST[:PORT]/EXPORT or \
             nbd+unix:///EXPORT?socket=PATH"
    )]
    Uri {
        /// What was given.
        text: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    /// Reads `unix:PATH`, `tcp:HOST:PORT`, or `tcp:PORT` and `tcp::PORT`, which mean loopback.
    /// An IPv6 host stands in brackets. A host name is resolved at once.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path.into(), text);
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(AddressError::Form { text: text.to_owned() });
        };
        let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
        tcp(host, port, text)
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
    /// The URI by which other NBD clients reach `export` here.
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

    /// Reads an NBD URI: the address and the name of the export, which may be empty.
    ///
    /// # Errors
    /// If it is none, if its scheme needs TLS, or if its host cannot be resolved.
    pub fn from_uri(text: &str) -> Result<(Self, String), AddressError> {
        let wrong = || AddressError::Uri { text: text.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export).and_then(|b| String::from_utf8(b).ok()).ok_or_else(wrong)?;
        let address = match scheme {
            "nbd" => {
                let (host, port) = match authority.rsplit_once(':') {
                    Some((host, port)) if !port.ends_with(']') => (host, port.to_owned()),
                    _ => (authority, DEFAULT_PORT.to_string()),
                };
                tcp(host, &port, text)?
            }
            "nbd+unix" if authority.is_empty() => {
                let path = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
                let path = path.and_then(decode).ok_or_else(wrong)?;
                unix(std::os::unix::ffi::OsStringExt::from_vec(path), text)?
            }
            _ => return Err(wrong()),
        };
        Ok((address, export))
    }
}

fn unix(path: std::ffi::OsString, text: &str) -> Result<Address, AddressError> {
    if path.is_empty() || path.len() > UNIX_PATH_MAX || path.as_encoded_bytes().contains(&0) {
        return Err(AddressError::Path { text: text.to_owned() });
    }
    Ok(Address::Unix(path.into()))
}

fn tcp(host: &str, port: &str, text: &str) -> Result<Address, AddressError> {
    let Ok(number) = port.parse() else {
        return Err(AddressError::Port { text: text.to_owned(), port: port.to_owned() });
    };
    if host.is_empty() || host.eq_ignore_ascii_case("localhost") {
        return Ok(Address::Tcp((Ipv4Addr::LOCALHOST, number).into()));
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(Address::Tcp((ip, number).into()));
    }
    let unresolved = |reason: String| AddressError::Host {
        text: text.to_owned(),
        host: host.to_owned(),
        reason,
    };
    let mut found = (bare, number).to_socket_addrs().map_err(|e| unresolved(e.to_string()))?;
    let first = found.next().ok_or_else(|| unresolved("it has no address".to_owned()))?;
    Ok(Address::Tcp(first))
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
    fn the_forms() {
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
}
