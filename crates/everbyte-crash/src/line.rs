//! The persistence rules: the possible contents of one 64-byte line on the hardware.
//!
//! Owns the pending stores of a line and the enumeration of its possible durable contents.
//! Invariants: pieces are kept in the order of their stores. No piece crosses an aligned 8-byte
//! word. Once a piece is durable, no earlier piece can overwrite its bytes. On hardware the buffer
//! of another thread's unfenced stream could, so the medium refuses stores over one. Knows nothing
//! of addresses, threads' fences or the explorer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use everbyte_media::LINE;

use crate::decision_trace::{DecisionTrace, Image, Learned, mix};

/// Seeded subsets tried beyond that, in addition to none, all, each alone and each missing.
const SUBSETS_SEEDED: u64 = 2;
/// Distinguished streamed pieces of a line. Later ones persist or fail together with the last.
const STREAMED_MAX: usize = 64;
/// Tried contents of one line before its enumeration is thinned out.
const CONTENTS_MAX: usize = 1024;

/// Largest number of contents of one line with a linear search for a new one.
const FEW: usize = 16;

/// Largest number of pieces with a choice of every subset.
const SUBSETS_LIMIT: usize = 10;

/// Limits of the tried contents of one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thinning {
    /// Largest number of unordered pieces with a try of every subset.
    pub(crate) subsets_max: usize,
    /// Picks subsets beyond that.
    pub(crate) seed: u64,
}

/// Kind of the store that made a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreKind {
    /// Through the cache: persists in order within the line.
    Ordinary,
    /// Bypasses the processor's cache, by the thread of this number: persists in any order.
    Streamed(u32),
}

/// A store, or a part of one. It persists as a whole or not at all.
#[derive(Clone, Debug)]
pub(crate) struct StoredPiece {
    /// Position among all pieces of the medium.
    pub(crate) seq: u64,
    /// Ordinary pieces of one group persist in any order, groups in order of their numbers.
    group: u64,
    pub(crate) kind: StoreKind,
    /// Its bytes of the line. The mask shrinks when later bytes become durable first.
    mask: u64,
    word: usize,
    bytes: [u8; 8],
}

impl StoredPiece {
    /// Calls `with` for each naturally aligned piece of a store of `bytes` at byte `start` of a
    /// line, ascending, handing out sequence numbers from `seq` on. All of them are one group,
    /// or each is one if they are `ordered`.
    pub(crate) fn split(
        start: usize,
        bytes: &[u8],
        kind: StoreKind,
        ordered: bool,
        seq: &mut u64,
        mut with: impl FnMut(Self),
    ) {
        let first = *seq;
        let mut done = 0;
        while done < bytes.len() {
            let at = start + done;
            let mut size = 8;
            while !at.is_multiple_of(size) || size > bytes.len() - done {
                size /= 2;
            }
            let mut word = [0; 8];
            word[at % 8..at % 8 + size].copy_from_slice(&bytes[done..done + size]);
            let (group, mask) = (if ordered { *seq } else { first }, mask_of(at, size));
            with(Self { seq: *seq, group, kind, mask, word: at / 8, bytes: word });
            *seq += 1;
            done += size;
        }
    }

    fn apply(&self, image: &mut Image) {
        let (words, _) = image.as_chunks_mut::<8>();
        let mask = spread(self.mask.to_le_bytes()[self.word]);
        let (old, new) = (u64::from_le_bytes(words[self.word]), u64::from_le_bytes(self.bytes));
        words[self.word] = (old & !mask | new & mask).to_le_bytes();
    }
}

/// The mask of bytes `start .. start + len` of a line; `len` is 1 to 64.
pub(crate) fn mask_of(start: usize, len: usize) -> u64 {
    (u64::MAX >> (LINE - len)) << start
}

