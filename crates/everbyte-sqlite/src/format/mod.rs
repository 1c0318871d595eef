//! The layout of a volume with a database: one header, three regions.
//!
//! Owns the header's bytes and the division of a volume. Invariants: regions begin at blocks and do
//! not overlap; no file is longer than its region; the bytes of a region beyond its file's length
//! mean nothing. `docs/format.md` has the byte table. Knows nothing of when a header is written.

use everbyte_media::{BLOCK, BLOCK_U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: [u8; 8] = *b"EVERBSQL";
const VERSION: u32 = 1;
/// The length of a missing file.
const ABSENT: u64 = u64::MAX;

/// Of so many equal parts of a volume ...
const PARTS: u64 = 20;
/// ... the journal and the WAL get these many each, the database the rest. A journal record or a
/// WAL frame is longer than its page, by at most a sixteenth at 512-byte pages, and either may hold
/// every page.
const PARTS_OF_JOURNAL: u64 = 7;

/// Blocks of the smallest volume for a database.
const BLOCKS_MIN: u64 = 64;

/// The files of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// The rollback journal, `NAME-journal` to SQLite.
    Journal,
    /// The write-ahead log, `NAME-wal` to SQLite.
    Wal,
    /// The database itself.
    Main,
}

impl FileKind {
    /// All of them, in the order of their regions.
    pub(crate) const ALL: [Self; 3] = [Self::Journal, Self::Wal, Self::Main];

    /// Returns SQLite's suffix for the database's name.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::Journal => "-journal",
            Self::Wal => "-wal",
            Self::Main => "",
        }
    }

    /// Its place in the header's arrays.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Journal => 0,
            Self::Wal => 1,
            Self::Main => 2,
        }
    }
}

/// The first line of a volume with a database. It changes atomically: it is one line, and a request
/// of one line is never torn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DatabaseHeader {
    /// "EVERBSQL".
    magic: [u8; 8],
    /// Layout version, 1.
    version: u32,
    /// CRC-32C of the header with this field zero.
    crc: u32,
    /// Byte offset of each file's region in the volume.
    start: [u64; 3],
    /// Bytes in each file, `ABSENT` if it does not exist.
    length: [u64; 3],
}

const _: () = assert!(size_of::<DatabaseHeader>() == 64);

impl DatabaseHeader {
    /// Bytes of a header.
    pub(crate) const BYTES: usize = size_of::<Self>();

    /// The header of an empty database on a volume of `volume_bytes`.
    ///
    /// # Errors
    /// The volume is too small.
    pub(crate) fn new(volume_bytes: u64) -> Result<Self, String> {
        let blocks = volume_bytes / BLOCK_U64;
        if blocks < BLOCKS_MIN {
            let bytes_min = BLOCKS_MIN * BLOCK_U64;
            return Err(format!("it has {volume_bytes} bytes; a database needs {bytes_min}"));
        }
        let region = blocks / PARTS * PARTS_OF_JOURNAL;
        let start = [1, 1 + region, 1 + 2 * region].map(|block| block * BLOCK_U64);
        let length = [ABSENT, ABSENT, 0];
        Ok(Self { magic: MAGIC, version: VERSION, crc: 0, start, length })
    }

