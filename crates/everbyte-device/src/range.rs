//! The one range check that devices share, so that they agree on the corners.

use crate::device::DeviceError;

/// Checks that `len` bytes at `offset` lie in a device of `size_bytes` bytes. Zero bytes at the
/// very end do; zero bytes beyond it do not.
///
/// # Errors
/// `OutOfRange`.
#[inline]
pub fn check_range(offset: u64, len: u64, size_bytes: u64) -> Result<(), DeviceError> {
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(DeviceError::OutOfRange { offset, len, size_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corners() {
        for (offset, len) in [(0, 0), (0, 10), (9, 1), (10, 0), (3, 4)] {
            assert!(check_range(offset, len, 10).is_ok(), "{offset}+{len}");
        }
        for (offset, len) in
            [(0, 11), (10, 1), (11, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)]
        {
            assert!(check_range(offset, len, 10).is_err(), "{offset}+{len}");
        }
    }
}
