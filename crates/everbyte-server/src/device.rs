//! Volumes that are block volumes inside: how they are made and opened.

use everbyte_block::BlockOptions;
use everbyte_control::{NewVolume, Refused};
use everbyte_pool::format::VolumeKind;

use crate::context::Context;
use crate::handle::Device;
use crate::refusal::refused;
use crate::words::{CHECKSUM_WORDS, DELTA_WORDS, meaning};

/// Opens a volume that is a block volume inside.
///
/// # Errors
/// It cannot be read, or is open already.
pub(crate) fn open_device(
    context: &Context,
    name: &str,
    kind: VolumeKind,
) -> Result<Device, Refused> {
    let device = Device::open_as(&context.pool, name, kind).map_err(refused)?;
    device.set_read_only(context.unchanging);
    Ok(device)
}

/// The settings of a block volume in a request.
///
/// # Errors
/// A word that is none of them.
pub(crate) fn block_options(new: &NewVolume) -> Result<BlockOptions, Refused> {
    let unknown = |what: &str, word: &str| Refused::new(format!("{word:?} is no {what}"));
    Ok(BlockOptions {
        delta: meaning(&DELTA_WORDS, &new.delta)
            .ok_or_else(|| unknown("translation setting", &new.delta))?,
        checksum: meaning(&CHECKSUM_WORDS, &new.checksum)
            .ok_or_else(|| unknown("checksum", &new.checksum))?,
        threshold_percent: new.threshold_percent,
        log_bytes: new.log_bytes,
        lanes: new.lanes,
        checkpoint_lines: new.checkpoint_lines.unwrap_or(0),
    })
}
