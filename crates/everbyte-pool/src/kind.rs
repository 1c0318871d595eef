//! Kinds of volumes, as the pool knows them, and their block walkers.
//!
//! Owns the trait for the extents that a kind's volumes use, and the claims made while an allocator is
//! rebuilt or a pool checked. Knows no map.

use std::collections::HashMap;
use std::sync::Arc;

use everbyte_media::{BLOCK_U64, BlockNo, Medium, PoolOffset};

use crate::alloc::{Allocator, BlockRun};
use crate::format::{
    CHECKSUM_ROOT_AT, Corrupt, Descriptor, RO_COMPAT_CHECKSUMS, ROOT_AT, VolumeKind,
};

/// A volume as its kind's walker sees it: on the medium, not open.
#[derive(Clone, Copy, Debug)]
pub struct VolumeView<'a> {
    /// Settings of the volume from its creation.
    pub descriptor: &'a Descriptor,
    /// Address of its root word.
    pub root_at: PoolOffset,
    /// Address of the root word of its checksums.
    pub checksum_root_at: PoolOffset,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// First block that a map may name.
    pub data_start: u64,
    /// One beyond the last.
    pub data_end: u64,
}

impl<'a> VolumeView<'a> {
    /// The volume with this descriptor and size and its header at `header_at`, in a pool with the data blocks
    /// `data`.
    pub(crate) fn new(
        descriptor: &'a Descriptor,
        header_at: PoolOffset,
        size_bytes: u64,
        data: std::ops::Range<u64>,
    ) -> Self {
        Self {
            descriptor,
            root_at: header_at.plus(ROOT_AT),
            checksum_root_at: header_at.plus(CHECKSUM_ROOT_AT),
            size_bytes,
            data_start: data.start,
            data_end: data.end,
        }
    }
}

/// Use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// Undo records.
    Log,
    /// Nodes or a table of a map.
    Map,
    /// Checksums of data.
    Checksums,
    /// The volume's bytes from this offset on.
    Data {
        /// First byte of the volume in this part.
        offset: u64,
    },
    /// Nothing yet: the volume reads zeroes from this offset on.
    Reserved {
        /// First byte of the volume with a reservation of the blocks.
        offset: u64,
    },
}

impl std::fmt::Display for BlockUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Log => f.write_str("the log"),
            Self::Map => f.write_str("the map"),
            Self::Checksums => f.write_str("the checksums"),
            Self::Data { offset } => write!(f, "the data at byte {offset}"),
            Self::Reserved { offset } => write!(f, "the space kept for byte {offset}"),
        }
    }
}

/// An extent of the pool in use by a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsedExtent {
    /// The blocks.
    pub run: BlockRun,
    /// Address of the word with its name.
    pub named_at: PoolOffset,
    /// Its use.
    pub holds: BlockUse,
}

impl UsedExtent {
    /// Its address, and its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> (PoolOffset, u64) {
        (self.run.start.offset(), self.run.len * BLOCK_U64)
    }
}

/// Takes a part of the pool for the visited volume.
pub type Claim<'a> = dyn FnMut(UsedExtent) -> Result<(), Corrupt> + 'a;

/// A kind of volume, as far as the pool must know it.
///
/// An implementation has no state: it handles volumes on the medium, open or not. It must not panic for any
/// contents of the medium.
pub trait Kind<M: Medium>: Send + Sync {
    /// Its number in descriptors.
    fn kind(&self) -> VolumeKind;

    /// Its name in lists and messages, a word in lower case.
    fn name(&self) -> &'static str;

    /// Features of the superblock of a pool with such a volume. A program without knowledge of one of them
    /// opens the pool read-only: it could not compute the free blocks.
    fn ro_compat(&self) -> u64 {
        0
    }

    /// Features of the superblock known to this program for the kind: those of every such volume, and those
    /// that some ask for ([`VolumeSpec::ro_compat`](crate::VolumeSpec)).
    fn known_features(&self) -> u64 {
        self.ro_compat()
    }

    /// Returns true if its volumes have a log. Without one nothing of them is undone, and nothing
    /// of them can be changed in an epoch.
    fn has_log(&self) -> bool {
        true
    }

    /// Calls `claim` once for every run of blocks owned by the volume, nodes and tables included, except
    /// the log.
    ///
    /// # Errors
    /// The first invalid structure in the map, or `claim`'s error.
    fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt>;

