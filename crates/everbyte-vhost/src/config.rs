//! Features and configuration space of a virtio block device (virtio 1.2, section 5.2).

use everbyte_device::Geometry;

/// Bytes of a sector, the unit of all addresses of the protocol.
pub(crate) const SECTOR: u64 = 512;
/// Most queues of a device.
pub(crate) const QUEUES_MAX: u16 = 64;
/// Most entries of a queue.
pub(crate) const QUEUE_SIZE_MAX: u16 = 1024;
/// Most data segments of a request, as announced. Together with header and status they fill a queue of 128 entries.
const SEGMENTS_MAX: u32 = 126;
/// Most sectors of a discard or write-zeroes: 2 GiB.
pub(crate) const ZERO_SECTORS_MAX: u32 = 1 << 22;

/// Feature bits.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Offset of the byte with the state of the write cache.
pub(crate) const WRITEBACK_AT: u32 = 32;
/// Bytes of the configuration space with a meaning.
const CONFIG_LEN: usize = 60;

/// Returns the features of a device.
pub(crate) fn features(geometry: &Geometry) -> u64 {
    let all = feature::SEG_MAX
        | feature::BLK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::CONFIG_WCE
        | feature::MQ
        | feature::INDIRECT_DESC
        | feature::EVENT_IDX
        | feature::PROTOCOL_FEATURES
        | feature::VERSION_1;
    match geometry.read_only {
        true => all | feature::RO,
        false => all | feature::DISCARD | feature::WRITE_ZEROES,
    }
}

/// Returns the configuration space of a device.
pub(crate) fn space(geometry: &Geometry, is_write_back: bool) -> [u8; CONFIG_LEN] {
    let mut space = [0; CONFIG_LEN];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    // The last part of a sector cannot be addressed.
    put(0, &(geometry.size_bytes / SECTOR).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    // Smaller than the preferred size: requests of 512 bytes are legal.
    put(20, &512_u32.to_le_bytes());
    // Log2 of the sectors of a physical block, and the preferred size in sectors.
    let physical = geometry.preferred_bytes.max(512) / 512;
    put(24, &[u8::try_from(physical.trailing_zeros()).unwrap_or(0)]);
    put(26, &u16::try_from(physical).unwrap_or(8).to_le_bytes());
    put(WRITEBACK_AT as usize, &[u8::from(is_write_back)]);
    put(34, &QUEUES_MAX.to_le_bytes());
    // One range in each request: its effect is then that of one request to the device.
    put(36, &ZERO_SECTORS_MAX.to_le_bytes());
    put(40, &1_u32.to_le_bytes());
    put(44, &physical.to_le_bytes());
    put(48, &ZERO_SECTORS_MAX.to_le_bytes());
    put(52, &1_u32.to_le_bytes());
    put(56, &[1]);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_space_has_fields_at_offsets() {
        let geometry = Geometry {
            size_bytes: (1 << 20) + 511,
            minimum_bytes: 1,
            preferred_bytes: 4096,
            read_only: false,
        };
        let space = space(&geometry, true);
        assert_eq!(space[..8], 2048_u64.to_le_bytes());
        assert_eq!(space[20..24], 512_u32.to_le_bytes());
        assert_eq!((space[24], space[26], space[32], space[56]), (3, 8, 1, 1));
        assert_eq!(features(&geometry) & feature::RO, 0);
        let read_only = features(&Geometry { read_only: true, ..geometry });
        assert_eq!(read_only & (feature::RO | feature::DISCARD), feature::RO);
    }
}
