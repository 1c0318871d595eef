//! Messages about the files of a file system. Commands print the same types as JSON.
//!
//! A path names a file once. Later requests use number and generation, so that a request never
//! reaches another file than the found one. Bytes of files follow their message's line unchanged,
//! in pieces.

use std::fmt;

use everbyte_text::escaped_bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::TimeNs;

/// Most bytes of a file in one message.
pub const PIECE_BYTES_MAX: u32 = 1 << 20;

/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A name or a path, of any bytes. In JSON a string if they are UTF-8, else an object with the hexadecimal
/// digits of the bytes: `{"hex": "ff00"}`. Shown without control characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PathBytes(pub Vec<u8>);

impl PathBytes {
    /// Returns true if a directory can have it as a name: 1 to 255 bytes without `/` and NUL, neither `.` nor
    /// `..`.
    #[must_use]
    pub fn is_name(&self) -> bool {
        let bytes = self.0.as_slice();
        (1..=NAME_BYTES_MAX).contains(&bytes.len())
            && !matches!(bytes, b"." | b"..")
            && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Bytes { hex: String },
}

impl Serialize for PathBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = match std::str::from_utf8(&self.0) {
            Ok(text) => PathForm::Text(text.to_owned()),
            // Names are any bytes, and JSON strings are not. A lossy text would name another file.
            Err(_) => {
                PathForm::Bytes { hex: self.0.iter().map(|byte| format!("{byte:02x}")).collect() }
            }
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PathBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match PathForm::deserialize(deserializer)? {
            PathForm::Text(text) => Ok(Self(text.into_bytes())),
            PathForm::Bytes { hex } => {
                let bytes = from_hex(hex.as_bytes());
                bytes.map(Self).ok_or_else(|| D::Error::custom("no hexadecimal digits of bytes"))
            }
        }
    }
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_chunks::<2>();
    let digit = |digit: u8| (digit as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

impl fmt::Display for PathBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped_bytes(&self.0))
    }
}

/// One file. A later file with its number is another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileId {
    /// Number of its inode.
    pub inode: u64,
    /// Distinguishes it from earlier files with the number.
    pub generation: u64,
}

/// A name in a directory, of an existing or a new file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePlace {
    /// The directory.
    pub directory: FileId,
    /// The name: 1 to 255 bytes.
    pub name: PathBytes,
}

/// The type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// A flag of a file, as `chattr` sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFlag {
    /// Nothing of it changes.
    Immutable,
    /// It grows by appending alone.
    AppendOnly,
    /// Backup programs skip it.
    NoDump,
    /// Accesses leave the time of the last access as it is.
    NoAtime,
}

/// A file in figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// Number of its inode.
    pub inode: u64,
    /// Distinguishes it from earlier files with the number.
    pub generation: u64,
    /// Its type.
    pub kind: FileKind,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: u32,
    /// Number of its names; for a directory two and its subdirectories.
    pub links: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Size in bytes; of a directory the number of its entries.
    pub size_bytes: u64,
    /// Bytes of its blocks.
    pub used_bytes: u64,
    /// The device of a device file.
    pub device: u64,
    /// Its flags.
    #[serde(default)]
    pub flags: Vec<FileFlag>,
    /// Last access.
    pub accessed_ns: TimeNs,
    /// Last change of its bytes.
    pub modified_ns: TimeNs,
    /// Last change of the inode.
    pub changed_ns: TimeNs,
    /// Creation.
    pub created_ns: TimeNs,
    /// The target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBytes>,
}

impl FileStatus {
    /// The file.
    #[must_use]
    pub fn id(&self) -> FileId {
        FileId { inode: self.inode, generation: self.generation }
    }
}

/// A name in a directory and its file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileEntry {
    /// The name.
    pub name: PathBytes,
    /// The file.
    #[serde(flatten)]
    pub file: FileStatus,
}

/// A name in a directory with an unreadable file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnreadableEntry {
    /// The name.
    pub name: PathBytes,
    /// The reason.
    pub reason: String,
}

/// A new file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewFile {
    /// Its type: regular, a directory or a symbolic link.
    pub kind: FileKind,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: u32,
    /// Its user.
    pub uid: u32,
    /// Its group, unless the directory gives its own.
    pub gid: u32,
    /// The target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBytes>,
}

/// Attributes to set; `None` keeps an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFile {
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Permissions, set-user-id, set-group-id and sticky bits.
    pub permissions: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed_ns: Option<TimeNs>,
    /// Last change of the bytes.
    pub modified_ns: Option<TimeNs>,
}