    /// Checks the volume's structures against each other, beyond the ownership of blocks. Requires: no
    /// writer. Returns the problems, each as a text with the structure and its address.
    ///
    /// # Errors
    /// The first invalid structure, if the check cannot continue without it.
    fn judge(&self, _medium: &M, _view: &VolumeView<'_>) -> Result<Vec<String>, Corrupt> {
        Ok(Vec::new())
    }
}

/// The kinds known to this program.
pub struct Kinds<M: Medium>(HashMap<VolumeKind, Arc<dyn Kind<M>>>);

impl<M: Medium> Kinds<M> {
    /// A table of kinds; of two with one number the last counts.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = Arc<dyn Kind<M>>>) -> Self {
        Self(kinds.into_iter().map(|kind| (kind.kind(), kind)).collect())
    }

    /// These kinds and those of `others`; `others` takes precedence for a number in both.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// The kind with this number, if this program knows it.
    #[must_use]
    pub fn get(&self, kind: VolumeKind) -> Option<&dyn Kind<M>> {
        self.0.get(&kind).map(|kind| &**kind)
    }

    /// Every feature of a pool that these kinds can still write.
    pub(crate) fn known_features(&self) -> u64 {
        self.0.values().fold(RO_COMPAT_CHECKSUMS, |known, kind| known | kind.known_features())
    }

    /// The name of a kind, known or not.
    #[must_use]
    pub fn name_of(&self, kind: VolumeKind) -> String {
        self.get(kind).map_or_else(|| kind.to_string(), |kind| kind.name().to_owned())
    }

    /// Visits the map of the volume in `view` and its log.
    ///
    /// # Errors
    /// As [`Kind::visit`]; also if the kind is unknown, or if the map leads to more blocks than the pool has,
    /// as a cyclic map does.
    pub(crate) fn visit(
        &self,
        medium: &M,
        view: &VolumeView<'_>,
        claim: &mut Claim<'_>,
    ) -> Result<(), Corrupt> {
        let log = BlockRun {
            start: BlockNo(view.descriptor.log_start),
            len: view.descriptor.log_blocks(),
        };
        let known = self.known(view)?;
        let mut counted = counted(view, claim);
        if log.len > 0 {
            counted(UsedExtent { run: log, named_at: view.root_at, holds: BlockUse::Log })?;
        }
        known.visit(medium, view, &mut counted)
    }

    fn known(&self, view: &VolumeView<'_>) -> Result<&dyn Kind<M>, Corrupt> {
        let kind = view.descriptor.volume_kind();
        let unknown = || Corrupt::new("volume descriptor", view.root_at, unknown_kind(kind));
        self.get(kind).ok_or_else(unknown)
    }
}

/// Passes the claims of the volume in `view` on to `claim`, until they exceed the blocks of the pool.
fn counted<'c>(
    view: &'c VolumeView<'_>,
    claim: &'c mut Claim<'_>,
) -> impl FnMut(UsedExtent) -> Result<(), Corrupt> + 'c {
    let mut bytes_left = (view.data_end - view.data_start) * BLOCK_U64;
    move |extent| {
        bytes_left = bytes_left.checked_sub(extent.bytes().1).ok_or_else(|| {
            let map = format!("map of volume {}", view.descriptor.name());
            Corrupt::new(map, extent.named_at, "it leads to more blocks than the pool has")
        })?;
        claim(extent)
    }
}

/// The reason why a volume of an unknown kind cannot be used.
pub(crate) fn unknown_kind(kind: VolumeKind) -> String {
    format!("it is of {kind}, which this program does not know; a newer one may")
}

/// Most claims taken together.
const PENDING_MAX: usize = 512;

/// Takes a volume's claims from `alloc`: a second owner is detected.
///
/// Takes claims together if they are adjacent on the medium, as for most files.
pub(crate) struct ClaimCollector<'a> {
    alloc: &'a Allocator,
    volume: &'a str,
    /// Claims of adjacent blocks, ascending, and not taken yet.
    pending: Vec<UsedExtent>,
    /// The claim of an owned part, and the resulting error.
    clash: Option<(UsedExtent, Corrupt)>,
}

impl<'a> ClaimCollector<'a> {
    pub(crate) fn new(alloc: &'a Allocator, volume: &'a str) -> Self {
        Self { alloc, volume, pending: Vec::with_capacity(PENDING_MAX), clash: None }
    }

