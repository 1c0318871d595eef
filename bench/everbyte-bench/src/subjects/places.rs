//! Memory at the places of a volume's blocks, known in advance: the floor of its reads.
//!
//! Rewritten blocks are scattered over the pool. Copies of scattered blocks cost more than copies of adjacent blocks.

use anyhow::{Result, bail};
use everbyte_device::Fua;
use everbyte_media::{BLOCK, Medium, Piece, PoolOffset};

use super::volume::VolumeSubject;
use crate::subject::{Session, Subject};
use crate::workload::Workload;

/// Bytes of one look-up of places.
const LOOK_BYTES: usize = 64 << 10;

/// The places of a volume.
pub(crate) struct Places<'a> {
    volume: &'a VolumeSubject,
    size_bytes: u64,
}

impl<'a> Places<'a> {
    /// The places of `volume` with `size_bytes`.
    pub(crate) fn new(volume: &'a VolumeSubject, size_bytes: u64) -> Self {
        Self { volume, size_bytes }
    }
}

/// The places of all blocks until the next write.
struct Reader<'a> {
    volume: &'a VolumeSubject,
    blocks: Vec<PoolOffset>,
}

impl Subject for Places<'_> {
    fn name(&self) -> &'static str {
        "places"
    }

    fn refuses(&self, workload: &Workload) -> Option<String> {
        workload.writes().then(|| "reads from the places of a volume's blocks".to_owned())
    }

    fn prepare(&self, workload: &Workload) -> Result<()> {
        // A hole has no place: the volume must be filled, also if the filter left out its own reads.
        self.volume.prepare(workload)
    }

    fn open(&self, _workload: &Workload) -> Result<Box<dyn Session + '_>> {
        // Writes of other workloads move blocks, so each session looks them up again.
        let mut blocks = Vec::new();
        for look in 0..self.size_bytes / LOOK_BYTES as u64 {
            let view = self.volume.device().view(look * LOOK_BYTES as u64, LOOK_BYTES)?;
            for piece in view.pieces() {
                let Piece::Stored { at, len } = *piece else { bail!("the volume has holes") };
                blocks.extend((0..len).step_by(BLOCK).map(|from| at.plus(from as u64)));
            }
        }
        Ok(Box::new(Reader { volume: self.volume, blocks }))
    }
}

impl Session for Reader<'_> {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let medium = self.volume.device().pool().medium();
        let mut at = usize::try_from(offset)?;
        let mut rest = out;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at_mut(rest.len().min(BLOCK - at % BLOCK));
            medium.read(self.blocks[at / BLOCK].plus((at % BLOCK) as u64), piece);
            (at, rest) = (at + piece.len(), after);
        }
        Ok(())
    }

    fn write(&mut self, _offset: u64, _data: &[u8], _fua: Fua) -> Result<()> {
        bail!("only reads are measured")
    }
}
