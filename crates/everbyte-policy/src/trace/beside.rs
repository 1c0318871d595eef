//! Decodes a trace on another thread, in blocks, while the caller takes the requests.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use super::error::{Problem, TraceError};
use super::reader::TraceReader;
use super::{Request, RequestOp};
use crate::access::Op;

/// Requests of a block. It fits into a core's private cache together with the waiting blocks.
const BLOCK_REQUESTS: usize = 2048;
/// Blocks that may wait between the two threads.
const BLOCKS_MAX: usize = 6;

/// A read or a write of at least one byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    /// First byte.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Number of the file or device.
    pub(super) file: u32,
    /// Zeroes are written.
    pub(super) op: Op,
}

impl Touch {
    /// Returns the bytes that a request reads or replaces. Flushes and trims touch nothing.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let op = match request.op {
            RequestOp::Read => Op::Read,
            RequestOp::Write | RequestOp::Zero => Op::Write,
            RequestOp::Flush | RequestOp::Trim => return None,
        };
        let &Request { offset, len, file, .. } = request;
        (len > 0).then_some(Self { offset, len, file, op })
    }
}

/// Touches, with the numbers of their lines or records.
type Block = Vec<(u64, Touch)>;

/// Calls `take` for all touches of a trace, in order, until it refuses.
///
/// # Errors
/// The trace's errors, and those of `take` with the place of the refused touch.
pub(super) fn decode_beside(
    reader: &mut TraceReader,
    mut take: impl FnMut(&Touch) -> Result<(), Problem>,
) -> Result<(), TraceError> {
    // Bounded, so that a fast decoder does not fill the memory with blocks.
    let (sender, receiver) = sync_channel(BLOCKS_MAX);
    let (used, unused) = channel();
    let mut refused = None;
    let decoded = std::thread::scope(|scope| {
        let decoding = &mut *reader;
        let decoder = scope.spawn(move || decode(decoding, &sender, &unused));
        // Ends the receiver's loop below.
        while let Ok(block) = receiver.recv() {
            let block: Block = block;
            let wrong = block.iter().find_map(|(at, touch)| Some((*at, take(touch).err()?)));
            if wrong.is_some() {
                refused = wrong;
                break;
            }
            // A decoder that has ended needs none.
            let _ = used.send(block);
        }
        // Before the join: a decoder blocked in `send` ends only when its receiver is gone.
        drop(receiver);
        decoder.join()
    });
    if let Some((at, problem)) = refused {
        return Err(reader.wrong_at(at, problem));
    }
    match decoded {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Sends all touches of a trace in blocks, until the receiver stops. Touches before an error are
/// still sent. Used blocks return by `unused`.
fn decode(
    reader: &mut TraceReader,
    blocks: &SyncSender<Block>,
    unused: &Receiver<Block>,
) -> Result<(), TraceError> {
    loop {
        // Used blocks return, so no block is allocated after the first few.
        let mut block = unused.try_recv().unwrap_or_default();
        block.clear();
        let more = fill(reader, &mut block);
        // The block is sent before an error is returned: its requests precede the error.
        if blocks.send(block).is_err() || !matches!(more, Ok(true)) {
            return more.map(|_| ());
        }
    }
}

/// Decodes a block. Returns false if the trace is over.
fn fill(reader: &mut TraceReader, block: &mut Block) -> Result<bool, TraceError> {
    while block.len() < BLOCK_REQUESTS {
        let Some(request) = reader.advance()? else { return Ok(false) };
        if let Some(touch) = Touch::of(&request) {
            block.push((reader.at(), touch));
        }
    }
    Ok(true)
}