/// The word with each byte all ones where `mask` has a bit.
fn spread(mask: u8) -> u64 {
    // A copy of the mask for each byte, its own bit of each copy, and that bit all over the byte.
    let own = (u64::from(mask) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    let top = (own + (0x8080_8080_8080_8080 - 0x8040_2010_0804_0201)) & 0x8080_8080_8080_8080;
    (top >> 7) * 0xff
}

/// Mask of the differing bytes of two images.
fn difference(a: &Image, b: &Image) -> u64 {
    if a == b {
        return 0;
    }
    (0..LINE).filter(|&i| a[i] != b[i]).fold(0, |mask, i| mask | 1 << i)
}

/// The bytes of `mask` of an image, and zeroes.
fn only(image: &Image, mask: u64) -> Image {
    std::array::from_fn(|i| if mask >> i & 1 != 0 { image[i] } else { 0 })
}

/// The possible durable contents of a line: more than one, or one and the omitted ones.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Distinct images. In the first, the least has persisted.
    images: Vec<Image>,
    /// Index of the fully persisted image, or of the nearest to it.
    all: usize,
    /// Bytes that differ between images.
    differ: u64,
    /// True if some possible contents were left out.
    thinned: bool,
}

/// The durable content of a line: known, or not decided yet.
#[derive(Clone, Debug)]
pub(crate) enum LineContent {
    /// One content is possible.
    Known(Image),
    /// Several are.
    Open(Arc<Contents>),
}

/// Distinct images, in order of their first appearance.
fn distinct(found: impl Iterator<Item = Image>) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    let mut known = HashSet::new();
    for image in found {
        // Most lines have few contents, and to hash one takes longer than to look at those.
        let is_new = match images.len() {
            0..FEW => !images.contains(&image),
            _ => {
                if known.is_empty() {
                    known.extend(images.iter().copied());
                }
                known.insert(image)
            }
        };
        if is_new {
            images.push(image);
        }
    }
    images
}

impl LineContent {
    /// Builds a content from images in order; in `all`, everything persisted.
    fn from_images(found: impl Iterator<Item = Image>, all: &Image, thinned: bool) -> Self {
        let images = distinct(found);
        // An omitted content may differ, even if all tried ones are alike.
        if images.len() == 1 && !thinned {
            return Self::Known(images[0]);
        }
        let differ = images.iter().fold(0, |mask, image| mask | difference(&images[0], image));
        let all = images.iter().position(|image| image == all).unwrap_or(images.len() - 1);
        Self::Open(Arc::new(Contents { images, all, differ, thinned }))
    }

    /// Returns every possible image, with the least persisted first.
    pub(crate) fn images(&self) -> &[Image] {
        match self {
            Self::Known(image) => std::slice::from_ref(image),
            Self::Open(contents) => &contents.images,
        }
    }

    fn all(&self) -> &Image {
        match self {
            Self::Known(image) => image,
            Self::Open(contents) => &contents.images[contents.all],
        }
    }

    pub(crate) fn thinned(&self) -> bool {
        matches!(self, Self::Open(contents) if contents.thinned)
    }

    /// Returns the mask of bytes that differ between possible images.
    pub(crate) fn differ(&self) -> u64 {
        match self {
            Self::Known(_) => 0,
            Self::Open(contents) => contents.differ,
        }
    }

    fn apply(&mut self, piece: &StoredPiece) {
        match self {
            Self::Known(image) => piece.apply(image),
            Self::Open(contents) => {
                let apply = |image: &Image| {
                    let mut image = *image;
                    piece.apply(&mut image);
                    image
                };
                let all = apply(&contents.images[contents.all]);
                *self =
                    Self::from_images(contents.images.iter().map(apply), &all, contents.thinned);
            }
        }
    }

