//! Recognizes foreign contents by their magic numbers. Reads nothing.

use std::fmt;

/// Kind of bytes that hold a trace in another form, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Content {
    /// bzip2.
    Bzip2,
    /// LZ4, as frames or in the old form.
    Lz4,
    /// The form of LZMA before xz.
    Lzma,
    /// lzip.
    Lzip,
    /// lzop.
    Lzop,
    /// The compression of the program `compress`.
    Compress,
    /// Framed Snappy.
    Snappy,
    /// zlib without gzip's header.
    Zlib,
    /// zstd before version 0.8.
    OldZstd,
    /// A ZIP archive.
    Zip,
    /// A 7z archive.
    SevenZip,
    /// A RAR archive.
    Rar,
    /// A tar archive.
    Tar,
    /// Another layer of gzip, xz or zstd inside the first.
    Nested,
    /// A recording of blktrace, which `blkparse` prints as text.
    Blktrace,
    /// UTF-16 text.
    Utf16,
    /// Columns of Apache Parquet.
    Parquet,
}

/// A number at a place of the beginning.
type Magic = (Content, usize, &'static [u8]);

/// Numbers of at least 4 bytes, which no trace begins with.
const MAGICS: [Magic; 20] = [
    (Content::Bzip2, 4, b"\x31\x41\x59\x26\x53\x59"),
    (Content::Bzip2, 4, b"\x17\x72\x45\x38\x50\x90"),
    (Content::Lz4, 0, b"\x04\x22\x4D\x18"),
    (Content::Lz4, 0, b"\x02\x21\x4C\x18"),
    (Content::Lzip, 0, b"LZIP"),
    (Content::Lzop, 0, b"\x89LZO\x00\x0D\x0A\x1A\x0A"),
    (Content::Snappy, 0, b"\xFF\x06\x00\x00sNaPpY"),
    (Content::OldZstd, 1, b"\xB5\x2F\xFD"),
    (Content::Zip, 0, b"PK\x03\x04"),
    (Content::Zip, 0, b"PK\x05\x06"),
    (Content::Zip, 0, b"PK\x07\x08"),
    (Content::SevenZip, 0, b"7z\xBC\xAF\x27\x1C"),
    (Content::Rar, 0, b"Rar!\x1A\x07"),
    (Content::Tar, 257, b"ustar"),
    (Content::Nested, 0, b"\x1F\x8B\x08"),
    (Content::Nested, 0, b"\xFD7zXZ\x00"),
    (Content::Nested, 0, b"\x28\xB5\x2F\xFD"),
    (Content::Blktrace, 1, b"\x74\x61\x65"),
    (Content::Blktrace, 0, b"\x65\x61\x74\x07"),
    (Content::Parquet, 0, b"PAR1"),
];

impl Content {
    /// Returns the content that `head` surely begins with. `is_unpacked` if it was compressed.
    pub(crate) fn surely(head: &[u8], is_unpacked: bool) -> Option<Self> {
        let is_it = |&&(content, at, magic): &&Magic| {
            let fits = head.get(at..).is_some_and(|rest| rest.starts_with(magic));
            fits && match content {
                Self::Bzip2 => head.starts_with(b"BZh"),
                Self::OldZstd => matches!(head[0], 0x1E..=0x27),
                Self::Blktrace if at == 1 => head[0] == 7,
                Self::Nested => is_unpacked,
                _ => true,
            }
        };
        MAGICS.iter().find(is_it).map(|(content, ..)| *content)
    }

    /// Returns the possible kind of a content that no format accepts.
    pub(crate) fn perhaps(head: &[u8]) -> Option<Self> {
        match head {
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Some(Self::Utf16),
            [0x1F, 0x9D, ..] => Some(Self::Compress),
            [0x5D, 0, 0, ..] => Some(Self::Lzma),
            [0x78, 0x01 | 0x5E | 0x9C | 0xDA, ..] => Some(Self::Zlib),
            _ => None,
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bzip2 => "compressed with bzip2",
            Self::Lz4 => "compressed with lz4",
            Self::Lzma => "compressed with lzma, or damaged",
            Self::Lzip => "compressed with lzip",
            Self::Lzop => "compressed with lzop",
            Self::Compress => "compressed with compress (.Z)",
            Self::Snappy => "compressed with snappy",
            Self::Zlib => "compressed with zlib, or damaged",
            Self::OldZstd => "compressed with a version of zstd before 0.8",
            Self::Zip => "a zip archive",
            Self::SevenZip => "a 7z archive",
            Self::Rar => "a rar archive",
            Self::Tar => "a tar archive",
            Self::Nested => "compressed more than once",
            Self::Blktrace => "a binary recording of blktrace",
            Self::Utf16 => "UTF-16 text",
            Self::Parquet => "a Parquet file",
        })
    }
}
