//! Writes with a ledger of the server's acknowledgements, and compares the volume with the ledger
//! afterwards.
//!
//! Invariants: every sector names its write and carries bytes unique to this write, so other bytes
//! never pass for it. At most one write per block is under way. A write counts as durable only
//! after its FUA acknowledgement, or after the acknowledgement of a flush sent after the write's
//! own acknowledgement.

use std::thread::JoinHandle;

use anyhow::Context;
use everbyte_device::Fua;
use everbyte_nbd::{Client, ClientError};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

const BLOCK: usize = 4096;
const SECTOR: usize = 512;
/// Number of writes under way together.
const QUEUE_DEPTH: usize = 16;
/// A flush follows this many batches.
const BATCHES_PER_FLUSH: u64 = 8;
/// One write in this many is sent with FUA.
const FUA_EVERY: u32 = 8;
/// Bytes per read of the verification.
const CHUNK: usize = 1 << 20;

/// Writes of one block, as its writer knows them: numbered from 1; 0 is the state before the first.
#[derive(Clone, Copy, Default)]
struct Block {
    /// Last sent write.
    sent: u64,
    /// Last acknowledged write.
    acknowledged: u64,
    /// Last write acknowledged as durable.
    durable: u64,
}

/// Counts of a writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(super) struct Counts {
    /// Acknowledged writes.
    pub(super) acknowledged: u64,
    /// Of these, writes with FUA.
    pub(super) with_fua: u64,
    /// Acknowledged flushes.
    pub(super) flushes: u64,
    /// Writes sent and never answered.
    pub(super) unanswered: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.with_fua += other.with_fua;
        self.flushes += other.flushes;
        self.unanswered += other.unanswered;
    }
}

/// A writer's knowledge about its part of the volume.
pub(super) struct Ledger {
    first_block: u64,
    blocks: Vec<Block>,
    pub(super) counts: Counts,
}

/// Counts of blocks found on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub(super) struct Verification {
    /// Inspected blocks.
    pub(super) blocks: u64,
    /// Blocks with a write acknowledged as durable.
    pub(super) durable: u64,
    /// Of these, blocks with older contents: lost writes.
    pub(super) lost: u64,
    /// Blocks with parts of two writes, or with bytes of no write.
    pub(super) torn: u64,
    /// Blocks whose last write was acknowledged, but not as durable, and was undone.
    pub(super) undone: u64,
}

impl Verification {
    pub(super) fn is_good(self) -> bool {
        self.lost == 0 && self.torn == 0
    }
}

/// Starts `writers` threads. Each thread has its own connection and its own part of the volume. It
/// writes until the connection breaks.
///
/// # Errors
/// No connection, no thread.
pub(super) fn start(
    uri: &str,
    writers: u64,
) -> anyhow::Result<Vec<JoinHandle<Result<Ledger, ClientError>>>> {
    let start_one = |number: u64| -> anyhow::Result<_> {
        let client = Client::connect_uri(uri)?;
        // Disjoint shares, so that no writer overwrites the blocks of another one.
        let share = client.size_bytes() / BLOCK as u64 / writers;
        let blocks = usize::try_from(share).context("the volume is too large")?;
        let first_block = number * share;
        let ledger = Ledger {
            first_block,
            blocks: vec![Block::default(); blocks],
            counts: Counts::default(),
        };
        let name = format!("writer-{number}");
        Ok(std::thread::Builder::new()
            .name(name)
            .spawn(move || ledger.write_until_broken(client, number))?)
    };
    (0..writers).map(start_one).collect()
}

/// Waits for writers to end. Returns their ledgers and the sum of their counts.
///
/// # Errors
/// A writer met another error than the end of its connection.
pub(super) fn join(
    writers: Vec<JoinHandle<Result<Ledger, ClientError>>>,
) -> anyhow::Result<(Vec<Ledger>, Counts)> {
    let mut ledgers = Vec::new();
    let mut counts = Counts::default();
    for writer in writers {
        let ledger = writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
        // A broken connection is the expected end, and `write_until_broken` has made it a success.
        let ledger = ledger.context("a writer was refused")?;
        counts.add(ledger.counts);
        ledgers.push(ledger);
    }
    Ok((ledgers, counts))
}

/// Compares the volume at `uri` with `ledgers`.
///
/// # Errors
/// The server's.
pub(super) fn verify(uri: &str, ledgers: &[Ledger]) -> anyhow::Result<Verification> {
    let mut client = Client::connect_uri(uri)?;
    let mut found = Verification::default();
    for ledger in ledgers {
        let mut block = ledger.first_block;
        // In chunks of 1 MiB, far below the largest request of the server.
        for blocks in ledger.blocks.chunks(CHUNK / BLOCK) {
            let bytes = client.read(block * BLOCK as u64, blocks.len() * BLOCK)?;
            for (state, bytes) in blocks.iter().zip(bytes.chunks_exact(BLOCK)) {
                judge(&mut found, *state, block, bytes);
                block += 1;
            }
        }
    }
    Ok(found)
}