    /// Keeps the images that agree on the bytes of `mask` with the choice of `decisions`.
    fn narrow(&self, mask: u64, line: u64, decisions: &mut DecisionTrace) -> Self {
        let Self::Open(contents) = self else { return self.clone() };
        let mut classes: HashMap<Image, usize> = HashMap::new();
        let mut class_of = Vec::with_capacity(contents.images.len());
        for image in &contents.images {
            let next = classes.len();
            class_of.push(*classes.entry(only(image, mask)).or_insert(next));
        }
        let all = class_of[contents.all];
        let taken = decisions.choose(line, classes.len(), all, contents.thinned);
        let kept = contents.images.iter().zip(&class_of).filter(|(_, class)| **class == taken);
        Self::from_images(
            kept.map(|(image, _)| *image),
            &contents.images[contents.all],
            contents.thinned,
        )
    }
}

/// A line of a running medium with stores, or with an undecided content.
#[derive(Debug)]
pub(crate) struct Line {
    durable: LineContent,
    pending: Vec<StoredPiece>,
    /// Bytes visible to loads, except for those of `open`.
    current: Image,
    /// Bytes without a pending store and with an undecided durable value.
    open: u64,
    /// The content after a crash now, if it was computed since the last change.
    crash_content: Option<LineContent>,
}

impl Line {
    /// A line with nothing pending.
    pub(crate) fn new(durable: LineContent) -> Self {
        let current = durable.images()[0];
        let open = durable.differ();
        Self { durable, pending: Vec::new(), current, open, crash_content: None }
    }

    /// Decides the bytes of `mask` and returns the line; its other bytes mean nothing.
    pub(crate) fn read(&mut self, mask: u64, line: u64, decisions: &mut DecisionTrace) -> &Image {
        decisions.note_thinned(self.durable.thinned());
        if mask & self.open != 0 {
            let before = self.durable.differ();
            self.durable = self.durable.narrow(mask & self.open, line, decisions);
            self.current = self.durable.images()[0];
            self.open = self.durable.differ();
            decisions.learn(Learned { line, mask: before & !self.open, image: self.current });
            for piece in &self.pending {
                piece.apply(&mut self.current);
                self.open &= !piece.mask;
            }
            self.crash_content = None;
        }
        &self.current
    }

    /// Adds a store.
    pub(crate) fn push(&mut self, piece: StoredPiece) {
        piece.apply(&mut self.current);
        self.open &= !piece.mask;
        self.pending.push(piece);
        self.crash_content = None;
    }

