//! Answered writes at risk of loss: the newest bytes of every range answered since the last flush.
//!
//! Invariants: pieces do not overlap. If two writes overlap, only the newer bytes stay. Repeated writes
//! of all pieces, in any order, therefore never put older bytes over newer ones. A piece refused by the
//! device stays until the device takes it or newer bytes are answered. If newer bytes cut it, the rest
//! stays refused. Knows no device and no connection.

use std::collections::BTreeMap;

use crate::device::Hole;

/// Cost of every piece in addition to its bytes, so the bound covers many small pieces.
const PIECE_COST: usize = 64;

/// Contents that a write or a zeroing gave to a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The number of zeroes, and permission to keep or free the space.
    Zeroes(u64, Hole),
}

impl Content {
    /// Bytes of the range.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "an empty range has no content")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Zeroes(len, _) => *len,
        }
    }

    fn cost(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len() + PIECE_COST,
            Self::Zeroes(..) => PIECE_COST,
        }
    }

    /// Leaves the first `at` bytes, which must be fewer than there are, and returns the rest.
    fn split_off(&mut self, at: u64) -> Self {
        match self {
            Self::Bytes(bytes) => {
                let at = usize::try_from(at).expect("fewer than there are");
                let rest = bytes.split_off(at);
                // It counts by its length.
                bytes.shrink_to_fit();
                Self::Bytes(rest)
            }
            Self::Zeroes(len, hole) => {
                let rest = *len - at;
                *len = at;
                Self::Zeroes(rest, *hole)
            }
        }
    }
}

/// The newest bytes of every range answered since the last flush.
#[derive(Debug, Default)]
pub struct Unflushed {
    pieces: BTreeMap<u64, Piece>,
    cost: usize,
    /// The cost of the refused pieces.
    refused_cost: usize,
}

#[derive(Debug)]
struct Piece {
    content: Content,
    is_refused: bool,
}

impl Unflushed {
    /// Approximate bytes of DRAM.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// Approximate bytes of DRAM of the pieces that the device took and may lose.
    #[must_use]
    pub fn given_cost(&self) -> usize {
        self.cost - self.refused_cost
    }

