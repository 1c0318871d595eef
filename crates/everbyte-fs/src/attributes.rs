//! Extended attributes: names with values, all of an inode's in one block.
//!
//! A change writes all of them to a new block, and then the one word that names it.

use everbyte_media::{BLOCK, BLOCK_U64, Medium, PoolOffset};
use everbyte_plant::planted;
use everbyte_pool::format::Entry;
use everbyte_pool::{Batch, Corrupt, check_readable};

use crate::blocks::attributes_block;
use crate::edits::{Edit, Edits};
use crate::error::FsError;
use crate::format::Field;
use crate::fs::{FileSystem, now};
use crate::name::NAME_BYTES_MAX;
use crate::number::InodeNo;
use crate::plant::Bug;
use crate::reader::Reader;
use crate::tables::reader_of;

const MAGIC: [u8; 4] = *b"XATR";
/// Magic, checksum, bytes in use.
const HEAD: usize = 12;
/// Most bytes of all attributes of a file: each takes its name, its value and 3.
pub const ATTRIBUTES_BYTES_MAX: usize = BLOCK - HEAD;

/// A condition on an attribute that is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetAttribute {
    /// Nothing.
    Any,
    /// It is not there yet.
    Create,
    /// It is there.
    Replace,
}

/// Names and values in the order in which they were first set.
type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

