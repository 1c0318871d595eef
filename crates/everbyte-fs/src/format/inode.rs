//! An inode: 256 bytes. The first half has words of attributes. The second half has the first entries of the
//! file's map, or a short link's target.
//!
//! Invariants: every attribute is a word and changes under the log. The checksum in the first word covers the
//! other words except the root word, which has check bits. The contents of a free inode are undefined.

use crc32c::crc32c;
use everbyte_media::{Medium, PoolOffset};
use everbyte_pool::{Corrupt, check_readable};
use zerocopy::IntoBytes;

use super::time::decode_time;
use crate::format::file_flags::FileFlags;
use crate::format::number::{FileType, InodeNo, MODE_PERMISSIONS};

/// Bytes of an inode.
pub(crate) const INODE_BYTES: u64 = 256;
/// Limit of a file's size in bytes: a map of five levels covers more than any pool.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 52;
/// Offset of the second half.
pub(crate) const INODE_AREA_AT: u64 = 128;
/// Entries of the map in the second half.
pub(crate) const FIRST_ENTRIES: u64 = 16;
/// Longest target in bytes of a link in the second half.
pub(crate) const INLINE_TARGET_MAX: usize = 128;

const WORDS: usize = 16;
const IMAGE_BYTES: usize = 256;
const _: () = assert!(IMAGE_BYTES as u64 == INODE_BYTES);

/// An inode's bytes in its table.
pub(crate) type InodeImage = [u8; IMAGE_BYTES];

/// A word of an inode's first half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Field {
    /// CRC-32C of the other words without the root.
    Checksum,
    /// The inode's number.
    Number,
    /// Epoch of the inode's allocation. It is unique among files with the same number.
    Generation,
    /// Mode, and links above it.
    ModeLinks,
    /// User, and group above it.
    Owner,
    /// Bytes of a file or of a link's target; entries of a directory.
    Size,
    /// Number of its blocks, including nodes.
    Blocks,
    /// Device number of a device; parent of a directory.
    Special,
    /// Last access.
    Accessed,
    /// Last change of the contents.
    Modified,
    /// Last change of the inode.
    Changed,
    /// Creation.
    Created,
    /// The word that names the extended attributes.
    Attributes,
    /// CRC-32C of a link's target.
    TargetChecksum,
    /// The word that names the top of the map or of the directory.
    Root,
    /// Flags that `chattr` sets.
    Flags,
}

/// The words of an inode's first half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InodeWords([u64; WORDS]);

/// The words with times.
const TIMES: [Field; 4] = [Field::Accessed, Field::Modified, Field::Changed, Field::Created];

/// The extent of a change of an inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Difference {
    /// At most the time of the last access.
    Access,
    /// At most times.
    Times,
    /// More than times.
    More,
}

impl InodeWords {
    /// Words without an inode.
    pub(crate) const EMPTY: Self = Self([0; WORDS]);

    /// An inode with a number and a generation; other words are 0.
    pub(crate) fn new(number: InodeNo, generation: u64) -> Self {
        let mut words = Self([0; WORDS]);
        words.set(Field::Number, number.0);
        words.set(Field::Generation, generation);
        words
    }

    /// Reads the inode `number` at `at`, which is in use.
    ///
    /// # Errors
    /// It cannot be read, has another number, or is damaged.
    pub(crate) fn load<M: Medium>(
        medium: &M,
        at: PoolOffset,
        number: InodeNo,
    ) -> Result<Self, Corrupt> {
        let mut words = Self::EMPTY;
        words.load_by(medium, at, number, |words| medium.read(at, words))?;
        Ok(words)
    }

    /// As [`InodeWords::load`], into `self` by `read`. After an error `self` has any contents.
    ///
    /// # Errors
    /// As [`InodeWords::load`].
    pub(crate) fn load_by<M: Medium>(
        &mut self,
        medium: &M,
        at: PoolOffset,
        number: InodeNo,
        read: impl FnOnce(&mut [u8]),
    ) -> Result<(), Corrupt> {
        let words = self;
        read(words.0.as_mut_bytes());
        check_readable(medium, "inode", at, INODE_AREA_AT)?;
        for word in &mut words.0 {
            *word = u64::from_le(*word);
        }
        let wrong = |what: String| Err(Corrupt::new(format!("{number}"), at, what));
        if words.checksum() != words.get(Field::Checksum) {
            return wrong("its checksum is wrong".into());
        }
        if words.get(Field::Number) != number.0 {
            return wrong(format!("it says that it is inode {}", words.get(Field::Number)));
        }
        if words.get(Field::Size) > FILE_BYTES_MAX {
            return wrong(format!(
                "its size of {} bytes is more than there can be",
                words.get(Field::Size)
            ));
        }
        if FileType::from_mode(words.mode()).is_none() {
            return wrong(format!("its mode {:o} names no type", words.mode()));
        }
        if words.checked_flags().is_none() {
            return wrong(format!("the flags {:#x} are unknown", words.get(Field::Flags)));
        }
        if let Some(time) = TIMES.into_iter().find(|&time| decode_time(words.get(time)).is_none()) {
            return wrong(format!("the time {:#x} is out of range", words.get(time)));
        }
        Ok(())
    }

