//! The suite that every medium must pass, mapped or simulated.
//!
//! Checks the contract of [`Medium`] for one thread, the counters, the masks and the socket. Another suite
//! checks the states after a crash. The suite overwrites the medium and compares its own counts exactly, so
//! it must be the only user of the medium.
//!
//! Every function panics with the range at fault if the medium breaks the contract.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use everbyte_media::{
    BLOCK, BLOCK_U64, BlockNo, Counters, LINE, LineMask, Medium, Piece, PoolOffset,
    WINDOW_REGION_BYTES,
};

/// Least bytes of a medium for the suite.
pub const LEN_MIN: u64 = 16 * BLOCK_U64;

/// Range starts and lengths around every edge of lines and blocks, all in two blocks.
const RANGES: [(usize, usize); 16] = [
    (0, 0),
    (0, 1),
    (0, 8),
    (0, 64),
    (0, 4096),
    (0, 8192),
    (1, 62),
    (1, 63),
    (1, 64),
    (63, 2),
    (63, 130),
    (64, 128),
    (100, 1),
    (4095, 2),
    (4000, 3000),
    (8191, 1),
];

/// Runs the whole suite on `medium`, whose contents are lost.
///
/// # Panics
/// If the medium breaks its contract, or is shorter than [`LEN_MIN`].
pub fn check_medium<M: Medium>(medium: &M) {
    assert!(medium.len() >= LEN_MIN, "the suite needs {LEN_MIN} bytes");
    assert!(medium.len().is_multiple_of(BLOCK_U64), "the length is no multiple of a block");
    assert!(!medium.is_empty());
    // First, because a failed medium loses stores, and each later check would blame another part.
    medium.check().expect("a new medium has not failed");
    check_words(medium);
    check_stores(medium);
    check_changed_lines(medium);
    check_counters(medium);
    check_send(medium);
    check_full_socket(medium);
    check_window(medium);
    medium.fence().expect("the medium has not failed");
    medium.check().expect("the medium has not failed");
}

/// Words: a load returns the stored word, little-endian, up to the last word.
///
/// # Panics
/// As [`check_medium`].
pub fn check_words<M: Medium>(medium: &M) {
    // Fixed seeds: a failure on any machine is reproducible.
    let mut random = Random(1);
    // The first and last word of a line, of a block and of the medium.
    let places = [0, 8, 56, 64, 4088, 4096, LEN_MIN - 8, medium.len() - 8];
    for at in places.map(PoolOffset) {
        let value = random.next();
        medium.store_word(at, value);
        assert_eq!(medium.load_word(at), value, "word at {at}");
        let mut bytes = [0; 8];
        medium.read(at, &mut bytes);
        assert_eq!(bytes, value.to_le_bytes(), "bytes of the word at {at}");
        medium.peek(at, &mut bytes);
        // A peek may return torn bytes only during a concurrent store, and this thread is the only
        // user.
        let peeked = (medium.peek_word(at), u64::from_le_bytes(bytes));
        assert_eq!(peeked, (value, value), "a peek at {at}, where nobody stores");
        // Every bit changes, so a partly stored word cannot equal the expected one.
        medium.store(at, &(!value).to_le_bytes());
        assert_eq!(medium.load_word(at), !value, "word stored as bytes at {at}");
    }
}

/// Windows: reads see the runs in the order of their additions, before and after each store. Nothing
/// exists beyond the runs. Works on a medium of any size, because the suite can add a run repeatedly.
///
/// # Panics
/// As [`check_medium`].
pub fn check_window<M: Medium>(medium: &M) {
    // A small medium has no whole run. Then the suite checks the empty window alone.
    let runs = (medium.len() / WINDOW_REGION_BYTES).min(3);
    // Descending, then repeated: neither the order nor the address of a run may determine its
    // place.
    let order: Vec<u64> = (0..runs).rev().chain(0..runs).collect();
    let window = medium.window(order.len() as u64);
    assert_eq!((window.regions(), window.offset(0)), (0, None), "a new window is empty");
    for (region, &run) in (0..).zip(&order) {
        let run = PoolOffset(run * WINDOW_REGION_BYTES);
        medium.extend_window(&window, run);
        // Readers of other threads rely on it: a counted region is mapped.
        assert_eq!(window.regions(), region + 1);
        let start = region * WINDOW_REGION_BYTES;
        for at in [0, 8, 4096, WINDOW_REGION_BYTES - 8] {
            assert_eq!(window.offset(start + at), Some(run.plus(at)));
            medium.store_word(run.plus(at), start + at + 1);
            assert_eq!(medium.load_word_in(&window, start + at), start + at + 1);
            // Streams bypass the cache, and the mapping of the window has other addresses.
            medium.stream(run.plus(at), &(start + at + 2).to_le_bytes());
            medium.fence().expect("the medium has not failed");
            let mut bytes = [0; 5];
            medium.read_in(&window, start + at, &mut bytes);
            assert_eq!(bytes, (start + at + 2).to_le_bytes()[..5]);
        }
        assert_eq!(window.offset(start + WINDOW_REGION_BYTES), None);
    }
    if let Some(&first) = order.first() {
        let first = PoolOffset(first * WINDOW_REGION_BYTES);
        // Later regions of the same run have overwritten the first one's words.
        assert_eq!(medium.load_word_in(&window, 8), medium.load_word(first.plus(8)));
    }
}