    /// Returns true if nothing is pending.
    pub(crate) fn is_clean(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the mask of the pending streamed bytes of `thread`.
    pub(crate) fn streamed_by(&self, thread: u32) -> u64 {
        let theirs = self.pending.iter().filter(|piece| piece.kind == StoreKind::Streamed(thread));
        theirs.fold(0, |mask, piece| mask | piece.mask)
    }

    /// Returns the durable image, if no other one is possible, not even by a pending store.
    pub(crate) fn settled(&self) -> Option<&Image> {
        match &self.durable {
            LineContent::Known(image) if self.pending.is_empty() => Some(image),
            _ => None,
        }
    }

    /// Makes the pending pieces chosen by `which` durable. Returns true if there were any.
    pub(crate) fn persist(&mut self, which: impl Fn(&StoredPiece) -> bool) -> bool {
        let before = self.pending.len();
        for i in 0..before {
            let (earlier, rest) = self.pending.split_at_mut(i);
            if which(&rest[0]) {
                self.durable.apply(&rest[0]);
                for piece in earlier {
                    piece.mask &= !rest[0].mask;
                }
            }
        }
        self.pending.retain(|piece| !which(piece) && piece.mask != 0);
        let any = self.pending.len() != before;
        if any {
            self.crash_content = None;
        }
        any
    }

    /// Returns the possible contents after a crash now, limited by `thinning`.
    pub(crate) fn crash_content(&mut self, line: u64, thinning: Thinning) -> LineContent {
        if self.crash_content.is_none() {
            let seed = mix(&[thinning.seed, line]);
            self.crash_content = Some(self.enumerate(Thinning { seed, ..thinning }));
        }
        self.crash_content.clone().unwrap_or_else(|| self.durable.clone())
    }

    fn enumerate(&self, thinning: Thinning) -> LineContent {
        if self.pending.is_empty() {
            return self.durable.clone();
        }
        let ordinary = self.pending.iter().filter(|piece| piece.kind == StoreKind::Ordinary);
        let groups: Vec<u64> = ordinary.map(|piece| piece.group).collect();
        let (picks, thinned) = picks(&groups, self.pending.len() - groups.len(), thinning);
        let durable = self.durable.images();
        let crossed = durable.len() * picks.len() <= CONTENTS_MAX;
        let all = self.after(self.durable.all(), &picks[picks.len() - 1]);
        let images = durable.iter().enumerate().flat_map(|(i, image)| {
            let edge = crossed || i == 0 || std::ptr::eq(image, self.durable.all());
            let last = picks.len() - 1;
            picks
                .iter()
                .enumerate()
                .filter(move |(p, _)| edge || *p == 0 || *p == last)
                .map(move |(_, pick)| self.after(image, pick))
        });
        LineContent::from_images(images, &all, thinned || !crossed || self.durable.thinned())
    }

    /// Returns `image` after the pending pieces of `pick` have persisted.
    fn after(&self, image: &Image, pick: &Pick) -> Image {
        let (mut image, mut ordinary, mut streamed) = (*image, 0, 0);
        for piece in &self.pending {
            let persists = if piece.kind == StoreKind::Ordinary {
                ordinary += 1;
                ordinary <= pick.ordinary || pick.has_beyond(ordinary - 1 - pick.ordinary)
            } else {
                streamed += 1;
                pick.streamed >> (streamed.min(STREAMED_MAX) - 1) & 1 != 0
            };
            if persists {
                piece.apply(&mut image);
            }
        }
        image
    }
}

/// A set of persisting pending pieces: a number of the first ordinary ones, some of the group after
/// them, and a set of streamed ones.
#[derive(Clone, Copy)]
struct Pick {
    ordinary: usize,
    beyond: u64,
    streamed: u64,
}

impl Pick {
    /// Returns true if the ordinary piece `distance` behind the first ones persists too.
    fn has_beyond(&self, distance: usize) -> bool {
        distance < 64 && self.beyond >> distance & 1 != 0
    }
}

/// Returns the picks to try, from nothing to everything, and true if some were left out. `groups`
/// has the group of every ordinary piece.
fn picks(groups: &[u64], streamed: usize, thinning: Thinning) -> (Vec<Pick>, bool) {
    let mut prefixes = Vec::new();
    let Thinning { subsets_max, seed } = thinning;
    let subsets_max = subsets_max.min(SUBSETS_LIMIT);
    let mut thinned = streamed > subsets_max;
    let mut ordinary = 0;
    for group in groups.chunk_by(|a, b| a == b) {
        thinned |= group.len() > subsets_max;
        let sets = subsets(group.len(), Thinning { subsets_max, seed: mix(&[seed, group[0]]) });
        prefixes.extend(sets[..sets.len() - 1].iter().map(|&beyond| (ordinary, beyond)));
        ordinary += group.len();
    }
    prefixes.push((ordinary, 0));
    let sets = subsets(streamed.min(STREAMED_MAX), Thinning { subsets_max, seed });
    let all = sets[sets.len() - 1];
    let crossed = prefixes.len() * sets.len() <= CONTENTS_MAX;
    let step = if crossed { 1 } else { prefixes.len().div_ceil(CONTENTS_MAX / 4) };
    let last = prefixes.len() - 1;
    let mut picks = Vec::new();
    for (i, &(ordinary, beyond)) in prefixes.iter().enumerate() {
        let edge = i == 0 || i == last;
        if edge || i.is_multiple_of(step) {
            let kept = sets.iter().filter(|set| crossed || edge || **set == 0 || **set == all);
            picks.extend(kept.map(|&streamed| Pick { ordinary, beyond, streamed }));
        }
    }
    (picks, thinned || !crossed)
}

/// Returns the sets of `count` unordered pieces to try: the empty one first, the full one last.
fn subsets(count: usize, thinning: Thinning) -> Vec<u64> {
    if count <= thinning.subsets_max {
        return (0..1 << count).collect();
    }
    let full = u64::MAX >> (64 - count);
    let mut sets = vec![0];
    sets.extend((0..count).map(|i| 1 << i));
    sets.extend((0..SUBSETS_SEEDED).map(|i| mix(&[thinning.seed, i]) & full));
    sets.extend((0..count).map(|i| full & !(1 << i)));
    sets.push(full);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_mask_is_spread_over_a_word() {
        for mask in 0..=u8::MAX {
            let bytes: [u8; 8] = std::array::from_fn(|i| if mask >> i & 1 != 0 { 0xff } else { 0 });
            assert_eq!(spread(mask), u64::from_le_bytes(bytes), "{mask:#b}");
        }
    }

    #[test]
    fn contents_are_unique_and_ordered() {
        for count in [1, FEW - 1, FEW, FEW + 1, 5 * FEW] {
            let image = |number: usize| [u8::try_from(number).unwrap(); LINE];
            let twice = (0..count).chain((0..count).rev()).map(image);
            assert_eq!(distinct(twice), (0..count).map(image).collect::<Vec<_>>());
        }
    }

    const USUAL: Thinning = Thinning { subsets_max: 3, seed: 0 };

    fn pieces(start: usize, bytes: &[u8]) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        StoredPiece::split(start, bytes, StoreKind::Ordinary, true, &mut 0, |piece| {
            found.push((piece.word, piece.mask));
        });
        found
    }