    /// Takes all claims of `visit`.
    ///
    /// # Errors
    /// The error of `visit`; a claimed part has an owner already.
    pub(crate) fn take_all(
        &mut self,
        visit: impl FnOnce(&mut Claim<'_>) -> Result<(), Corrupt>,
    ) -> Result<(), Corrupt> {
        let visited = visit(&mut |extent| self.take(extent));
        // The pending claims come first: a second owner explains an error of the walk.
        self.take_pending().and(visited)
    }

    /// Takes the claim, or adds it to the pending ones.
    ///
    /// # Errors
    /// The part, or an earlier claim, has an owner already. The visit then ends.
    fn take(&mut self, extent: UsedExtent) -> Result<(), Corrupt> {
        let end = self.pending.last().map(|last| last.run.start.0.saturating_add(last.run.len));
        if end.is_some_and(|end| end != extent.run.start.0) || self.pending.len() == PENDING_MAX {
            self.take_pending()?;
        }
        self.pending.push(extent);
        Ok(())
    }

    /// Takes the pending claims.
    fn take_pending(&mut self) -> Result<(), Corrupt> {
        let Some(first) = self.pending.first().copied() else { return Ok(()) };
        let len = self.pending.iter().fold(0, |len: u64, next| len.saturating_add(next.run.len));
        let all = BlockRun { start: first.run.start, len };
        let mut taken = self.take_run(all, first.named_at);
        if taken.is_err() && self.pending.len() > 1 {
            // The allocator took nothing of the run. At least one of the claims has another owner.
            for extent in std::mem::take(&mut self.pending) {
                taken = self.take_run(extent.run, extent.named_at);
                if let Err(corrupt) = taken {
                    return Err(self.note_clash(extent, corrupt));
                }
            }
        }
        self.pending.clear();
        taken.map_err(|corrupt| self.note_clash(first, corrupt))
    }

    fn note_clash(&mut self, extent: UsedExtent, corrupt: Corrupt) -> Corrupt {
        self.clash.get_or_insert((extent, corrupt.clone()));
        corrupt
    }

    fn take_run(&self, run: BlockRun, named_at: PoolOffset) -> Result<(), Corrupt> {
        self.alloc.take(run).map_err(|error| {
            let what = format!(
                "{} blocks from {} on belong to someone else already ({error})",
                run.len, run.start
            );
            Corrupt::new(format!("map of volume {}", self.volume), named_at, what)
        })
    }

    /// The claim that failed because of another owner, if any.
    pub(crate) fn into_clash(self) -> Option<DoubleOwnership> {
        self.clash.map(|(second, corrupt)| DoubleOwnership { second, corrupt, first: None })
    }
}

/// A part of the pool named by two words.
pub(crate) struct DoubleOwnership {
    second: UsedExtent,
    corrupt: Corrupt,
    /// The volume of the first owner, and that owner as text.
    first: Option<(String, String)>,
}

impl DoubleOwnership {
    /// Searches for the first owner among the claims of `visit` for the volume of this name, unless it was
    /// found before. Requires: the volumes come in the order in which they took.
    pub(crate) fn look_in(
        &mut self,
        volume: &str,
        visit: impl FnOnce(&mut Claim<'_>) -> Result<(), Corrupt>,
    ) {
        let (start, len) = self.second.bytes();
        // An incomplete walk of a map is a separate finding.
        let _partly = visit(&mut |extent| {
            let (at, bytes) = extent.bytes();
            let shares = at.0 < start.0 + len && start.0 < at.0 + bytes;
            // The walk meets the clashing claim itself again.
            if shares && extent.named_at != self.second.named_at && self.first.is_none() {
                let owner = format!(
                    "{} of volume {volume}, named by the word at {}",
                    extent.holds, extent.named_at
                );
                self.first = Some((volume.to_owned(), owner));
            }
            Ok(())
        });
    }

    /// The volume of the first owner, if found.
    pub(crate) fn first_volume(&self) -> Option<&str> {
        self.first.as_ref().map(|(volume, _)| volume.as_str())
    }

    /// The error with the names of both owners.
    pub(crate) fn into_corrupt(self) -> Corrupt {
        let Corrupt { structure, at, what } = self.corrupt;
        let what = match self.first {
            Some((_, first)) => format!("{what}: they hold {first}"),
            None => what,
        };
        Corrupt { structure, at, what }
    }
}

#[cfg(test)]
mod tests {
    use everbyte_crash::SimMedium;
    use everbyte_media::BLOCK;
    use zerocopy::FromZeros;

    use super::*;

    /// A kind with a map to these parts, possible or impossible.
    struct Leads {
        number: u32,
        feature: u64,
        to: Vec<BlockRun>,
    }

    impl Kind<SimMedium> for Leads {
        fn kind(&self) -> VolumeKind {
            VolumeKind(self.number)
        }

        fn name(&self) -> &'static str {
            "leading"
        }

