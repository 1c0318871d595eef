//! Windows on every kind of memory of an ordinary machine.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use everbyte_media::{
    Mapped, MediaError, MediaKind, MediaOptions, Medium, PoolOffset, WINDOW_REGION_BYTES,
    allocate_file,
};
use everbyte_testkit::medium;

const LEN: u64 = 3 * WINDOW_REGION_BYTES;

fn file_in(directory: &str) -> File {
    let file = tempfile::tempfile_in(directory).unwrap();
    allocate_file(&file, LEN).unwrap();
    file
}

fn files() -> [File; 2] {
    [file_in(env!("CARGO_TARGET_TMPDIR")), file_in("/dev/shm")]
}

/// A window with the runs of `medium` in reverse order.
fn reversed(medium: &Mapped) -> everbyte_media::Window {
    let window = medium.window(3);
    for run in [2, 1, 0] {
        medium.extend_window(&window, PoolOffset(run * WINDOW_REGION_BYTES));
    }
    window
}

#[test]
fn windows_pass_suite_on_each_medium() {
    let anonymous = Mapped::anonymous(LEN, &MediaOptions::new()).unwrap();
    medium::check_window(&anonymous);
    assert!(!reversed(&anonymous).is_mapped());
    for file in files() {
        let private = Mapped::from_file(&file, &MediaOptions::new().private(true)).unwrap();
        medium::check_window(&private);
        assert!(!reversed(&private).is_mapped(), "its stores show in no other mapping");
        let shared = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        medium::check_window(&shared);
        assert!(reversed(&shared).is_mapped(), "{shared:?}");
    }
}

#[test]
fn unmapped_window_reads_by_table() {
    let medium = Mapped::from_file(&file_in("/dev/shm"), &MediaOptions::new()).unwrap();
    // 2^47 bytes are more than a process has.
    let window = medium.window(1 << 26);
    medium.extend_window(&window, PoolOffset(WINDOW_REGION_BYTES));
    assert!(!window.is_mapped());
    medium.store_word(PoolOffset(WINDOW_REGION_BYTES + 8), 5);
    assert_eq!(medium.load_word_in(&window, 8), 5);
}

#[test]
fn window_reports_missing_page_by_offset() {
    for file in files() {
        let medium = Mapped::from_file(&file, &MediaOptions::new()).unwrap();
        assert_ne!(medium.describe().kind, MediaKind::Private);
        let window = reversed(&medium);
        medium.store_word(PoolOffset(LEN - 8), 1);
        medium.store_word(PoolOffset(8), 2);
        file.set_len(2 * WINDOW_REGION_BYTES).unwrap();
        let at = WINDOW_REGION_BYTES - 8;
        assert_eq!(medium.load_word_in(&window, at), 0);
        let error = medium.check_range(window.offset(at).unwrap(), 8);
        assert!(
            matches!(error, Err(MediaError::Poisoned { at: PoolOffset(bad) }) if bad == LEN - 8)
        );
        let mut bytes = [1; 16];
        medium.read_in(&window, 64, &mut bytes);
        assert_eq!(bytes, [0; 16]);
        medium.check_range(window.offset(64).unwrap(), 16).unwrap_err();
        // The rest is still read, and sound.
        assert_eq!(medium.load_word_in(&window, 2 * WINDOW_REGION_BYTES + 8), 2);
        medium.check_range(PoolOffset(8), 8).unwrap();
        medium.check().unwrap();
    }
}

#[test]
fn window_readers_see_added_regions() {
    let medium = Mapped::from_file(&file_in("/dev/shm"), &MediaOptions::new()).unwrap();
    let runs = LEN / WINDOW_REGION_BYTES;
    for run in 0..runs {
        medium.store_word(PoolOffset(run * WINDOW_REGION_BYTES), run);
    }
    let last = 2000;
    let window = medium.window(last);
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while window.regions() < last {
                    let there = window.regions();
                    for region in [0, there / 2, there.saturating_sub(1)] {
                        if region < there {
                            let word = medium.load_word_in(&window, region * WINDOW_REGION_BYTES);
                            assert_eq!(word, region % runs);
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for region in 0..last {
            medium.extend_window(&window, PoolOffset(region % runs * WINDOW_REGION_BYTES));
        }
    });
    assert!(window.is_mapped());
}

#[test]
#[should_panic(expected = "in none of its regions")]
fn read_beyond_last_region_panics() {
    let medium = Mapped::anonymous(LEN, &MediaOptions::new()).unwrap();
    medium.load_word_in(&reversed(&medium), LEN);
}

#[test]
#[should_panic(expected = "leaves the medium")]
fn window_refuses_run_beyond_medium() {
    let medium = Mapped::anonymous(LEN, &MediaOptions::new()).unwrap();
    medium.extend_window(&medium.window(1), PoolOffset(LEN));
}

#[test]
fn dropped_window_frees_address_space() {
    let medium = Mapped::from_file(&file_in("/dev/shm"), &MediaOptions::new()).unwrap();
    // Together they would need more than a process has, and more mappings than it may have.
    for _ in 0..2000 {
        let window = medium.window(1 << 20);
        medium.extend_window(&window, PoolOffset(0));
        assert!(window.is_mapped());
    }
}