    fn put(line: &mut Line, seq: &mut u64, start: usize, bytes: &[u8], kind: StoreKind) {
        StoredPiece::split(start, bytes, kind, false, seq, |piece| line.push(piece));
    }

    fn firsts(crash_content: &LineContent) -> Vec<u8> {
        crash_content.images().iter().map(|image| image[0]).collect()
    }

    #[test]
    fn stores_split_at_natural_alignment() {
        assert_eq!(pieces(0, &[1; 8]), [(0, 0xff)]);
        assert_eq!(pieces(3, &[1; 6]), [(0, 1 << 3), (0, 0xf0), (1, 1 << 8)]);
        assert_eq!(pieces(56, &[1; 7]).len(), 3);
        assert_eq!(pieces(0, &[1; 64]).len(), 8);
    }

    #[test]
    fn ordinary_stores_persist_as_prefixes() {
        let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        for value in 1..=3 {
            put(&mut line, &mut seq, 0, &[value], StoreKind::Ordinary);
        }
        put(&mut line, &mut seq, 0, &[1], StoreKind::Ordinary);
        let crash_content = line.crash_content(0, USUAL);
        assert_eq!(firsts(&crash_content), [0, 1, 2, 3]);
        assert_eq!(
            crash_content.all()[0],
            1,
            "everything persisted is the last store, not the last image"
        );
    }

    #[test]
    fn pieces_of_a_store_persist_in_any_order_by_default() {
        let count = |ordered| {
            let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
            for value in 1..=2 {
                StoredPiece::split(
                    0,
                    &[value; 16],
                    StoreKind::Ordinary,
                    ordered,
                    &mut seq,
                    |piece| {
                        line.push(piece);
                    },
                );
            }
            assert!(!line.crash_content(0, USUAL).thinned());
            line.crash_content(0, USUAL).images().len()
        };
        assert_eq!(count(true), 5);
        assert_eq!(count(false), 7);
    }

