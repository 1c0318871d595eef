//! Exact costs of requests in each scheme and mode: log bytes, flushed lines and fences.
//!
//! Each figure is for requests to blocks 8 .. 12, or, for first writes, to the holes 40 .. 44; the
//! entries of either lie in one line of the table. The log is empty before. Streamed lines are not
//! flushed, so they are not counted.

use everbyte_device::Fua;

use super::fresh;
use super::scenario::{BLOCK, W, pattern};
use crate::baselines::{Kind, Scheme};

/// Blocks that hold something.
const MAPPED: usize = 16;
/// Requests before a checkpoint.
const N: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Request {
    /// 8 bytes in one word.
    Word,
    /// 64 bytes in one line.
    Line,
    /// A whole block.
    Block,
    /// 3000 bytes from a block's start: 47 lines, so more than half of it.
    Most,
    /// A whole block that was a hole.
    First,
}

impl Request {
    fn write(self, number: usize) -> W {
        let at = |block: usize| (block + number) * BLOCK;
        match self {
            Self::Word => W(at(8) + 136, 8, 2),
            Self::Line => W(at(8) + 128, 64, 2),
            Self::Block => W(at(8), BLOCK, 2),
            Self::Most => W(at(8), 3000, 2),
            Self::First => W(at(40), BLOCK, 2),
        }
    }
}

/// Log bytes, flushed lines, fences.
type Cost = (u64, u64, u64);

fn cost(scheme: &dyn Scheme, action: impl FnOnce()) -> Cost {
    let before = scheme.counts();
    action();
    let cost = scheme.counts().since(&before);
    (cost.log_bytes, cost.lines_flushed, cost.fences)
}

fn prepared(kind: Kind) -> std::sync::Arc<dyn Scheme> {
    let scheme = fresh(kind, 1 << 20, 1 << 20);
    scheme.write(0, &pattern(W(0, MAPPED * BLOCK, 1)), Fua::No).unwrap();
    scheme.checkpoint().unwrap();
    scheme
}

/// Expects one cost of a request that is durable when answered, and one of `N` requests that are
/// not, with the checkpoint after them.
fn expect(kind: Kind, request: Request, durable: Cost, checkpointed: Cost) {
    let scheme = prepared(kind);
    let write = |number, fua| {
        let write = request.write(number);
        scheme.write(write.0 as u64, &pattern(write), fua).unwrap();
    };
    let found = cost(&*scheme, || write(0, Fua::Yes));
    assert_eq!(found, durable, "{kind:?}, {request:?}, durable");
    let scheme = prepared(kind);
    let found = cost(&*scheme, || {
        for number in 0..N {
            let write = request.write(number);
            scheme.write(write.0 as u64, &pattern(write), Fua::No).unwrap();
        }
        scheme.checkpoint().unwrap();
    });
    assert_eq!(found, checkpointed, "{kind:?}, {request:?}, checkpointed");
    let idle = cost(&*scheme, || {
        scheme.flush().unwrap();
        scheme.checkpoint().unwrap();
    });
    assert_eq!(idle, (0, 0, 0), "{kind:?}: nothing to make durable");
}

/// Plain copies.
#[test]
fn ramfs() {
    for request in [Request::Line, Request::Block, Request::Most, Request::First] {
        expect(Kind::Ramfs, request, (0, 0, 0), (0, 0, 0));
    }
}

/// Lines of stores in place are flushed once, behind one fence. A whole block is streamed with a
/// separate fence. A first write also flushes its entry; here the four share a line.
#[test]
fn none() {
    let kind = Kind::None;
    expect(kind, Request::Line, (0, 1, 1), (0, 4, 1));
    expect(kind, Request::Block, (0, 0, 1), (0, 0, 4));
    expect(kind, Request::Most, (0, 47, 1), (0, 4 * 47, 1));
    expect(kind, Request::First, (0, 1, 2), (0, 1, 4 + 1));
}

/// A record of 16 + 64 bytes lies in two lines. Each request flushes and fences its record; the
/// commit is a line and a fence. The checkpoint flushes each record's line or entry in place, and
/// fences; then the head, and fences. Of whole blocks, 4096 bytes and a record of 16.
#[test]
fn redo_published() {
    let kind = Kind::RedoPublished;
    let line = (4 * 80, 4 * 2 + 1 + 4 + 1, 4 + 1 + 2);
    expect(kind, Request::Line, (80, 2 + 1, 1 + 1), line);
    for request in [Request::Block, Request::Most, Request::First] {
        let blocks = (4 * 4112, 4 + 1 + 4 + 1, 4 + 1 + 2);
        expect(kind, request, (4112, 1 + 1, 1 + 1), blocks);
    }
}

