//! The probe: the steps after every recovery, so that crashes of recoveries crash it, too.
//!
//! The first blocks of volume `a` are the probe's. A recovery writes one block with FUA, changes some of
//! another and flushes, and then changes two more without a flush. Blocks hold patterns of a generation: a
//! torn one is detected at every read.

use everbyte_block::BlockVolume;
use everbyte_crash::SimMedium;
use everbyte_device::{BlockDevice, Fua};

use crate::content::{BLOCK, pattern};

/// Blocks of the probe.
pub(crate) const PROBE_BLOCKS: u64 = 4;

const FUA: u64 = 0;
const FLUSHED: u64 = 1;
const LOST_IN_PLACE: u64 = 2;
const LOST_REPLACED: u64 = 3;
/// The written part of `FLUSHED` and `LOST_IN_PLACE`.
const PART: usize = 200;
const PART_AT: u64 = 100;

/// Generations found before they were raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Generations {
    fua: u64,
    flushed: u64,
}

fn place(block: u64) -> (u64, usize) {
    match block {
        FUA | LOST_REPLACED => (block * BLOCK, 4096),
        _ => (block * BLOCK + PART_AT, PART),
    }
}

fn bytes(block: u64, generation: u64) -> Vec<u8> {
    let (at, len) = place(block);
    pattern(7000 + generation, at, len)
}

/// Fills the probe's blocks.
pub(crate) fn prepare(volume: &BlockVolume<SimMedium>) {
    for block in 0..PROBE_BLOCKS {
        volume.write(block * BLOCK, &[0xEE; 4096], Fua::No).unwrap();
        volume.write(place(block).0, &bytes(block, 0), Fua::No).unwrap();
    }
}

fn generation(volume: &BlockVolume<SimMedium>, block: u64, most: u64) -> Result<u64, String> {
    let mut whole = vec![0; 4096];
    volume.read(block * BLOCK, &mut whole).map_err(|e| e.to_string())?;
    let (at, len) = place(block);
    let start = usize::try_from(at % BLOCK).unwrap();
    if whole[..start].iter().chain(&whole[start + len..]).any(|&b| b != 0xEE) {
        return Err(format!("probe block {block}: bytes around the written ones changed"));
    }
    let found = &whole[start..start + len];
    (0..=most)
        .find(|&g| bytes(block, g) == found)
        .ok_or_else(|| format!("probe block {block} holds no generation up to {most} whole"))
}

/// Reads the probe, raises its generations, and leaves two writes unflushed.
pub(crate) fn run(volume: &BlockVolume<SimMedium>) -> Result<Generations, String> {
    let found = read(volume)?;
    let text = |error: everbyte_device::DeviceError| error.to_string();
    let write = |block, generation, fua| {
        volume.write(place(block).0, &bytes(block, generation), fua).map_err(text)
    };
    write(FUA, found.fua + 1, Fua::Yes)?;
    write(FLUSHED, found.flushed + 1, Fua::No)?;
    volume.flush().map_err(text)?;
    write(LOST_IN_PLACE, 9, Fua::No)?;
    write(LOST_REPLACED, 9, Fua::No)?;
    Ok(found)
}

/// The generations in the probe; an error if a block is torn or unflushed contents are present.
pub(crate) fn read(volume: &BlockVolume<SimMedium>) -> Result<Generations, String> {
    generation(volume, LOST_IN_PLACE, 0)?;
    generation(volume, LOST_REPLACED, 0)?;
    Ok(Generations { fua: generation(volume, FUA, 8)?, flushed: generation(volume, FLUSHED, 8)? })
}

impl Generations {
    /// Checks the contents found by a recovery after `nested` earlier crashed ones.
    pub(crate) fn check(self, nested: usize) -> Result<(), String> {
        if self.flushed <= self.fua && self.fua <= nested as u64 {
            return Ok(());
        }
        Err(format!("the probe holds {self:?} after {nested} crashed recoveries"))
    }

    /// Checks the contents after a whole `run` that found `self`.
    pub(crate) fn check_raised(self, now: Self) -> Result<(), String> {
        if (now.fua, now.flushed) == (self.fua + 1, self.flushed + 1) {
            return Ok(());
        }
        Err(format!("the probe was raised from {self:?} and holds {now:?} after a crash"))
    }
}
