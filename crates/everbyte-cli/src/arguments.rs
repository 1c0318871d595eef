//! Arguments shared by several subcommands.
//!
//! Owns the error of arguments valid one by one but not together. It ends the program with status
//! 2, as clap's own errors do.

use nix::unistd::{Group, User};

/// Arguments not valid together, in words for the user of the command line.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Reads the path of a backing device, or its NBD URI in one of the two forms.
///
/// # Errors
/// The text looks like a URI and has neither form.
pub(crate) fn parse_backing(text: &str) -> Result<String, String> {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    // The syntax of RFC 3986. A path such as ./a:b has no scheme, because its first part has a
    // slash.
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let rest = |scheme: &str| &text[scheme.len() + 1..];
    match scheme.filter(|scheme| is_scheme(scheme)) {
        Some(scheme @ ("nbd" | "nbd+unix")) if rest(scheme).starts_with("//") => {}
        // A mistyped URI would otherwise name a missing file, and the error would suggest to create
        // it.
        Some(scheme) if scheme.starts_with("nbd") || rest(scheme).starts_with("//") => {
            return Err(format!(
                "{text:?} is no URI of a backing device: write nbd://HOST:PORT/EXPORT or \
                 nbd+unix:///EXPORT?socket=PATH; a file of this name is ./{text}"
            ));
        }
        _ => {}
    }
    Ok(text.to_owned())
}

/// Reads the permission bits of a socket's file.
///
/// # Errors
/// The text is not an octal number of three digits.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    // Beyond 0777 are the set-ID and sticky bits, which have no meaning for a socket.
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| {
        format!("{text:?} are no permissions: write up to three octal digits, as 660")
    })
}

/// Finds the number of a user by its name, or reads it.
///
/// # Errors
/// The user does not exist.
pub(crate) fn find_user(text: &str) -> Result<u32, UsageError> {
    let found = User::from_name(text).map_err(|error| UsageError(error.to_string()))?;
    // Names first: a user's name may consist of digits.
    let number = found.map(|user| user.uid.as_raw()).or_else(|| text.parse().ok());
    number.ok_or_else(|| UsageError(format!("there is no user {text:?}")))
}

/// Finds the number of a group by its name, or reads it.
///
/// # Errors
/// The group does not exist.
pub(crate) fn find_group(text: &str) -> Result<u32, UsageError> {
    let found = Group::from_name(text).map_err(|error| UsageError(error.to_string()))?;
    // Names first: a group's name may consist of digits.
    let number = found.map(|group| group.gid.as_raw()).or_else(|| text.parse().ok());
    number.ok_or_else(|| UsageError(format!("there is no group {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_modes_and_users_are_refused() {
        assert_eq!(parse_mode("660"), Ok(0o660));
        assert_eq!(parse_mode("0600"), Ok(0o600));
        for text in ["", "8", "1000", "rw", "-1"] {
            assert!(parse_mode(text).unwrap_err().contains("octal"), "{text}");
        }
        assert_eq!(["root", "77"].map(|text| find_user(text).unwrap()), [0, 77]);
        assert_eq!(["root", "78"].map(|text| find_group(text).unwrap()), [0, 78]);
        assert!(find_user("no such user").unwrap_err().to_string().contains("no user"));
        assert!(find_group("no such group").unwrap_err().to_string().contains("no group"));
    }

    #[test]
    fn uris_are_told_from_paths() {
        let taken = ["disk.img", "/dev/sdb", "nbd://host/disk", "nbd+unix:///d?socket=/s", "a:b"];
        for text in taken.into_iter().chain(["./nbd:x", "/dev/disk/by-path/pci-0:0"]) {
            assert_eq!(parse_backing(text).as_deref(), Ok(text));
        }
        for text in ["nbd:host", "nbd+unix:/s", "nbds://host/disk", "file:///x", "http://h/d"] {
            assert!(parse_backing(text).unwrap_err().contains("nbd+unix:///EXPORT"), "{text}");
        }
    }
}
