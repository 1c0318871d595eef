//! Steps of a workload.

use everbyte_block::{BlockOptions, Checksum, Delta};
use everbyte_crash::Omission;

use crate::content::{BLOCK, Content, pattern};

/// Data to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Data {
    /// A pattern; seed `PREPARED` gives the initial contents.
    Seed(u64),
    /// The present contents, with one byte changed in every run of so many.
    Touch(usize),
}

/// The seed of prepared blocks.
pub(crate) const PREPARED: u64 = 1;

/// One write request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct W {
    pub(crate) at: u64,
    pub(crate) len: usize,
    pub(crate) data: Data,
    pub(crate) fua: bool,
}

impl W {
    /// The bytes, over the present contents of a volume.
    pub(crate) fn bytes(&self, now: &Content) -> Vec<u8> {
        match self.data {
            Data::Seed(seed) => pattern(seed, self.at, self.len),
            Data::Touch(every) => {
                let mut bytes = now.bytes(self.at, self.len);
                bytes.iter_mut().step_by(every).for_each(|byte| *byte ^= 0x5a);
                bytes
            }
        }
    }

    pub(crate) fn fua(mut self) -> Self {
        self.fua = true;
        self
    }
}

/// A write of a fresh pattern.
pub(crate) fn w(at: u64, len: usize) -> W {
    W { at, len, data: Data::Seed(100 + at + 7 * len as u64), fua: false }
}

/// A write of another pattern to the same place.
pub(crate) fn w2(at: u64, len: usize) -> W {
    W { at, len, data: Data::Seed(900 + at + 7 * len as u64), fua: false }
}

/// A rewrite of the prepared contents, without a change.
pub(crate) fn same(at: u64, len: usize) -> W {
    W { at, len, data: Data::Seed(PREPARED), fua: false }
}

/// A write with one changed byte in every run of `every`.
pub(crate) fn touch(at: u64, len: usize, every: usize) -> W {
    W { at, len, data: Data::Touch(every), fua: false }
}

/// End of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Commit,
    RollBack,
    /// It is dropped; its writes are like any others then.
    Drop,
}

/// Failing memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// The places of the checkpoint record, known before anything is stored there.
    Marks,
    /// The same, found out only by a store.
    UnknownMarks,
    /// Stored data is not written back from now on.
    Fences,
    /// The first line of a block's data, met by a reader.
    Data(u64),
    /// The line of the map with a block's entry, found by a reader.
    Map(u64),
}

/// A step of a workload. All but the last few act on volume `a` unless in an `On`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Write(W),
    Batch(Vec<W>),
    /// Atomic writes; durable if the first of them is.
    Atomic(Vec<W>),
    Discard {
        at: u64,
        len: u64,
        fua: bool,
    },
    /// Zeroes without a hole.
    Reserve {
        at: u64,
        len: u64,
        fua: bool,
    },
    Flush,
    /// Damage is found in the map: from now on nothing is written, and earlier writes are made durable.
    Damage,
    /// Seals the epoch, does the steps in the next one, and finishes the checkpoint.
    Split(Vec<Step>),
    Group(Vec<W>, End),
    Resize(u64),
    /// Does a step on another volume.
    On(&'static str, Box<Step>),
    Create {
        name: &'static str,
        blocks: u64,
    },
    Delete(&'static str),
    /// Shuts down cleanly and opens again.
    Reopen,
    /// Makes memory fail. After this only writes, flushes and a last `Close`.
    Fault(Fault),
    /// A shutdown that may fail, and ends the workload.
    Close,
    /// Forgets everything in DRAM and opens again: recovery without a loss of power.
    Kill,
}

/// The initial pool of a workload with the volume `a`.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) options: BlockOptions,
    pub(crate) pool_blocks: u64,
    pub(crate) volume_blocks: u64,
    /// Blocks mapped, filled and checkpointed, `MAPPED ..`.
    pub(crate) mapped: u64,
    /// Bytes of pattern in each of them; zeroes follow.
    pub(crate) filled: usize,
    /// Further volumes, made empty.
    pub(crate) others: Vec<(&'static str, u64)>,
    /// True if the pool was shut down cleanly before the workload.
    pub(crate) clean: bool,
}

/// First of the mapped blocks.
pub(crate) const MAPPED: u64 = 4;
/// First of the never written blocks.
pub(crate) const HOLE: u64 = 12;
/// First of two reserved blocks that read as zeroes.
pub(crate) const ZERO: u64 = 20;

/// The address of block `block`.
pub(crate) const fn b(block: u64) -> u64 {
    block * BLOCK
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            options: BlockOptions {
                delta: Delta::On,
                checksum: Checksum::None,
                threshold_percent: 50,
                log_bytes: Some(2 * 16384),
                lanes: 1,
                checkpoint_lines: 0,
            },
            pool_blocks: 128,
            volume_blocks: 28,
            mapped: 8,
            filled: 4096,
            others: Vec::new(),
            clean: true,
        }
    }
}

/// A workload with its initial state.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) setup: Setup,
    pub(crate) steps: Vec<Step>,
    /// True if recoveries go on to use the volume. See `probe`.
    pub(crate) probe: bool,
    /// True if requests may fail for lack of space.
    pub(crate) may_fill: bool,
    /// Operations left out of the engine.
    pub(crate) omission: Option<Omission>,
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, steps: Vec<Step>) -> Self {
        let setup = Setup::default();
        Self { name: name.into(), setup, steps, probe: false, may_fill: false, omission: None }
    }

    pub(crate) fn setup(mut self, change: impl FnOnce(&mut Setup)) -> Self {
        change(&mut self.setup);
        self
    }

    /// The same with two lanes, taken by requests in turn.
    pub(crate) fn on_two_lanes(mut self) -> Self {
        let options = &mut self.setup.options;
        self.setup.pool_blocks += options.log_bytes.unwrap_or(0) / BLOCK;
        options.log_bytes = options.log_bytes.map(|bytes| 2 * bytes);
        options.lanes = 2;
        self
    }

    /// The same with checksums, and with their space.
    pub(crate) fn checksummed(mut self) -> Self {
        self.name.push_str(", with checksums");
        self.setup.options.checksum = Checksum::Crc32c;
        self.setup.pool_blocks += self.setup.others.len() as u64 + 1;
        self
    }

    pub(crate) fn probing(mut self) -> Self {
        self.probe = true;
        self
    }
}