/// A group has 32 bytes, 16 for each block, and its lines, rounded up to lines: 128 for one line,
/// 384 for four; without lines 64, 128 for four. One fence for the group, one for each streamed
/// block. The checkpoint flushes the line of the entries, if they change, and the head: two
/// fences.
#[test]
fn redo_improved() {
    let kind = Kind::RedoImproved;
    expect(kind, Request::Line, (128, 0, 1), (384, 1, 1 + 2));
    for request in [Request::Block, Request::Most, Request::First] {
        let blocks = (4 * 4096 + 128, 1 + 1, 4 + 1 + 2);
        expect(kind, request, (4096 + 64, 0, 1 + 1), blocks);
    }
}

/// Parts of blocks are streamed in place by the block, with a fence for all of them. Whole blocks
/// are streamed immediately, with a fence for each. Only first writes journal: a descriptor, the
/// block of the table, a fence, a commit block, a fence. Then the checkpoint has the table to
/// write, with a fence, and the head.
#[test]
fn journal_ordered() {
    let kind = Kind::JournalOrdered;
    for request in [Request::Line, Request::Most] {
        expect(kind, request, (0, 0, 1), (0, 0, 1));
    }
    expect(kind, Request::Block, (0, 0, 1), (0, 0, 4));
    expect(kind, Request::First, (3 * 4096, 0, 1 + 2), (3 * 4096, 1, 4 + 2 + 2));
}

/// A descriptor and the whole blocks; the block of the table for first writes; a fence; a commit
/// block; a fence. The checkpoint has a fence for the copies, and one for the head.
#[test]
fn journal_data() {
    let kind = Kind::JournalData;
    for request in [Request::Line, Request::Block, Request::Most] {
        expect(kind, request, (3 * 4096, 0, 2), (6 * 4096, 1, 2 + 2));
    }
    expect(kind, Request::First, (4 * 4096, 0, 2), (7 * 4096, 1, 2 + 2));
}

/// A fence for each copy, which takes the pointer before along; the last pointer has a separate
/// fence. A word is its own commit, and the first has none before it. A first write is an append:
/// its pointer is flushed in place, with the copy, before the size.
#[test]
fn shadow() {
    let kind = Kind::Shadow;
    for request in [Request::Line, Request::Block, Request::Most] {
        expect(kind, request, (0, 1, 2), (0, 4, 4 + 1));
    }
    expect(kind, Request::First, (0, 1 + 1, 2), (0, 4 * 2, 4 + 1));
    expect(kind, Request::Word, (0, 1, 1), (0, 4, 4));
}

/// A record has 24 bytes, and the old ones: of a line 88, in two lines, of which one of the four
/// records here touches three; of a block none, of which one of the four lies in two lines. Each
/// request fences them, flushes the head and fences. The checkout flushes the new lines in place,
/// or the whole blocks and the line of their entries, and fences. Then it flushes the head, and
/// fences.
#[test]
fn rollback_published() {
    let kind = Kind::RollbackPublished;
    let line = (4 * 88, 2 + 2 + 3 + 2 + 4 + 4 + 1, 4 * 2 + 2);
    expect(kind, Request::Line, (88, 2 + 1 + 1 + 1, 2 + 2), line);
    for request in [Request::Block, Request::Most, Request::First] {
        let blocks = (4 * 24, 1 + 1 + 2 + 1 + 4 + 4 * 64 + 1 + 1, 4 * 2 + 2);
        expect(kind, request, (24, 1 + 1 + 64 + 1 + 1, 2 + 2), blocks);
    }
}

/// Several pointers of one page: a fence for the copies, the page among them; the pointer to the
/// page commits.
#[test]
fn shadow_copies_the_page_above_several_changes() {
    let scheme = prepared(Kind::Shadow);
    let before = scheme.counts();
    let data = pattern(W(8 * BLOCK, 2 * BLOCK, 2));
    scheme.write(8 * BLOCK as u64, &data, Fua::Yes).unwrap();
    let cost = scheme.counts().since(&before);
    assert_eq!((cost.lines_flushed, cost.fences), (1, 2));
    assert_eq!(cost.bytes_stored, 3 * 4096 + 8);
}

/// A record of old bytes is a header of 64 bytes and the lines; a pointer is logged in 64 bytes.
/// One fence for each record, with the new block if there is one. The checkpoint flushes the dirty
/// lines, in place or of entries, and fences; then both copies of the checkpoint record, and
/// fences. Durable when answered, a line is redone from its record, and a block costs a fence, its
/// entry and a fence.
#[test]
fn rollback() {
    let kind = Kind::Rollback;
    expect(kind, Request::Line, (128, 0, 1), (4 * 128, 4 + 2, 4 + 2));
    for request in [Request::Block, Request::Most, Request::First] {
        expect(kind, request, (0, 1, 2), (4 * 64, 1 + 2, 4 + 2));
    }
}