fn judge(found: &mut Verification, state: Block, block: u64, bytes: &[u8]) {
    found.blocks += 1;
    found.durable += u64::from(state.durable > 0);
    // Bytes of a write never sent count as torn.
    match written_by(block, bytes).filter(|&write| write <= state.sent) {
        None => found.torn += 1,
        // Durability first: an older write than the durable one is a loss, never an allowed undo.
        Some(write) if write < state.durable => found.lost += 1,
        Some(write) if write < state.acknowledged => found.undone += 1,
        Some(_) => {}
    }
}

impl Ledger {
    fn write_until_broken(mut self, mut client: Client, seed: u64) -> Result<Self, ClientError> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut batches = 0;
        loop {
            let done = self.batch(&mut client, &mut random).and_then(|()| {
                batches += 1;
                // Flushes are rare, so that the kill finds writes of both kinds: covered and not
                // covered.
                if batches % BATCHES_PER_FLUSH == 0 { self.flush(&mut client) } else { Ok(()) }
            });
            match done {
                Ok(()) => {}
                Err(ClientError::Broken { .. }) => return Ok(self),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends writes to some blocks together and waits for all the answers.
    fn batch(&mut self, client: &mut Client, random: &mut SmallRng) -> Result<(), ClientError> {
        let mut sent = Vec::with_capacity(QUEUE_DEPTH);
        let mut chosen = Vec::with_capacity(QUEUE_DEPTH);
        while chosen.len() < QUEUE_DEPTH.min(self.blocks.len()) {
            let index = random.random_range(0..self.blocks.len());
            // At most one write for each block is under way: the order of two would be unknown.
            if !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        let mut bytes = vec![0; BLOCK];
        for index in chosen {
            let block = self.first_block + index as u64;
            let fua = if random.random_ratio(1, FUA_EVERY) { Fua::Yes } else { Fua::No };
            // Counted before the send: the connection may break during it.
            self.blocks[index].sent += 1;
            self.counts.unanswered += 1;
            fill(block, self.blocks[index].sent, &mut bytes);
            let cookie = client.submit_write(block * BLOCK as u64, &bytes, fua)?;
            sent.push((index, fua, cookie));
        }
        for (index, fua, cookie) in sent {
            client.wait(cookie)?;
            let block = &mut self.blocks[index];
            // A block has at most one write under way: the answer belongs to the last sent write.
            block.acknowledged = block.sent;
            self.counts.unanswered -= 1;
            self.counts.acknowledged += 1;
            if fua == Fua::Yes {
                block.durable = block.sent;
                self.counts.with_fua += 1;
            }
        }
        Ok(())
    }

    fn flush(&mut self, client: &mut Client) -> Result<(), ClientError> {
        client.flush()?;
        self.counts.flushes += 1;
        // Batches wait for all their answers: the flush covers every acknowledged write.
        for block in &mut self.blocks {
            block.durable = block.acknowledged;
        }
        Ok(())
    }
}

/// Fills a block with the contents of write number `write` of `block`.
fn fill(block: u64, write: u64, bytes: &mut [u8]) {
    for (sector, bytes) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let mut state = mix(block ^ mix(write ^ mix(sector as u64)));
        // Each sector has the number of its write, so a torn block shows.
        let (stamp, rest) = bytes.split_at_mut(8);
        stamp.copy_from_slice(&write.to_le_bytes());
        for word in rest.chunks_exact_mut(8) {
            state = mix(state);
            word.copy_from_slice(&state.to_le_bytes());
        }
    }
}

/// The write of a whole block: 0 if it was never written, `None` if its bytes do not come from one
/// write.
fn written_by(block: u64, bytes: &[u8]) -> Option<u64> {
    let write = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let mut expected = vec![0; bytes.len()];
    // A block that was never written is zero, and zero is no number of a write.
    if write > 0 {
        fill(block, write, &mut expected);
    }
    (expected == bytes).then_some(write)
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(state: Block, bytes: &[u8]) -> Verification {
        let mut found = Verification::default();
        judge(&mut found, state, 7, bytes);
        found
    }

    #[test]
    fn loss_tearing_and_undo_are_distinct() {
        let state = Block { sent: 5, acknowledged: 4, durable: 3 };
        let block = |write| {
            let mut bytes = vec![0; BLOCK];
            fill(7, write, &mut bytes);
            bytes
        };
        assert_eq!(judged(state, &vec![0; BLOCK]).lost, 1);
        assert_eq!(judged(state, &block(2)).lost, 1);
        assert_eq!(
            judged(state, &block(3)),
            Verification { blocks: 1, durable: 1, undone: 1, ..Verification::default() }
        );
        for write in [4, 5] {
            assert_eq!(
                judged(state, &block(write)),
                Verification { blocks: 1, durable: 1, ..Verification::default() }
            );
        }
        assert_eq!(judged(state, &block(6)).torn, 1, "nobody sent that");
        let mut half = block(4);
        half[SECTOR * 3..].copy_from_slice(&block(5)[SECTOR * 3..]);
        assert_eq!(judged(state, &half).torn, 1);
        let mut other = vec![0; BLOCK];
        fill(8, 4, &mut other);
        assert_eq!(judged(state, &other).torn, 1, "another block's bytes");
        let mut flipped = block(4);
        flipped[4000] ^= 1;
        assert_eq!(judged(state, &flipped).torn, 1);
        assert_eq!(
            judged(Block::default(), &vec![0; BLOCK]),
            Verification { blocks: 1, ..Verification::default() }
        );
    }
}