        fn ro_compat(&self) -> u64 {
            self.feature
        }

        fn visit(
            &self,
            _medium: &SimMedium,
            view: &VolumeView<'_>,
            claim: &mut Claim<'_>,
        ) -> Result<(), Corrupt> {
            for (run, word) in self.to.iter().zip(1..) {
                let named_at = view.root_at.plus(8 * word);
                claim(UsedExtent { run: *run, named_at, holds: BlockUse::Map })?;
            }
            Ok(())
        }
    }

    fn kinds(number: u32, feature: u64, to: &[BlockRun]) -> Kinds<SimMedium> {
        Kinds::new([Arc::new(Leads { number, feature, to: to.to_vec() }) as _])
    }

    fn blocks(start: u64, len: u64) -> BlockRun {
        BlockRun { start: BlockNo(start), len }
    }

    /// Visits a volume with a log of 8 blocks from 10 on and a map to `to`, in a pool with the data blocks 10
    /// to 39, and takes the visited blocks from those. Returns the number of blocks left.
    fn left_by(to: &[BlockRun]) -> Result<u64, String> {
        let mut descriptor = Descriptor::new_zeroed();
        (descriptor.kind, descriptor.name[0]) = (77, b'v');
        (descriptor.log_start, descriptor.lanes, descriptor.half_blocks) = (10, 1, 4);
        let alloc = Allocator::new(64);
        alloc.add(BlockRun { start: BlockNo(10), len: 30 }).unwrap();
        let view = VolumeView::new(&descriptor, PoolOffset(8192), 512, 10..40);
        let medium = SimMedium::new(BLOCK as u64);
        let mut taker = ClaimCollector::new(&alloc, "v");
        let visited = taker.take_all(|claim| kinds(77, 0, to).visit(&medium, &view, claim));
        let clash = taker.into_clash().map(|mut clash| {
            clash.look_in("v", |claim| kinds(77, 0, to).visit(&medium, &view, claim));
            clash.into_corrupt()
        });
        assert_eq!(visited.is_err(), clash.is_some());
        visited.map(|()| alloc.free_blocks()).map_err(|_| clash.unwrap().to_string())
    }

    #[test]
    fn owned_blocks_are_claimed_once() {
        assert_eq!(left_by(&[]), Ok(22), "the log");
        assert_eq!(left_by(&[blocks(18, 22)]), Ok(0));
        let taken = "belong to someone else already";
        let (log, word) = ("the log of volume v, named by the word at 0x20c0", "0x20c8");
        for (to, expected, owner) in [
            (&[blocks(17, 1)][..], taken, log),
            (&[blocks(9, 1)], taken, ""),
            (&[blocks(39, 2)], taken, ""),
            (&[blocks(20, 2), blocks(21, 1)], taken, word),
            (&[blocks(20, 1), blocks(20, 1)], taken, word),
        ] {
            let error = left_by(to).unwrap_err();
            assert!(error.contains(expected) && error.contains(owner), "{to:?}: {error}");
            assert_eq!(error.contains("they hold"), !owner.is_empty(), "{to:?}: {error}");
        }
    }

    #[test]
    fn endless_map_is_an_error() {
        let round: Vec<_> = (0..1000).map(|_| blocks(20, 1)).collect();
        let medium = SimMedium::new(BLOCK as u64);
        let mut descriptor = Descriptor::new_zeroed();
        (descriptor.kind, descriptor.name[0]) = (77, b'v');
        let view = VolumeView::new(&descriptor, PoolOffset(8192), 512, 10..40);
        let mut claims = 0;
        let visited = kinds(77, 0, &round).visit(&medium, &view, &mut |_| {
            claims += 1;
            Ok(())
        });
        let error = visited.unwrap_err().to_string();
        assert!(error.contains("map of volume v at 0x") && error.contains("more blocks"));
        assert_eq!(claims, 30, "as many as there are, and no more");
    }

    #[test]
    fn kinds_are_found_by_number() {
        let both = kinds(1, 1 << 5, &[]).and(kinds(2, 1 << 6, &[]));
        assert_eq!(both.known_features(), RO_COMPAT_CHECKSUMS | 3 << 5);
        assert_eq!(both.name_of(VolumeKind(2)), "leading");
        assert_eq!(both.name_of(VolumeKind(3)), "kind 3");
        assert!(both.get(VolumeKind(3)).is_none());
        let replaced = both.and(kinds(1, 1 << 7, &[]));
        assert_eq!(replaced.known_features(), RO_COMPAT_CHECKSUMS | 1 << 6 | 1 << 7);
    }
}
