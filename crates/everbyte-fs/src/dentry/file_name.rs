//! Names of files.

use crate::error::FsError;

/// A valid name in a directory: 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name<'n>(&'n [u8]);

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

impl<'n> Name<'n> {
    /// Checks a name.
    ///
    /// # Errors
    /// `NameTooLong`; `InvalidName` for another name that is not valid.
    pub fn new(bytes: &'n [u8]) -> Result<Self, FsError> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let is_special = matches!(bytes, b"" | b"." | b"..");
        if is_special || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(FsError::InvalidName);
        }
        Ok(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> &'n [u8] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        assert!(Name::new(b"a").is_ok());
        assert!(Name::new(&[b'x'; 255]).is_ok());
        assert!(Name::new("\u{e4}".as_bytes()).is_ok());
        assert!(matches!(Name::new(&[b'x'; 256]), Err(FsError::NameTooLong)));
        for wrong in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert!(matches!(Name::new(wrong), Err(FsError::InvalidName)));
        }
    }
}
