//! Attributes of inodes at the ends of their ranges: times, flags.

use std::sync::Arc;

use everbyte_crash::SimMedium;
use everbyte_fs::{AccessTimes, FsError, SetAttr, SetTime, TIME_RANGE_NS};

use crate::damage::{POOL_BYTES, change_inode};
use crate::posix::{create, name, new};
use crate::random::options;
use crate::real::{Real, open_pool};

const EINVAL: i32 = 22;
const SECOND_NS: i128 = 1_000_000_000;

fn both(ns: i128) -> SetAttr {
    let time = Some(SetTime::At(ns));
    SetAttr { accessed: time, modified: time, ..SetAttr::default() }
}

#[test]
fn times_of_the_whole_range_survive_a_crash() {
    let medium = Arc::new(SimMedium::new(POOL_BYTES));
    let fs = Real::make(&medium, &options()).fs;
    let (first, last) = (*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end());
    assert_eq!((first / SECOND_NS, last / SECOND_NS), (-(1 << 31), (1 << 34) - (1 << 31) - 1));
    let times = [first, first + 1, -SECOND_NS / 2, -1, 0, 1, 1 << 63, last];
    for (number, ns) in times.into_iter().enumerate() {
        let file = create(&fs, fs.root(), &number.to_string());
        let attr = fs.set_attr(file, &both(ns)).unwrap();
        assert_eq!((attr.accessed_ns, attr.modified_ns), (ns, ns));
        assert!(attr.changed_ns > 1 << 60, "the time of the change is the present");
    }
    fs.sync().unwrap();
    let crashed = Real::open(&Arc::new(SimMedium::from_image(medium.image()))).unwrap().fs;
    for (number, ns) in times.into_iter().enumerate() {
        let attr = crashed.lookup(crashed.root(), name(&number.to_string())).unwrap();
        assert_eq!((attr.accessed_ns, attr.modified_ns), (ns, ns));
    }
    assert!(crashed.pool().check().unwrap().is_clean());
}

#[test]
fn time_outside_of_the_range_changes_nothing() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    let before = fs.attr(file).unwrap();
    let (first, last) = (*TIME_RANGE_NS.start(), *TIME_RANGE_NS.end());
    for ns in [first - 1, last + 1, i128::MIN, i128::MAX, 1 << 64, -(1 << 63)] {
        let [accessed, modified] = [both(ns).accessed, both(ns).modified];
        for set in [
            SetAttr { accessed, permissions: Some(0), ..SetAttr::default() },
            SetAttr { modified, uid: Some(77), ..SetAttr::default() },
        ] {
            let refused = fs.set_attr(file, &set).unwrap_err();
            assert!(matches!(refused, FsError::TimeOutOfRange), "{ns}: {refused}");
            assert_eq!(refused.errno(), EINVAL);
        }
    }
    assert_eq!(fs.attr(file).unwrap(), before);
}

#[test]
fn access_before_1970_is_older_than_a_change() {
    let fs = new();
    let file = create(&fs, fs.root(), "f");
    fs.set_attr(file, &both(-5)).unwrap();
    fs.note_access(file, AccessTimes::Relative).unwrap();
    let accessed = fs.attr(file).unwrap().accessed_ns;
    assert!(accessed > 1 << 60, "{accessed}");
    fs.set_attr(file, &both(-5)).unwrap();
    fs.note_access(file, AccessTimes::Strict).unwrap();
    assert!(fs.attr(file).unwrap().accessed_ns >= accessed);
}

/// The words of an inode's times, from 8 on, that no time has.
#[test]
fn time_word_outside_of_the_range_is_damage() {
    for (word, value) in [(8, 1 << 63 | 1 << 62 | 1 << 61), (11, 15_032_385_536 * 1_000_000_000)] {
        let medium = Arc::new(SimMedium::new(POOL_BYTES));
        let real = Real::make(&medium, &options());
        let file = create(&real.fs, real.fs.root(), "f");
        assert_eq!(real.fs.write(file, 0, &[1; 777]).unwrap(), 777);
        real.fs.pool().close().unwrap();
        drop(real);
        let pool = open_pool(&medium).unwrap();
        change_inode(&medium, pool.data_bounds(), 777, (word, value));
        let report = pool.check().unwrap();
        let is_named = |problem: &String| problem.contains("is out of range");
        assert!(report.problems.iter().any(is_named), "{report:?}");
        drop(pool);
        let fs = Real::open(&medium).unwrap().fs;
        assert!(matches!(fs.lookup(fs.root(), name("f")), Err(FsError::Corrupt(_))));
    }
}
