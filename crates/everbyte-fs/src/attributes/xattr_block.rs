//! The block with a file's extended attributes.
//!
//! A change writes all attributes to a new block, and then the one word that names the block.

use everbyte_media::{BLOCK, BLOCK_U64, Medium, PoolOffset};
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, Corrupt, check_readable};

use crate::error::FsError;
use crate::format::Field;
use crate::format::reader::Reader;
use crate::fs::now;
use crate::inode::blocks::attributes_block;
use crate::inode::edits::Edit;
use crate::inode::tables::reader_of;

const MAGIC: [u8; 4] = *b"XATR";
/// Bytes of magic, checksum and end.
const HEAD: usize = 12;
/// Limit of the bytes of a file's attributes: each takes its name, its value and 3.
pub const ATTRIBUTES_BYTES_MAX: usize = BLOCK - HEAD;

/// Names and values, in the order of their first setting.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Xattrs(Vec<(Vec<u8>, Vec<u8>)>);

impl Xattrs {
    /// The value of the attribute `name`.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| &value[..])
    }

    /// Sets the attribute `name`.
    pub(crate) fn set(&mut self, name: &[u8], value: Vec<u8>) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_vec(), value)),
        }
    }

    /// Removes the attribute `name`. Returns false if it is absent.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|(other, _)| other != name);
        self.0.len() < before
    }

    /// The names.
    pub(crate) fn into_names(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(|(name, _)| name).collect()
    }

    /// Reads the attributes of the inode at `inode`, whose word for them is `word`.
    ///
    /// # Errors
    /// The block cannot be read or is damaged.
    pub(crate) fn load<M: Medium>(
        reader: Reader<'_, M>,
        inode: PoolOffset,
        word: u64,
    ) -> Result<Self, Corrupt> {
        let Some(block) = attributes_block(reader, inode, word)? else {
            return Ok(Self::default());
        };
        let at = block.offset();
        let mut image = Box::new([0; BLOCK]);
        reader.medium.read(at, &mut image[..]);
        check_readable(reader.medium, "extended attributes", at, BLOCK_U64)?;
        Self::parse(&image)
            .ok_or_else(|| Corrupt::new("extended attributes", at, "no block of them can be so"))
    }

    /// Plans these attributes for the inode in `edit`, in place of the present ones.
    ///
    /// # Errors
    /// `AttributesFull`, `NoSpace`, or a damaged present block.
    pub(crate) fn plan_replace<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
        edit: &mut Edit,
    ) -> Result<(), FsError> {
        let before = batch.savepoint();
        let old = edit.words.get(Field::Attributes);
        if let Some(block) = attributes_block(reader_of(batch.volume()), edit.at, old)? {
            // A deferred free: undo may need the old block, so it is not overwritten.
            batch.free(block);
        }
        let word = self.plan_block(batch)?;
        let blocks =
            edit.words.get(Field::Blocks).saturating_add_signed(batch.allocated_since(before));
        edit.words.set(Field::Blocks, blocks);
        edit.words.set(Field::Attributes, word);
        edit.words.set(Field::Changed, now());
        Ok(())
    }

    /// Plans a block with the attributes. Returns the word that names it; 0 without attributes.
    ///
    /// # Errors
    /// `AttributesFull` or `NoSpace`.
    pub(crate) fn plan_block<M: Medium>(
        &self,
        batch: &mut Batch<'_, '_, M>,
    ) -> Result<u64, FsError> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let image = self.image().ok_or(FsError::AttributesFull)?;
        // A new block, filled without a log. The inode's word publishes it.
        let block = batch.alloc().ok_or(FsError::NoSpace)?;
        batch.stream(block.offset(), &image[..]);
        Ok(Entry::data(block).encode())
    }

    fn image(&self) -> Option<Box<[u8; BLOCK]>> {
        let mut image = Box::new([0; BLOCK]);
        let mut at = HEAD;
        for (name, value) in &self.0 {
            let end = at + 3 + name.len() + value.len();
            let place = image.get_mut(at..end)?;
            place[0] = u8::try_from(name.len()).ok()?;
            place[1..3].copy_from_slice(&u16::try_from(value.len()).ok()?.to_le_bytes());
            place[3..3 + name.len()].copy_from_slice(name);
            place[3 + name.len()..].copy_from_slice(value);
            at = end;
        }
        image[..4].copy_from_slice(&MAGIC);
        image[8..HEAD].copy_from_slice(&u32::try_from(at).ok()?.to_le_bytes());
        // The end is covered, so a flipped end does not shorten the list.
        let crc = crc32c::crc32c(&image[8..at]);
        image[4..8].copy_from_slice(&crc.to_le_bytes());
        Some(image)
    }

    fn parse(image: &[u8; BLOCK]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?));
        let end = usize::try_from(number(8)?).ok()?;
        let used = image.get(8..end)?;
        if image[..4] != MAGIC || number(4)? != crc32c::crc32c(used) {
            return None;
        }
        let mut all = Vec::new();
        let mut at = HEAD;
        while at < end {
            let name_at = at + 3;
            let value_at = name_at + usize::from(*image.get(at)?);
            // The checksum proves no writer: a crafted block can have any lengths, so each access
            // is checked.
            let value_bytes = u16::from_le_bytes(*image.get(at + 1..)?.first_chunk()?);
            at = value_at + usize::from(value_bytes);
            let (name, value) = (image.get(name_at..value_at)?, image.get(value_at..at)?);
            all.push((name.to_vec(), value.to_vec()));
        }
        // The last attribute must end at the recorded end.
        (at == end).then_some(Self(all))
    }
}

/// Corrects the checksum of a block, if it is a block of attributes.
#[cfg(feature = "testkit")]
pub(crate) fn reseal(image: &mut [u8; BLOCK]) {
    let end = u32::from_le_bytes(*image[8..].first_chunk().expect("a block has a head"));
    let used = usize::try_from(end).ok().and_then(|end| image.get(8..end));
    if let Some(crc) = used.map(crc32c::crc32c).filter(|_| image[..4] == MAGIC) {
        image[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattr_block_round_trips_or_reports_damage() {
        let mut all = Xattrs::default();
        all.set(b"user.a", b"1".to_vec());
        all.set(b"user.b", Vec::new());
        let image = all.image().unwrap();
        assert_eq!(Xattrs::parse(&image), Some(all));
        for at in 0..HEAD + 17 {
            let mut wrong = image.clone();
            wrong[at] ^= 64;
            assert_eq!(Xattrs::parse(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn xattrs_beyond_a_block_are_refused() {
        let all = |bytes| Xattrs(vec![(b"n".to_vec(), vec![7; bytes])]);
        assert!(all(ATTRIBUTES_BYTES_MAX - 4).image().is_some());
        assert!(all(ATTRIBUTES_BYTES_MAX - 3).image().is_none());
    }
}
