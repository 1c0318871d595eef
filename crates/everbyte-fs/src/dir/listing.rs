//! Directory listings in the order of the hashes of names, strict or past damage.

use everbyte_media::Medium;
use everbyte_pool::Corrupt;

use super::{Dir, ListedEntry};
use crate::format::{Bucket, BucketHead, HASH_BITS, RawEntry, Slot};

/// Damaged parts of a directory after which a listing past damage returns.
const DAMAGE_MAX: usize = 64;

impl<M: Medium> Dir<'_, M> {
    /// The entries from a place on, in the order of places, of the first bucket with any. Also returns the
    /// first place after that bucket, if more entries can follow.
    ///
    /// # Errors
    /// A damaged directory.
    pub(crate) fn entries_from(
        &self,
        from: u64,
    ) -> Result<(Vec<ListedEntry>, Option<u64>), Corrupt> {
        let mut from = Some(from);
        while let Some(hash) = from.filter(|hash| hash >> HASH_BITS == 0) {
            let Some((_, head)) = self.head_of(None, hash)? else { break };
            let bucket = Bucket::load(self.reader.medium, head)?;
            let entries = listed(self.entries_of(&bucket)?, hash);
            from = beyond(&bucket.head);
            if !entries.is_empty() {
                return Ok((entries, from));
            }
        }
        Ok((Vec::new(), None))
    }

    /// Readable entries from a place on, in the order of places. Also returns the first place after them, if
    /// more can follow. Adds damage to `damage` and continues after it. Returns early after [`DAMAGE_MAX`]
    /// damaged parts.
    pub(crate) fn salvage_from(
        &self,
        from: u64,
        damage: &mut Vec<Corrupt>,
    ) -> (Vec<ListedEntry>, Option<u64>) {
        let mut from = Some(from);
        while let Some(hash) = from.filter(|hash| hash >> HASH_BITS == 0) {
            // A large damaged directory must not fill the memory. The caller continues from here.
            if damage.len() >= DAMAGE_MAX {
                return (Vec::new(), from);
            }
            match self.head_of(None, hash) {
                Ok(None) => break,
                Ok(Some((_, head))) => {
                    let entries = self.salvaged(head, hash, damage);
                    from = beyond(&head);
                    if !entries.is_empty() {
                        return (entries, from);
                    }
                }
                Err(corrupt) => {
                    // A damaged bucket can stand in several words.
                    let is_new = damage.last().is_none_or(|last| *last != corrupt);
                    damage.extend(is_new.then_some(corrupt));
                    from = self.beyond_damage(hash);
                }
            }
        }
        (Vec::new(), None)
    }

    /// The readable entries of the bucket with this head, from hash `from` on, in the order of hashes. Adds
    /// unreadable ones to `damage`.
    fn salvaged(&self, head: BucketHead, from: u64, damage: &mut Vec<Corrupt>) -> Vec<ListedEntry> {
        let bucket = match Bucket::load(self.reader.medium, head) {
            Ok(bucket) => bucket,
            Err(corrupt) => {
                damage.push(corrupt);
                return Vec::new();
            }
        };
        let mut entries = Vec::new();
        for slot in bucket.slots() {
            let entry = match slot {
                Ok((_, Slot::Entry { place, .. })) => {
                    let entry = bucket.head.entry(self.reader.medium, place);
                    entry.map(|entry| entries.push(entry))
                }
                other => other.map(drop),
            };
            damage.extend(entry.err());
        }
        listed(entries, from)
    }
}

/// The entries with hashes from `from` on, in the order of hashes. A hash is a place.
fn listed(entries: Vec<RawEntry>, from: u64) -> Vec<ListedEntry> {
    let listed = entries.into_iter().map(|entry| ListedEntry { place: entry.hash, entry });
    let mut listed: Vec<_> = listed.filter(|listed| listed.place >= from).collect();
    // Slots are in no order, and a position must separate listed entries from the others.
    listed.sort_unstable_by_key(|listed| listed.place);
    listed
}

/// The first hash after the range of the bucket with this head; `None` at the end.
fn beyond(head: &BucketHead) -> Option<u64> {
    let header = head.header;
    let next = header.prefix + 1;
    (next >> header.depth == 0).then(|| next << (HASH_BITS - header.depth))
}