    /// Returns true if the device refused pieces.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.refused_cost > 0
    }

    /// Returns true if the device can lose no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns true if the device may lose any byte of the `len` bytes at `offset`.
    #[must_use]
    pub fn touches(&self, offset: u64, len: u64) -> bool {
        // The pieces are disjoint, so of those before the end only the last can reach the range.
        let before = self.pieces.range(..offset.saturating_add(len)).next_back();
        len > 0 && before.is_some_and(|(start, piece)| start + piece.content.len() > offset)
    }

    /// The first piece that begins at `offset` or later.
    #[must_use]
    pub fn first_from(&self, offset: u64) -> Option<(u64, &Content)> {
        self.pieces.range(offset..).next().map(|(&start, piece)| (start, &piece.content))
    }

    /// Adds the pieces of `newer`. It must have no refused piece. If both have bytes, those of `newer`
    /// stay.
    pub fn append(&mut self, newer: Self) {
        newer.pieces.into_iter().for_each(|(start, piece)| self.put(start, piece.content));
    }

    /// Adds an answered write of `content` at `offset`.
    pub fn put(&mut self, offset: u64, content: Content) {
        if content.len() > 0 {
            // Older bytes of the range are gone first, so the pieces stay disjoint.
            self.cut(offset, content.len());
            self.insert(offset, Piece { content, is_refused: false });
        }
    }

    /// Forgets a range. Newer bytes of it are durable.
    pub fn cut(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        while let Some((start, Piece { mut content, is_refused })) = self.last_before(end, offset) {
            // The parts of the piece outside the range keep their bytes and their flag.
            if start + content.len() > end {
                let rest = content.split_off(end - start);
                self.insert(end, Piece { content: rest, is_refused });
            }
            if start < offset {
                drop(content.split_off(offset - start));
                self.insert(start, Piece { content, is_refused });
            }
        }
    }

    /// Removes all pieces that the device took, because a flush made them durable. Refused ones stay.
    pub fn clear_given(&mut self) {
        self.pieces.retain(|_, piece| piece.is_refused);
        self.cost = self.refused_cost;
    }

    /// First bytes of the pieces, ascending.
    #[must_use]
    pub fn starts(&self) -> Vec<u64> {
        self.pieces.keys().copied().collect()
    }

    /// First bytes of the refused pieces that overlap `offset..end`, ascending.
    #[must_use]
    pub fn refused_in(&self, offset: u64, end: u64) -> Vec<u64> {
        let touches = |&(start, piece): &(&u64, &Piece)| {
            piece.is_refused && start + piece.content.len() > offset
        };
        self.pieces.range(..end).filter(touches).map(|(start, _)| *start).collect()
    }

    /// The content of the piece that begins here.
    #[must_use]
    pub fn piece(&self, start: u64) -> Option<&Content> {
        self.pieces.get(&start).map(|piece| &piece.content)
    }

    /// The device refused to take a piece again, or took it after all.
    pub fn set_refused(&mut self, start: u64, is_refused: bool) {
        // Removed and inserted, because the sums of the costs depend on the flag.
        if let Some(piece) = self.remove(start) {
            self.insert(start, Piece { is_refused, ..piece });
        }
    }

    fn insert(&mut self, start: u64, piece: Piece) {
        self.cost += piece.content.cost();
        if piece.is_refused {
            self.refused_cost += piece.content.cost();
        }
        self.pieces.insert(start, piece);
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.cost -= piece.content.cost();
        if piece.is_refused {
            self.refused_cost -= piece.content.cost();
        }
        Some(piece)
    }

    /// Takes the last piece that begins before `end`, if it reaches beyond `offset`.
    fn last_before(&mut self, end: u64, offset: u64) -> Option<(u64, Piece)> {
        let (&start, piece) = self.pieces.range(..end).next_back()?;
        if start + piece.content.len() <= offset {
            return None;
        }
        Some((start, self.remove(start)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: usize = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u8),
        Zero,
        Durable,
        /// The device refuses the pieces that begin in the range.
        Refused,
        /// All that was given is flushed.
        Flushed,
    }

    fn steps() -> impl Strategy<Value = Vec<(usize, usize, Step)>> {
        let step = prop_oneof![
            6 => (1..=255_u8).prop_map(Step::Write),
            3 => Just(Step::Zero),
            3 => Just(Step::Durable),
            2 => Just(Step::Refused),
            1 => Just(Step::Flushed),
        ];
        proptest::collection::vec((0..LEN, 0..LEN, step), 0..40)
    }

    #[test]
    fn overwritten_bytes_take_no_memory() {
        let mut unflushed = Unflushed::default();
        unflushed.put(0, Content::Bytes(vec![1; 1 << 20]));
        unflushed.put(1, Content::Zeroes((1 << 20) - 1, Hole::Allowed));
        let Some(Content::Bytes(bytes)) = unflushed.piece(0) else { panic!("no bytes") };
        assert!(bytes.capacity() < 4096, "{}", bytes.capacity());
    }

    proptest! {
        #[test]
        fn unflushed_map_keeps_newest_bytes(steps in steps()) {
            let mut unflushed = Unflushed::default();
            // The byte, and whether the device refused it.
            let mut expected: [Option<(u8, bool)>; LEN] = [None; LEN];
            for (start, len, step) in steps {
                let end = LEN.min(start + len);
                let (offset, len) = (start as u64, (end - start) as u64);
                let has_some = expected[start..end].iter().any(Option::is_some);
                prop_assert_eq!(unflushed.touches(offset, len), has_some);
                match step {
                    Step::Write(byte) => {
                        unflushed.put(offset, Content::Bytes(vec![byte; end - start]));
                        expected[start..end].fill(Some((byte, false)));
                    }
                    Step::Zero => {
                        unflushed.put(offset, Content::Zeroes(len, Hole::Allowed));
                        expected[start..end].fill(Some((0, false)));
                    }
                    Step::Durable => {
                        unflushed.cut(offset, len);
                        expected[start..end].fill(None);
                    }
                    Step::Refused => {
                        for at in unflushed.starts() {
                            if (offset..offset + len).contains(&at) {
                                let len = unflushed.piece(at).unwrap().len();
                                unflushed.set_refused(at, true);
                                let from = usize::try_from(at).unwrap();
                                let to = usize::try_from(at + len).unwrap();
                                for (_, refused) in expected[from..to].iter_mut().flatten() {
                                    *refused = true;
                                }
                            }
                        }
                    }
                    Step::Flushed => {
                        unflushed.clear_given();
                        for byte in &mut expected {
                            *byte = byte.filter(|(_, refused)| *refused);
                        }
                    }
                }
            }
            let mut found = [None; LEN];
            let mut cost = 0;
            for at in unflushed.starts() {
                let content = unflushed.piece(at).unwrap();
                let refused = unflushed.refused_in(at, at + 1) == [at];
                let start = usize::try_from(at).unwrap();
                if !refused {
                    cost += content.cost();
                }
                let bytes = match content {
                    Content::Bytes(bytes) => bytes.clone(),
                    Content::Zeroes(len, _) => vec![0; usize::try_from(*len).unwrap()],
                };
                for (at, byte) in (start..).zip(bytes) {
                    prop_assert_eq!(found[at].replace((byte, refused)), None, "twice");
                }
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(cost, unflushed.given_cost());
            let any_refused = expected.iter().flatten().any(|(_, refused)| *refused);
            prop_assert_eq!(unflushed.has_refused(), any_refused);
            for at in unflushed.starts() {
                unflushed.set_refused(at, false);
            }
            unflushed.clear_given();
            prop_assert_eq!(unflushed.cost(), 0);
        }
    }
}
