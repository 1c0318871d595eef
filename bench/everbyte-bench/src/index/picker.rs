//! States of the files of a set: present, busy, open; and their rotation.
//!
//! Invariants, as in Filebench's `fileset_pick`: present files are picked in rotation, and absent files in another
//! rotation; all threads share both. A pick skips busy files. An open file is not deleted. Filebench takes a lock; this
//! module compares and exchanges a word of each file.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const PRESENT: u32 = 1;
const BUSY: u32 = 2;
const OPEN: u32 = 4;

/// The state of each file of a set.
pub(crate) struct Picker {
    files: Box<[AtomicU32]>,
    next_present: AtomicUsize,
    next_absent: AtomicUsize,
}

impl Picker {
    /// A picker for `files` absent files.
    pub(crate) fn new(files: usize) -> Self {
        Self {
            files: (0..files).map(|_| AtomicU32::new(0)).collect(),
            next_present: AtomicUsize::new(0),
            next_absent: AtomicUsize::new(0),
        }
    }

    /// Marks a present file as busy and returns it, or `None` if all are busy.
    pub(crate) fn pick_present(&self) -> Option<usize> {
        self.pick(&self.next_present, PRESENT)
    }

    /// Marks an absent file as busy and returns it.
    pub(crate) fn pick_absent(&self) -> Option<usize> {
        self.pick(&self.next_absent, 0)
    }

    fn pick(&self, next: &AtomicUsize, wanted: u32) -> Option<usize> {
        let start = next.load(Ordering::Relaxed);
        let all = self.files.len();
        for file in (start..all).chain(0..start.min(all)) {
            let state = self.files[file].load(Ordering::Relaxed);
            if state & (PRESENT | BUSY) == wanted
                && self.files[file]
                    .compare_exchange(state, state | BUSY, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                next.store(file + 1, Ordering::Relaxed);
                return Some(file);
            }
        }
        None
    }

    /// Returns true if a thread has the picked file open.
    pub(crate) fn is_open(&self, file: usize) -> bool {
        self.files[file].load(Ordering::Acquire) >= OPEN
    }

    /// Returns true if the file is present.
    #[cfg(test)]
    pub(crate) fn is_present(&self, file: usize) -> bool {
        self.files[file].load(Ordering::Acquire) & PRESENT != 0
    }

    /// Marks the picked file as present, and counts an open.
    pub(crate) fn opened(&self, file: usize) {
        self.change(file, |state| ((state | PRESENT) & !BUSY) + OPEN);
    }

    /// Counts a close.
    pub(crate) fn closed(&self, file: usize) {
        self.change(file, |state| state - OPEN);
    }

    /// Marks the picked file as present or absent.
    pub(crate) fn release(&self, file: usize, is_present: bool) {
        let present = if is_present { PRESENT } else { 0 };
        self.change(file, |state| state & !(BUSY | PRESENT) | present);
    }

    fn change(&self, file: usize, change: impl Fn(u32) -> u32) {
        self.files[file].update(Ordering::AcqRel, Ordering::Relaxed, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picker_rotates_and_skips_busy_files() {
        let picker = Picker::new(4);
        assert_eq!(picker.pick_present(), None);
        for file in 0..3 {
            assert_eq!(picker.pick_absent(), Some(file));
            picker.opened(file);
            picker.closed(file);
        }
        assert_eq!([(); 4].map(|()| picker.pick_present()), [Some(0), Some(1), Some(2), None]);
        picker.release(1, true);
        assert_eq!(picker.pick_present(), Some(1));
        assert_eq!(picker.pick_absent(), Some(3));
        assert_eq!(picker.pick_absent(), None);
    }

    #[test]
    fn file_is_open_until_last_close() {
        let picker = Picker::new(1);
        let file = picker.pick_absent().unwrap();
        picker.opened(file);
        picker.pick_present().unwrap();
        picker.opened(file);
        picker.closed(file);
        assert!(picker.is_open(file));
        picker.closed(file);
        picker.pick_present().unwrap();
        assert!(!picker.is_open(file));
        picker.release(file, false);
        assert_eq!((picker.pick_present(), picker.pick_absent()), (None, Some(file)));
    }
}