    #[test]
    fn streamed_words_persist_in_any_subset() {
        let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        put(&mut line, &mut seq, 0, &[1; 24], StoreKind::Streamed(0));
        assert_eq!(line.crash_content(0, USUAL).images().len(), 8);
        assert!(!line.crash_content(0, USUAL).thinned());
        put(&mut line, &mut seq, 24, &[1; 40], StoreKind::Streamed(0));
        let crash_content = line.crash_content(0, USUAL);
        assert!(crash_content.thinned());
        assert!(
            (18..=20).contains(&crash_content.images().len()),
            "{}",
            crash_content.images().len()
        );
        assert_eq!(crash_content.images()[0], [0; LINE]);
        assert_eq!(crash_content.all(), &[1; LINE]);
        let mut line = Line::new(LineContent::Known([0; LINE]));
        put(&mut line, &mut seq, 0, &[1; LINE], StoreKind::Streamed(0));
        for subsets_max in [8, u32::MAX as usize] {
            let crash_content = line.enumerate(Thinning { subsets_max, seed: 0 });
            assert!(!crash_content.thinned());
            assert_eq!(crash_content.images().len(), 256);
        }
    }

    #[test]
    fn earlier_store_never_overwrites_durable_one() {
        let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        put(&mut line, &mut seq, 0, &[1], StoreKind::Ordinary);
        put(&mut line, &mut seq, 0, &[2], StoreKind::Streamed(0));
        assert_eq!(firsts(&line.crash_content(0, USUAL)), [0, 2, 1]);
        assert!(line.persist(|piece| piece.kind == StoreKind::Streamed(0)));
        assert_eq!(firsts(&line.crash_content(0, USUAL)), [2]);
    }

    #[test]
    fn stores_over_an_open_line_decide_nothing() {
        let (mut first, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        put(&mut first, &mut seq, 0, &[1], StoreKind::Ordinary);
        put(&mut first, &mut seq, 8, &[1], StoreKind::Ordinary);
        let mut second = Line::new(first.crash_content(0, USUAL));
        let mut decisions = DecisionTrace::default();
        put(&mut second, &mut seq, 0, &[7], StoreKind::Ordinary);
        assert_eq!(second.read(1, 0, &mut decisions)[0], 7);
        assert_eq!(decisions.made().len(), 0);
        assert_eq!(
            second.crash_content(0, USUAL).images().len(),
            5,
            "three old ones, two with the new byte"
        );
        assert!(second.persist(|_| true));
        assert_eq!(second.crash_content(0, USUAL).images().len(), 2, "only byte 8 is open now");
        second.read(mask_of(8, 1), 0, &mut decisions);
        assert_eq!(decisions.made().len(), 1);
        assert_eq!(second.crash_content(0, USUAL).images().len(), 1);
    }

    #[test]
    fn many_pending_stores_are_thinned_but_keep_the_ends() {
        let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        for value in 1..=2000_u64 {
            put(&mut line, &mut seq, 0, &value.to_le_bytes(), StoreKind::Ordinary);
        }
        let crash_content = line.crash_content(0, USUAL);
        assert!(crash_content.thinned());
        assert!(crash_content.images().len() <= CONTENTS_MAX);
        assert_eq!(crash_content.all()[..8], 2000_u64.to_le_bytes());
        assert_eq!(crash_content.images()[0][..8], [0; 8]);
    }

    #[test]
    fn thinning_is_reported_for_equal_contents() {
        let (mut line, mut seq) = (Line::new(LineContent::Known([0; LINE])), 0);
        for _ in 0..750 {
            for value in [1_u64, 0] {
                put(&mut line, &mut seq, 0, &value.to_le_bytes(), StoreKind::Ordinary);
            }
        }
        let crash_content = line.crash_content(0, USUAL);
        assert!(crash_content.thinned());
        let mut decisions = DecisionTrace::default();
        Line::new(crash_content).read(mask_of(0, 8), 0, &mut decisions);
        assert!(decisions.thinned());
    }
}