    /// Checks the first bytes of a volume of `volume_bytes`.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn parse(bytes: &[u8; Self::BYTES], volume_bytes: u64) -> Result<Self, String> {
        let header: Self = zerocopy::transmute!(*bytes);
        if header.magic != MAGIC {
            return Err("it does not begin with EVERBSQL: this is no database".into());
        }
        if header.crc != header.computed_crc() {
            return Err("its checksum is wrong".into());
        }
        if header.version != VERSION {
            let version = header.version;
            return Err(format!("it has version {version}, this program knows {VERSION}"));
        }
        let aligned = header.start.iter().all(|start| start.is_multiple_of(BLOCK_U64));
        let apart = header.start.is_sorted_by(|a, b| a < b);
        if !aligned || !apart || header.start[0] < BLOCK_U64 {
            return Err(format!("its regions begin at {:?}", header.start));
        }
        for kind in FileKind::ALL {
            let capacity = header.capacity(kind, volume_bytes);
            if let Some(length) = header.length(kind).filter(|&length| length > capacity) {
                return Err(format!(
                    "its {kind:?} file of {length} bytes is longer than the {capacity} bytes that \
                     the volume has for it"
                ));
            }
        }
        Ok(header)
    }

    /// Returns its bytes with a fresh checksum.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(Self { crc: self.computed_crc(), ..*self })
    }

    fn computed_crc(&self) -> u32 {
        crc32c::crc32c(Self { crc: 0, ..*self }.as_bytes())
    }

    /// Returns the byte offset of a file's region in the volume.
    pub(crate) fn start(&self, kind: FileKind) -> u64 {
        self.start[kind.index()]
    }

    /// Returns the largest size of a file in a volume of `volume_bytes`.
    pub(crate) fn capacity(&self, kind: FileKind, volume_bytes: u64) -> u64 {
        let end = self.start.get(kind.index() + 1).copied().unwrap_or(volume_bytes);
        end.min(volume_bytes).saturating_sub(self.start(kind))
    }

    /// Bytes in a file, `None` if it does not exist.
    pub(crate) fn length(&self, kind: FileKind) -> Option<u64> {
        Some(self.length[kind.index()]).filter(|&length| length != ABSENT)
    }

    /// Sets a file's length; `None` means a missing file.
    pub(crate) fn set_length(&mut self, kind: FileKind, length: Option<u64>) {
        self.length[kind.index()] = length.unwrap_or(ABSENT);
    }
}

/// Returns the size of a volume for a database of at most `database_bytes`. Volumes are thin:
/// unused space takes none in the pool.
#[must_use]
pub fn volume_bytes(database_bytes: u64) -> u64 {
    let parts = PARTS - 2 * PARTS_OF_JOURNAL;
    let blocks_per_part = database_bytes.div_ceil(BLOCK as u64).div_ceil(parts) + 1;
    (blocks_per_part * PARTS).max(BLOCKS_MIN).saturating_mul(BLOCK_U64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_reads_back() {
        let mut header = DatabaseHeader::new(1 << 20).unwrap();
        header.set_length(FileKind::Wal, Some(77));
        let again = DatabaseHeader::parse(&header.encode(), 1 << 20).unwrap();
        let lengths = FileKind::ALL.map(|kind| again.length(kind));
        assert_eq!(lengths, [None, Some(77), Some(0)]);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = DatabaseHeader::new(1 << 20).unwrap().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(DatabaseHeader::parse(&flipped, 1 << 20).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn oversized_header_is_refused() {
        assert!(DatabaseHeader::new(63 * 4096).is_err());
        let mut header = DatabaseHeader::new(1 << 20).unwrap();
        header.set_length(FileKind::Main, Some(1 << 19));
        let wrong = DatabaseHeader::parse(&header.encode(), 1 << 20).unwrap_err();
        assert!(wrong.contains("longer than"), "{wrong}");
        header.set_length(FileKind::Main, Some(0));
        header.start.swap(0, 1);
        let wrong = DatabaseHeader::parse(&header.encode(), 1 << 20).unwrap_err();
        assert!(wrong.contains("regions"), "{wrong}");
    }

    #[test]
    fn database_volume_has_room_for_journals() {
        for database_bytes in [1, 4096, 1 << 20, 123_456_789, 1 << 33] {
            let volume_bytes = volume_bytes(database_bytes);
            let header = DatabaseHeader::new(volume_bytes).unwrap();
            assert!(header.capacity(FileKind::Main, volume_bytes) >= database_bytes);
            let journal = header.capacity(FileKind::Journal, volume_bytes);
            assert!(journal >= database_bytes + database_bytes / 16);
            assert_eq!(journal, header.capacity(FileKind::Wal, volume_bytes));
        }
    }
}
