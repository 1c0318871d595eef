//! Arguments that several subcommands share.
//!
//! Owns the error of arguments that can be read one by one and do not fit together. It ends the
//! program with status 2, as clap's own errors do.

/// Arguments that do not fit together, in words for the person who typed them.
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
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let rest = |scheme: &str| &text[scheme.len() + 1..];
    match scheme.filter(|scheme| is_scheme(scheme)) {
        Some(scheme @ ("nbd" | "nbd+unix")) if rest(scheme).starts_with("//") => {}
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

#[cfg(test)]
mod tests {
    use super::*;

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