/// Stores and streams of every alignment: visible immediately, in exactly their range, and unchanged
/// by flush and fence.
///
/// # Panics
/// As [`check_medium`].
pub fn check_stores<M: Medium>(medium: &M) {
    let mut random = Random(2);
    // Two blocks of ranges and a block on each side, so a store beyond its range is detected.
    let mut model = random.bytes(4 * BLOCK);
    medium.stream(PoolOffset(0), &model);
    for (start, len) in RANGES {
        for streamed in [false, true] {
            let bytes = random.bytes(len);
            let at = PoolOffset((BLOCK + start) as u64);
            if streamed {
                medium.stream(at, &bytes);
            } else {
                medium.store(at, &bytes);
            }
            model[BLOCK + start..][..len].copy_from_slice(&bytes);
            let what = if streamed { "stream" } else { "store" };
            assert_contents(medium, &model, &format!("after a {what} of {start}+{len}"));
            // Flushes and fences must not change bytes, for example by writing back an older copy.
            medium.flush(at, len as u64);
            medium.fence().expect("the medium has not failed");
            assert_contents(medium, &model, &format!("after a fence of {start}+{len}"));
            let mut out = vec![0; len];
            medium.read(at, &mut out);
            assert!(out == bytes, "read of {start}+{len}");
        }
    }
    // A word published after a stream, and a store over a stream, are the newest.
    medium.stream(PoolOffset(0), &[1; BLOCK]);
    medium.store_word(PoolOffset(64), 2);
    medium.store(PoolOffset(100), &[3; 5]);
    medium.stream(PoolOffset(102), &[4; 1]);
    let mut out = [0; 48];
    medium.read(PoolOffset(64), &mut out);
    assert_eq!(out[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[36..41], [3, 3, 4, 3, 3]);
}

/// `changed_lines` equals a comparison byte by byte, for ranges of every alignment and for
/// changes of one bit, of many and of none.
///
/// # Panics
/// As [`check_medium`].
pub fn check_changed_lines<M: Medium>(medium: &M) {
    let mut random = Random(3);
    let block = BlockNo(medium.len() / BLOCK_U64 - 1);
    let old = random.bytes(BLOCK);
    medium.stream(block.offset(), &old);
    let compare = |start: usize, new: &[u8]| {
        let mut expected = LineMask::EMPTY;
        for (i, byte) in new.iter().enumerate() {
            if old[start + i] != *byte {
                expected = expected.or(LineMask::covering(start + i, 1));
            }
        }
        let found = medium.changed_lines(block, start, new);
        assert_eq!(found, expected, "changed lines of {start}+{}", new.len());
    };
    // `changed_lines` compares within one block.
    let inside = RANGES.into_iter().filter(|(start, len)| start + len <= BLOCK);
    let others = (0..200).map(|_| {
        let start = random.below(BLOCK + 1);
        (start, random.below(BLOCK - start + 1))
    });
    let ranges: Vec<_> = inside.chain(others).collect();
    for (start, len) in ranges {
        let mut new = old[start..start + len].to_vec();
        compare(start, &new);
        // Changes add up. A second change of the same bit restores it, so equal bytes occur as
        // well.
        for changes in [1, 1, 5, 200] {
            for _ in 0..changes.min(len) {
                let byte = random.below(len);
                new[byte] ^= 1 << random.below(8);
            }
            compare(start, &new);
        }
        compare(start, &random.bytes(len));
    }
}

/// The counters count exactly the requests.
///
/// # Panics
/// As [`check_medium`].
pub fn check_counters<M: Medium>(medium: &M) {
    let mut before = medium.counters();
    let mut expect = |what: &str, bytes: u64, lines: u64, flushed: u64, fences: u64| {
        let now = medium.counters();
        let expected = Counters {
            bytes_stored: bytes,
            lines_stored: lines,
            lines_flushed: flushed,
            fences,
            // The cost depends on the emulated technology, so it is not compared.
            modelled_ns: now.modelled_ns - before.modelled_ns,
        };
        assert_eq!(now.since(&before), expected, "counters of {what}");
        before = now;
    };
    let at = PoolOffset(60);
    let mut out = [0; 100];
    medium.read(at, &mut out);
    medium.load_word(PoolOffset(64));
    // A comparison reads only. Its loads must not count as stores.
    medium.changed_lines(BlockNo(0), 0, &out);
    expect("reads", 0, 0, 0, 0);
    medium.store_word(PoolOffset(64), 1);
    expect("a word", 8, 1, 0, 0);
    medium.store(at, &[5; 5]);
    expect("a store over an edge", 5, 2, 0, 0);
    medium.store(at, &[5; 5]);
    // Requests are counted, not changes: the figures stand for the traffic to the medium.
    expect("the same store again", 5, 2, 0, 0);
    medium.stream(at, &[6; 4 + 128 + 1]);
    expect("an unaligned stream", 133, 4, 0, 0);
    medium.stream(PoolOffset(BLOCK_U64), &[7; BLOCK]);
    expect("a streamed block", 4096, 64, 0, 0);
    // The first 4 bytes end a line, and the other 64 fill the next one.
    medium.flush(at, 4 + 64);
    expect("a flush of two lines", 0, 0, 2, 0);
    medium.flush(PoolOffset(0), 2 * BLOCK_U64);
    expect("a flush of two blocks", 0, 0, 128, 0);
    // Empty ranges are legal at any place and must touch no line.
    medium.store(at, &[]);
    medium.stream(at, &[]);
    medium.flush(at, 0);
    expect("nothing", 0, 0, 0, 0);
    for _ in 0..3 {
        medium.fence().expect("the medium has not failed");
    }
    expect("three fences", 0, 0, 0, 3);
}

/// A send puts the right bytes on the socket, in order, from every kind of piece.
///
/// # Panics
/// As [`check_medium`].
pub fn check_send<M: Medium>(medium: &M) {
    let mut random = Random(4);
    let stored = random.bytes(3 * BLOCK);
    medium.stream(PoolOffset(0), &stored);
    let pieces = [
        Piece::Bytes(b"head"),
        // Empty pieces between others must not end the message.
        Piece::Zeroes { len: 0 },
        // Unaligned and across a block, as replies with a partial first block need it.
        Piece::Stored { at: PoolOffset(61), len: 4097 },
        Piece::Stored { at: PoolOffset(8), len: 0 },
        Piece::Zeroes { len: 2 * BLOCK + 3 },
        Piece::Bytes(b""),
        Piece::Stored { at: PoolOffset(BLOCK_U64), len: 2 * BLOCK },
        Piece::Bytes(b"tail"),
    ];
    let expected =
        [b"head", &stored[61..61 + 4097], &[0; 2 * BLOCK + 3], &stored[BLOCK..3 * BLOCK], b"tail"]
            .concat();
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    let sent = medium.send(ours.as_fd(), &pieces).expect("an empty socket has room");
    assert_eq!(sent, expected.len(), "bytes sent on an empty socket");
    let mut received = vec![0; sent];
    theirs.read_exact(&mut received).expect("what was sent arrives");
    assert!(received == expected, "other bytes arrived than were sent");
    let nothing = [Piece::Bytes(&[]), Piece::Zeroes { len: 0 }];
    // A message without bytes must not reach the system: some sockets would send an empty packet.
    assert_eq!(medium.send(ours.as_fd(), &nothing).expect("sending nothing"), 0);
    // A child that another thread starts at this moment may hold the other end open for a while.
    theirs.shutdown(Shutdown::Both).expect("a connected socket");
    assert!(medium.send(ours.as_fd(), &pieces).is_err(), "the other end is closed");
}

/// A send takes as many bytes as fit in the socket, and returns 0 instead of blocking.
///
/// # Panics
/// As [`check_medium`].
pub fn check_full_socket<M: Medium>(medium: &M) {
    /// More calls than any socket buffer has room for.
    const CALLS_MAX: usize = 10_000;
    let len = 15 * BLOCK;
    let pattern = Random(5).bytes(len);
    medium.stream(PoolOffset(0), &pattern);
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    let whole = [Piece::Stored { at: PoolOffset(0), len }];
    let mut sizes = Vec::new();
    while let sent @ 1.. = medium.send(ours.as_fd(), &whole).expect("the socket is open") {
        // Each call restarts the message, so the receiver compares each part with the start of the
        // pattern.
        sizes.push(sent);
        assert!(sizes.len() < CALLS_MAX, "a socket that nobody reads took {CALLS_MAX} messages");
    }
    assert!(!sizes.is_empty(), "an empty socket took nothing");
    for sent in sizes {
        let mut received = vec![0; sent];
        theirs.read_exact(&mut received).expect("what was sent arrives");
        assert!(received == pattern[..sent], "other bytes arrived than were sent");
    }
}

fn assert_contents<M: Medium>(medium: &M, model: &[u8], when: &str) {
    let mut out = vec![0; model.len()];
    medium.read(PoolOffset(0), &mut out);
    // The first wrong byte says more than two printed blocks.
    if let Some(at) = (0..model.len()).find(|&at| out[at] != model[at]) {
        panic!("byte {at} (line {}) {when}: {} for {}", at / LINE, out[at], model[at]);
    }
}

/// A small generator of reproducible bytes: xorshift64* of S. Vigna, "An Experimental Exploration
/// of Marsaglia's xorshift Generators, Scrambled" (2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number in `0 .. limit`.
    #[expect(clippy::cast_possible_truncation, reason = "below a limit that is a usize")]
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[7]).collect()
    }
}
