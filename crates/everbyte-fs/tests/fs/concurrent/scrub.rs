//! A scrub of the index over inode tables during the addition of tables.

use std::sync::{Arc, Mutex};

use everbyte_crash::SimMedium;
use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_fs::{FsOptions, IndexKind};
use everbyte_pool::sync::observe;

use super::explore::Locks;
use crate::random::{options, with_index};
use crate::real::Real;

/// Tables added during the scrub: enough for another node.
const ADDED: u64 = 6;

/// The image of a file system with so many tables.
fn image(index: IndexKind, tables: u64) -> Vec<u8> {
    let medium = Arc::new(SimMedium::new(16 << 20));
    let many = with_index(index, FsOptions { inodes_max: Some(20_000), ..options() });
    let fs = Real::make(&medium, &many).fs;
    (1..tables).for_each(|_| fs.add_inode_table().unwrap());
    fs.sync().unwrap();
    medium.image()
}

#[test]
fn scrub_beside_new_tables_is_clean() {
    let kinds = [
        (IndexKind::PmfsRadix, 60),
        (IndexKind::BPlus, 60),
        (IndexKind::CsbPlus, 60),
        // The next table starts another region.
        (IndexKind::Window, 512),
    ];
    for (index, tables) in kinds {
        let image = image(index, tables);
        // The scrub starts with the index.
        for at in (0..300).step_by(3) {
            let fs = Real::open(&Arc::new(SimMedium::from_image(image.clone()))).unwrap().fs;
            let found = Mutex::new(None);
            let scrubbing: Task<'_> = Box::new(|| {
                observe(Some(&Locks));
                *found.lock().unwrap() = Some(fs.scrub(0).0.findings);
                observe(None);
            });
            let adding: Task<'_> = Box::new(|| {
                observe(Some(&Locks));
                (0..ADDED).for_each(|_| fs.add_inode_table().unwrap());
                observe(None);
            });
            let schedule = Schedule::Delays { first: 0, at: vec![at] };
            let ran = schedule::run(&schedule, vec![scrubbing, adding]);
            assert_eq!(ran.trouble, None, "{index:?}, a switch at {at}");
            let found = found.lock().unwrap().take().expect("it was scrubbed");
            assert_eq!(found, [], "{index:?}, a switch at {at}");
        }
    }
}