    /// The words in the first half of an inode's bytes.
    #[cfg(feature = "testkit")]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let mut words = Self([0; WORDS]);
        words.0.as_mut_bytes().copy_from_slice(&bytes[..8 * WORDS]);
        words.0 = words.0.map(u64::from_le);
        words
    }

    pub(crate) fn get(&self, field: Field) -> u64 {
        self.0[field as usize]
    }

    pub(crate) fn set(&mut self, field: Field, value: u64) {
        self.0[field as usize] = value;
    }

    pub(crate) fn mode(&self) -> u32 {
        low(self.get(Field::ModeLinks))
    }

    pub(crate) fn links(&self) -> u32 {
        high(self.get(Field::ModeLinks))
    }

    /// Its type. `load` has checked the mode.
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_mode(self.mode()).unwrap_or(FileType::Regular)
    }

    pub(crate) fn set_type(&mut self, kind: FileType, permissions: u32) {
        let mode = kind.mode_bits() | permissions & MODE_PERMISSIONS;
        self.set(Field::ModeLinks, pair(mode, self.links()));
    }

    pub(crate) fn set_permissions(&mut self, permissions: u32) {
        self.set_type(self.file_type(), permissions);
    }

    pub(crate) fn set_links(&mut self, links: u32) {
        self.set(Field::ModeLinks, pair(self.mode(), links));
    }

    pub(crate) fn uid(&self) -> u32 {
        low(self.get(Field::Owner))
    }

    pub(crate) fn gid(&self) -> u32 {
        high(self.get(Field::Owner))
    }

    pub(crate) fn set_owner(&mut self, uid: u32, gid: u32) {
        self.set(Field::Owner, pair(uid, gid));
    }

    /// Its flags. `load` has checked the bits.
    pub(crate) fn flags(&self) -> FileFlags {
        self.checked_flags().unwrap_or_default()
    }

    fn checked_flags(&self) -> Option<FileFlags> {
        u32::try_from(self.get(Field::Flags)).ok().and_then(FileFlags::from_bits)
    }

    pub(crate) fn set_flags(&mut self, flags: FileFlags) {
        self.set(Field::Flags, flags.bits().into());
    }

    /// The time in one of its words, in nanoseconds since 1970. `load` has checked the range.
    pub(crate) fn time(&self, field: Field) -> i128 {
        decode_time(self.get(field)).unwrap_or(0)
    }

    /// Stores the word `now` in some of its words.
    pub(crate) fn stamp(&mut self, now: u64, times: &[Field]) {
        times.iter().for_each(|&time| self.set(time, now));
    }

    /// The correct value of its first word.
    pub(crate) fn checksum(&self) -> u64 {
        let mut words = self.0.map(u64::to_le);
        // The word after the root replaces it, so one call sums all words.
        words[Field::Root as usize] = words[Field::Flags as usize];
        u64::from(crc32c(words[Field::Number as usize..Field::Flags as usize].as_bytes()))
    }

    /// Updates the checksum.
    pub(crate) fn seal(&mut self) {
        self.set(Field::Checksum, self.checksum());
    }

    /// The words that differ from `old`, by index, without the root word: other code plans changes of the
    /// root word.
    pub(crate) fn changes<'a>(
        &'a self,
        old: &'a Self,
    ) -> impl Iterator<Item = (usize, u64, u64)> + 'a {
        let pairs = old.0.iter().zip(&self.0).enumerate();
        pairs
            .filter(|(place, (old, new))| *place != Field::Root as usize && old != new)
            .map(|(place, (&old, &new))| (place, old, new))
    }

    /// The extent of the difference from `old`, without the checksum.
    pub(crate) fn difference(&self, old: &Self) -> Difference {
        let changes = self.changes(old).map(|(place, _, _)| place);
        let differences = changes.map(|place| match place {
            place if place == Field::Checksum as usize => Difference::Access,
            place if place == Field::Accessed as usize => Difference::Access,
            place if place == Field::Modified as usize => Difference::Times,
            place if place == Field::Changed as usize => Difference::Times,
            _ => Difference::More,
        });
        differences.max().unwrap_or(Difference::Access)
    }

    /// The inode's bytes with `area` as its second half, at most 128 bytes.
    pub(crate) fn image(&self, area: &[u8]) -> InodeImage {
        let mut image = [0; IMAGE_BYTES];
        image[..WORDS * 8].copy_from_slice(self.0.map(u64::to_le).as_bytes());
        image[WORDS * 8..WORDS * 8 + area.len()].copy_from_slice(area);
        image
    }
}

/// The address of a word of the inode at `at`.
impl Field {
    pub(crate) fn at(self, inode: PoolOffset) -> PoolOffset {
        inode.plus(8 * self as u64)
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_covers_all_words_but_the_root() {
        let words = InodeWords::new(InodeNo(7), 3);
        for place in 1..WORDS {
            let mut changed = words;
            changed.0[place] ^= 1 << 40;
            let is_root = place == Field::Root as usize;
            assert_eq!(changed.checksum() == words.checksum(), is_root, "word {place}");
            assert_eq!(changed.changes(&words).count(), usize::from(!is_root));
        }
    }

    #[test]
    fn word_halves_are_independent() {
        let mut words = InodeWords::new(InodeNo(7), 3);
        words.set_type(FileType::Directory, 0o1777);
        words.set_links(u32::MAX);
        words.set_owner(u32::MAX, 5);
        assert_eq!((words.mode(), words.links()), (0o041_777, u32::MAX));
        assert_eq!((words.uid(), words.gid()), (u32::MAX, 5));
        words.set_permissions(0o644);
        assert_eq!((words.file_type(), words.mode() & 0o7777), (FileType::Directory, 0o644));
    }
}
