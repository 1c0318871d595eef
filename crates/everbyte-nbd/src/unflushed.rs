//! What a server was given and may still forget: the newest bytes of every range that was answered
//! since the last flush.
//!
//! Invariants: pieces do not overlap; where two writes met, only the newer one's bytes are here, so
//! giving all pieces to the server again, in any order and any number of times, never puts older
//! bytes over newer ones. Knows no connection.

use std::collections::BTreeMap;

use everbyte_device::Hole;

/// Counted for every piece besides its bytes, so that many small ones are bounded as well.
const PIECE_COST: usize = 64;

/// What a range was made to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    Bytes(Vec<u8>),
    Zeroes(u64, Hole),
}

impl Content {
    fn len(&self) -> u64 {
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
                Self::Bytes(bytes.split_off(usize::try_from(at).unwrap_or(usize::MAX)))
            }
            Self::Zeroes(len, hole) => {
                let rest = *len - at;
                *len = at;
                Self::Zeroes(rest, *hole)
            }
        }
    }
}

/// The newest bytes of every range that was answered since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    pieces: BTreeMap<u64, Content>,
    cost: usize,
}

impl Unflushed {
    /// Bytes of memory that it takes, about.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// The server answered that the range holds this.
    pub(crate) fn put(&mut self, offset: u64, content: Content) {
        if content.len() > 0 {
            self.cut(offset, content.len());
            self.insert(offset, content);
        }
    }

    /// Forgets a range, which is durable with newer bytes.
    pub(crate) fn cut(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        while let Some((start, mut content)) = self.last_before(end, offset) {
            if start + content.len() > end {
                let rest = content.split_off(end - start);
                self.insert(end, rest);
            }
            if start < offset {
                drop(content.split_off(offset - start));
                self.insert(start, content);
            }
        }
    }

    /// Everything is durable.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// All pieces, ascending.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, &Content)> {
        self.pieces.iter().map(|(&start, content)| (start, content))
    }

    fn insert(&mut self, start: u64, content: Content) {
        self.cost += content.cost();
        self.pieces.insert(start, content);
    }

    /// Takes the last piece that begins before `end`, if it reaches beyond `offset`.
    fn last_before(&mut self, end: u64, offset: u64) -> Option<(u64, Content)> {
        let (&start, content) = self.pieces.range(..end).next_back()?;
        if start + content.len() <= offset {
            return None;
        }
        let content = self.pieces.remove(&start)?;
        self.cost -= content.cost();
        Some((start, content))
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
    }

    fn steps() -> impl Strategy<Value = Vec<(usize, usize, Step)>> {
        let step =
            prop_oneof![(1..=255_u8).prop_map(Step::Write), Just(Step::Zero), Just(Step::Durable)];
        proptest::collection::vec((0..LEN, 0..LEN, step), 0..40)
    }

    proptest! {
        #[test]
        fn it_has_the_newest_of_every_byte_that_is_not_durable(steps in steps()) {
            let mut unflushed = Unflushed::default();
            let mut expected = [None; LEN];
            for (start, len, step) in steps {
                let end = LEN.min(start + len);
                let (offset, len) = (start as u64, (end - start) as u64);
                match step {
                    Step::Write(byte) => {
                        unflushed.put(offset, Content::Bytes(vec![byte; end - start]));
                        expected[start..end].fill(Some(byte));
                    }
                    Step::Zero => {
                        unflushed.put(offset, Content::Zeroes(len, Hole::Allowed));
                        expected[start..end].fill(Some(0));
                    }
                    Step::Durable => {
                        unflushed.cut(offset, len);
                        expected[start..end].fill(None);
                    }
                }
            }
            let mut found = [None; LEN];
            let mut cost = 0;
            for (start, content) in unflushed.pieces() {
                let start = usize::try_from(start).unwrap();
                cost += content.cost();
                match content {
                    Content::Bytes(bytes) => {
                        for (at, byte) in (start..).zip(bytes) {
                            prop_assert_eq!(found[at].replace(*byte), None, "twice");
                        }
                    }
                    Content::Zeroes(len, _) => {
                        let len = usize::try_from(*len).unwrap();
                        for byte in &mut found[start..start + len] {
                            prop_assert_eq!(byte.replace(0), None, "twice");
                        }
                    }
                }
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(cost, unflushed.cost());
            unflushed.clear();
            prop_assert_eq!(unflushed.cost(), 0);
        }
    }
}