impl<M: Medium> FileSystem<M> {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Stale`, or it cannot be right.
    pub fn attribute(&self, inode: InodeNo, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let all = self.attributes(inode)?;
        let found = all.into_iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// `Stale`, or they cannot be right.
    pub fn attribute_names(&self, inode: InodeNo) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.attributes(inode)?.into_iter().map(|(name, _)| name).collect())
    }

    fn attributes(&self, inode: InodeNo) -> Result<Attributes, FsError> {
        let _lock = self.locks.read(inode);
        let (at, words) = self.load_inode(inode)?;
        Ok(load(self.reader(), at, words.get(Field::Attributes))?)
    }

    /// Sets an extended attribute of up to 255 bytes of name.
    ///
    /// # Errors
    /// `Exists` or `NoAttribute` as `set` says; `NameTooLong`, or `Invalid` for an empty name;
    /// `AttributesFull` if there would be more than [`ATTRIBUTES_BYTES_MAX`]; `NoSpace`; the volume's.
    pub fn set_attribute(
        &self,
        inode: InodeNo,
        (name, value): (&[u8], &[u8]),
        set: SetAttribute,
    ) -> Result<(), FsError> {
        if name.is_empty() {
            return Err(FsError::Invalid { what: "an attribute has a name" });
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        self.change_attributes(inode, |all| {
            let found = all.iter_mut().find(|(other, _)| other == name);
            match (found, set) {
                (Some(_), SetAttribute::Create) => return Err(FsError::Exists),
                (None, SetAttribute::Replace) => return Err(FsError::NoAttribute),
                (Some((_, old)), _) => *old = value.to_vec(),
                (None, _) => all.push((name.to_vec(), value.to_vec())),
            }
            Ok(())
        })
    }

    /// Takes an extended attribute away.
    ///
    /// # Errors
    /// `NoAttribute`, or the volume's.
    pub fn remove_attribute(&self, inode: InodeNo, name: &[u8]) -> Result<(), FsError> {
        self.change_attributes(inode, |all| {
            let place = all.iter().position(|(other, _)| other == name);
            all.remove(place.ok_or(FsError::NoAttribute)?);
            Ok(())
        })
    }

    fn change_attributes(
        &self,
        inode: InodeNo,
        mut change: impl FnMut(&mut Attributes) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let _op = self.volume().begin_op();
        let _locks = self.locks.write(&[inode]);
        self.volume().change(|batch, _| {
            let mut edits = Edits::new(&self.tables);
            let edit = edits.get(self.reader(), inode)?;
            let mut all = load(self.reader(), edit.at, edit.words.get(Field::Attributes))?;
            change(&mut all)?;
            plan_store(batch, edit, &all)?;
            edits.plan(batch);
            Ok::<(), FsError>(())
        })?;
        Ok(())
    }
}

/// Plans that an inode has these attributes.
fn plan_store<M: Medium>(
    batch: &mut Batch<'_, '_, M>,
    edit: &mut Edit,
    all: &Attributes,
) -> Result<(), FsError> {
    let before = batch.savepoint();
    let old = edit.words.get(Field::Attributes);
    if let Some(block) = attributes_block(reader_of(batch.volume()), edit.at, old)? {
        if planted(Bug::AttributesInPlace)
            && let Some(image) = image(all)
        {
            batch.stream(block.offset(), &image[..]);
            return Ok(());
        }
        batch.give(block);
    }
    let mut word = 0;
    if !all.is_empty() {
        let image = image(all).ok_or(FsError::AttributesFull)?;
        let block = batch.take().ok_or(FsError::NoSpace)?;
        batch.stream(block.offset(), &image[..]);
        word = Entry::data(block).encode();
    }
    let blocks = edit.words.get(Field::Blocks).saturating_add_signed(batch.taken_since(before));
    edit.words.set(Field::Blocks, blocks);
    edit.words.set(Field::Attributes, word);
    edit.words.set(Field::Changed, now());
    Ok(())
}

fn image(all: &Attributes) -> Option<Box<[u8; BLOCK]>> {
    let mut image = Box::new([0; BLOCK]);
    let mut at = HEAD;
    for (name, value) in all {
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
    let crc = crc32c::crc32c(&image[8..at]);
    image[4..8].copy_from_slice(&crc.to_le_bytes());
    Some(image)
}

/// The attributes in the block that `word` names, or none.
///
/// # Errors
/// The block cannot be read, or be one of attributes.
fn load<M: Medium>(
    reader: Reader<'_, M>,
    inode: PoolOffset,
    word: u64,
) -> Result<Attributes, Corrupt> {
    let Some(block) = attributes_block(reader, inode, word)? else { return Ok(Vec::new()) };
    let at = block.offset();
    let mut image = Box::new([0; BLOCK]);
    reader.medium.read(at, &mut image[..]);
    check_readable(reader.medium, "extended attributes", at, BLOCK_U64)?;
    parse(&image)
        .ok_or_else(|| Corrupt::new("extended attributes", at, "no block of them can be so"))
}

fn parse(image: &[u8; BLOCK]) -> Option<Attributes> {
    let number = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?));
    let end = usize::try_from(number(8)?).ok()?;
    let used = image.get(8..end)?;
    if image[..4] != MAGIC || number(4)? != crc32c::crc32c(used) {
        return None;
    }
    let mut all = Attributes::new();
    let mut at = HEAD;
    while at < end {
        let name_at = at + 3;
        let value_at = name_at + usize::from(*image.get(at)?);
        let value_bytes = u16::from_le_bytes(*image.get(at + 1..)?.first_chunk()?);
        at = value_at + usize::from(value_bytes);
        let (name, value) = (image.get(name_at..value_at)?, image.get(value_at..at)?);
        all.push((name.to_vec(), value.to_vec()));
    }
    (at == end).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_what_was_stored_and_damage_is_noticed() {
        let all = vec![(b"user.a".to_vec(), b"1".to_vec()), (b"user.b".to_vec(), Vec::new())];
        let image = image(&all).unwrap();
        assert_eq!(parse(&image), Some(all));
        for at in 0..HEAD + 17 {
            let mut wrong = image.clone();
            wrong[at] ^= 64;
            assert_eq!(parse(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn more_than_a_block_of_them_is_refused() {
        let all = |bytes| vec![(b"n".to_vec(), vec![7; bytes])];
        assert!(image(&all(ATTRIBUTES_BYTES_MAX - 4)).is_some());
        assert!(image(&all(ATTRIBUTES_BYTES_MAX - 3)).is_none());
    }
}