/// A request about the files of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", content = "with", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum FileRequest {
    /// The file at the end of a path; answered with `FileFound`.
    Find {
        /// The directory to begin at; `None` for the root.
        from: Option<FileId>,
        /// The path. The empty one leads to where it begins.
        path: PathBytes,
        /// Follows a symbolic link at its end.
        follow: bool,
    },
    /// Some entries of a directory; answered with `FileEntries`.
    List {
        /// The directory.
        directory: FileId,
        /// 0 for the first, and then `next` of the answer before.
        place: u64,
    },
    /// Bytes of a regular file; answered with `FileBytes`, with fewer bytes only at its end.
    Read {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`PIECE_BYTES_MAX`].
        len: u32,
    },
    /// The data ranges of a regular file, from a byte on; answered with `FileData`. The rest are
    /// holes.
    Data {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
    },
    /// New bytes for a regular file, sent after the request; answered with `FileDone`.
    Write {
        /// The file.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`PIECE_BYTES_MAX`].
        len: u32,
    },
    /// A new file; answered with `FileFound`.
    Make {
        /// Its name.
        at: FilePlace,
        /// The file.
        new: NewFile,
    },
    /// Other attributes for a file; answered with `FileFound`.
    Set {
        /// The file.
        file: FileId,
        /// The attributes.
        set: SetFile,
    },
    /// Another name for a file. It replaces the file with this name. Answered with `FileDone`.
    Rename {
        /// The old name.
        from: FilePlace,
        /// The new name.
        to: FilePlace,
    },
    /// Removes a name of a file other than a directory; answered with `FileDone`.
    Remove {
        /// The name.
        at: FilePlace,
    },
    /// The end of an empty directory; answered with `FileDone`.
    RemoveDirectory {
        /// Its name.
        at: FilePlace,
    },
    /// The end of a name although its file or its entry is damaged; answered with `FileDropped`.
    Drop {
        /// The name.
        at: FilePlace,
    },
    /// Another, unused name for a file; answered with `FileDone`.
    Move {
        /// The old name.
        from: FilePlace,
        /// The new name.
        to: FilePlace,
    },
    /// The space of the file system; answered with `FileSpace`.
    Space,
    /// Makes all answered changes durable; answered with `FileDone`.
    Sync,
}

/// Leftovers of the removal of a damaged name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileLeak {
    /// The inode left in use without this name, if it is unreadable.
    pub inode: Option<u64>,
    /// Most bytes of blocks without an owner, if known.
    pub bytes: Option<u64>,
    /// Entries of the directory removed as unreadable.
    pub entries: u64,
    /// True if a directory with unreadable names was removed.
    pub has_lost_names: bool,
}

/// Space and inodes of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpace {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes used by, or reserved for, files, directories and maps.
    pub used_bytes: u64,
    /// Bytes for data of one more file.
    pub free_bytes: u64,
    /// Largest number of files.
    pub inodes: u64,
    /// Existing files.
    pub used_inodes: u64,
    /// Files that can still be made.
    pub free_inodes: u64,
}

impl FileRequest {
    /// Returns true if it changes files.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            // A new request counts as a change until it is listed here, so it gets the longer time.
            Self::Find { .. }
                | Self::List { .. }
                | Self::Read { .. }
                | Self::Data { .. }
                | Self::Space
                | Self::Sync
        )
    }

    pub(crate) fn attached_bytes(&self) -> u32 {
        if let Self::Write { len, .. } = self { *len } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_bytes_pass_json() {
        for (bytes, json, shown) in [
            (&b"a b"[..], "\"a b\"", "a b"),
            ("\u{e4}\\".as_bytes(), "\"\u{e4}\\\\\"", "\u{e4}\\"),
            (b"x\xff\x01", "{\"hex\":\"78ff01\"}", "x\\xff\\u{1}"),
            (b"\x1b[2J", "\"\\u001b[2J\"", "\\u{1b}[2J"),
        ] {
            let path = PathBytes(bytes.to_vec());
            assert_eq!(serde_json::to_string(&path).unwrap(), json);
            assert_eq!(serde_json::from_str::<PathBytes>(json).unwrap(), path);
            assert_eq!(path.to_string(), shown);
        }
        for wrong in ["{\"hex\":\"7\"}", "{\"hex\":\"zz\"}", "{\"hex\":\"\u{e4}\"}", "5"] {
            assert!(serde_json::from_str::<PathBytes>(wrong).is_err(), "{wrong}");
        }
    }
}
