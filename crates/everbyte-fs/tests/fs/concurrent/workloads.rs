//! The workloads: pairs of operations on a common directory, file or table, with a checkpointer.

use everbyte_fs::IndexKind;
use everbyte_fs::plant::Bug;
use everbyte_pool::plant::Bug as PoolBug;

use super::explore::{self, Mistake, Workload};
use super::oracle::Step;
use crate::operations::{Mode, Op, Path};

fn make(op: Op) -> Step {
    Step::Make(op)
}

fn create(path: &[&'static str]) -> Step {
    make(Op::Create(path.to_vec(), 0o640))
}

fn unlink(path: &[&'static str]) -> Step {
    make(Op::Unlink(path.to_vec()))
}

fn rename(from: &[&'static str], to: &[&'static str], mode: Mode) -> Step {
    make(Op::Rename(from.to_vec(), to.to_vec(), mode))
}

fn write(path: &[&'static str], offset: u64, len: usize, byte: u8) -> Step {
    make(Op::Write { path: path.to_vec(), offset, len, byte })
}

fn truncate(path: &[&'static str], size: u64) -> Step {
    make(Op::Truncate(path.to_vec(), size))
}

fn sync() -> Vec<Step> {
    vec![make(Op::Sync)]
}

fn passes(workload: &Workload) {
    let tried = explore::all(workload).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{}: {tried}", workload.name);
}

/// Blocks of a pool for two regions of a window.
const LARGE_POOL_BLOCKS: u64 = 4 * 512;

/// Two threads and a checkpointer.
fn pair(name: &'static str, first: Vec<Step>, second: Vec<Step>) -> Workload {
    Workload::new(name, vec![first, second, sync()])
}

#[test]
fn creat_and_unlink_are_linearizable() {
    passes(&pair(
        "create and create",
        vec![create(&["n"]), write(&["n"], 0, 300, 3)],
        vec![create(&["m"]), unlink(&["link"])],
    ));
    passes(&pair("the same name", vec![create(&["n"])], vec![create(&["n"]), unlink(&["n"])]));
    passes(&pair(
        "a directory and what is made in it",
        vec![make(Op::Rmdir(vec!["empty"]))],
        vec![create(&["empty", "n"]), unlink(&["empty", "n"])],
    ));
    let made = make(Op::Mkdir(vec!["n"], 0o755));
    passes(&pair(
        "mkdir and rmdir",
        vec![made, create(&["n", "n"])],
        vec![make(Op::Rmdir(vec!["n"]))],
    ));
}

#[test]
fn changes_of_one_file_are_linearizable() {
    passes(&pair(
        "write and write",
        vec![write(&["a"], 4000, 200, 3), write(&["a"], 0, 4096, 4)],
        vec![write(&["a"], 4090, 400, 5), make(Op::SyncFile(vec!["a"]))],
    ));
    let look = || Step::Look(vec!["a"]);
    passes(&Workload::new(
        "write and truncate",
        vec![
            vec![write(&["a"], 4000, 3000, 3)],
            vec![truncate(&["a"], 100), truncate(&["a"], 6000)],
            sync(),
            vec![look(), look()],
        ],
    ));
    let punch =
        Op::Allocate { path: vec!["large"], offset: 61_440, len: 4096, what: 'p', keep_size: true };
    passes(&pair(
        "write and punch",
        vec![write(&["large"], 61_500, 100, 3), write(&["large"], 65_000, 1000, 4)],
        vec![make(punch), truncate(&["large"], 66_000)],
    ));
    let attribute = |name, len| make(Op::Attribute(vec!["a"], name, len));
    passes(&pair(
        "attributes and permissions",
        vec![attribute("user.a", 9), make(Op::RemoveAttribute(vec!["a"], "user.b"))],
        vec![attribute("user.b", 90), make(Op::Chmod(vec!["a"], 0o4755))],
    ));
    let synced = make(Op::SyncFile(vec!["large"]));
    passes(&Workload::new(
        "fsync beside others",
        vec![
            vec![write(&["large"], 61_440, 9, 3), synced],
            vec![write(&["a"], 0, 9, 4), make(Op::SyncFile(vec!["a"])), create(&["n"])],
        ],
    ));
}

#[test]
fn rename_and_unlink_are_linearizable() {
    passes(&pair(
        "rename and unlink",
        vec![rename(&["a"], &["n"], Mode::Replace)],
        vec![unlink(&["a"]), unlink(&["second"])],
    ));
    passes(&pair(
        "replace and unlink",
        vec![rename(&["a"], &["large"], Mode::Replace)],
        vec![unlink(&["large"]), create(&["large"])],
    ));
    passes(&pair(
        "replace and write",
        vec![rename(&["large"], &["a"], Mode::Replace)],
        vec![write(&["a"], 0, 50, 3), write(&["second"], 70, 50, 4)],
    ));
    passes(&made_anew().at_every_place_at_night());
    // The path of the linked file is walked first: another thread can remove that name in between.
    let link = |hand, path: &[&'static str], new: &[&'static str]| {
        let linked = [Op::Open(path.to_vec(), hand), Op::LinkHand(hand, new.to_vec())];
        linked.into_iter().chain([Op::Close(hand)]).map(make)
    };
    passes(&pair(
        "link and unlink",
        link(0, &["a"], &["d", "third"]).chain([unlink(&["second"])]).collect(),
        [unlink(&["a"])].into_iter().chain(link(1, &["second"], &["a"])).collect(),
    ));
    passes(&pair(
        "a directory that is replaced and filled",
        vec![rename(&["d"], &["empty"], Mode::Replace)],
        vec![create(&["empty", "n"]), unlink(&["d", "inner"])],
    ));
}

/// Each operation locks the same inodes in the opposite order.
#[test]
fn cross_renames_end_and_are_linearizable() {
    let in_empty = || vec![Op::Create(vec!["empty", "x"], 0o600)];
    passes(
        &pair(
            "files across both ways",
            vec![rename(&["d", "inner"], &["empty", "y"], Mode::Replace)],
            vec![rename(&["empty", "x"], &["d", "z"], Mode::Replace)],
        )
        .after(in_empty()),
    );
    passes(&leaves_and_goes());
    passes(
        &pair(
            "files over each other",
            vec![rename(&["d", "inner"], &["empty", "x"], Mode::Replace)],
            vec![rename(&["empty", "x"], &["d", "inner"], Mode::Replace)],
        )
        .after(in_empty()),
    );
    passes(&pair(
        "directories into each other",
        vec![rename(&["d"], &["empty", "d"], Mode::Replace)],
        vec![rename(&["empty"], &["d", "empty"], Mode::Replace)],
    ));
    passes(
        &pair(
            "a directory moves below another",
            vec![rename(&["d"], &["empty", "d"], Mode::NoReplace)],
            vec![rename(&["empty", "x"], &["x"], Mode::Replace), create(&["empty", "x"])],
        )
        .after(in_empty()),
    );
}

/// A file leaves a directory during its removal: the locks are requested in opposite orders.
fn leaves_and_goes() -> Workload {
    pair(
        "a directory goes while its file leaves",
        vec![rename(&["empty", "x"], &["x"], Mode::Replace)],
        vec![make(Op::Rmdir(vec!["empty"])), create(&["n"])],
    )
    .after(vec![Op::Create(vec!["empty", "x"], 0o600)])
}

/// A name belongs to another file at its renaming.
fn made_anew() -> Workload {
    pair(
        "a name that is made anew while it is renamed",
        vec![rename(&["a"], &["n"], Mode::Replace)],
        vec![unlink(&["a"]), create(&["a"])],
    )
}

fn write_durably(path: &[&'static str], offset: u64, len: usize, byte: u8) -> Step {
    make(Op::WriteDurably { path: path.to_vec(), offset, len, byte })
}

/// Small writes to one block. Some of them are durable.
fn written_durably() -> Workload {
    pair(
        "durable writes and others",
        vec![write_durably(&["a"], 100, 50, 3), write_durably(&["a"], 4000, 90, 4)],
        vec![write(&["a"], 120, 100, 5), write_durably(&["a"], 110, 30, 6)],
    )
}

#[test]
fn durable_writes_survive_beside_other_writes() {
    passes(&written_durably());
    passes(&pair(
        "durable writes and cuts",
        vec![write_durably(&["large"], 62_000, 64, 3), write_durably(&["large"], 65_536, 4096, 4)],
        vec![truncate(&["large"], 80_000), write(&["large"], 79_000, 9, 5)],
    ));
    passes(&pair(
        "durable writes under a view",
        vec![Step::View(vec!["a"]), Step::LookAtView, Step::LookAtView],
        vec![write_durably(&["a"], 100, 64, 3), write_durably(&["a"], 0, 4096, 4)],
    ));
    passes(&pair(
        "durable writes and names",
        vec![write_durably(&["a"], 9, 9, 3), write_durably(&["second"], 12, 9, 4)],
        vec![create(&["n"]), make(Op::Link(vec!["a"], vec!["m"])), write(&["large"], 61_440, 9, 5)],
    ));
}

/// A view of a file beside a write that could be in place.
fn viewed_and_written() -> Workload {
    pair(
        "view and write",
        vec![Step::View(vec!["a"]), Step::LookAtView, Step::LookAtView],
        vec![write(&["a"], 100, 300, 3), write(&["a"], 0, 4096, 4)],
    )
}

/// A view of a block of the open epoch. Freed, the block is free immediately.
fn viewed_and_cut() -> Workload {
    let view =
        vec![write(&["d", "inner"], 0, 4096, 3), Step::View(vec!["d", "inner"]), Step::LookAtView];
    let cut = vec![truncate(&["d", "inner"], 0), write(&["large"], 73_728, 8192, 4)];
    pair("view and cut", view.into_iter().chain([Step::LookAtView]).collect(), cut).lanes(1)
}

#[test]
fn view_beside_writers_is_a_snapshot() {
    passes(&viewed_and_written());
    passes(&viewed_and_cut());
    let look = || vec![Step::View(vec!["large"]), Step::LookAtView, Step::LookAtView];
    passes(&pair(
        "view, unlink and reuse",
        look(),
        vec![unlink(&["large"]), make(Op::Sync), create(&["n"]), write(&["n"], 0, 50 * 4096, 3)],
    ));
    passes(&pair(
        "view and rename over it",
        look(),
        vec![rename(&["a"], &["large"], Mode::Replace), write(&["large"], 0, 9000, 3)],
    ));
    let punch =
        Op::Allocate { path: vec!["large"], offset: 60_000, len: 9000, what: 'z', keep_size: true };
    passes(&pair(
        "view, zero and fill",
        look(),
        vec![make(punch), write(&["large"], 61_500, 5000, 4)],
    ));
    passes(&Workload::new(
        "views of two",
        vec![
            vec![Step::View(vec!["a"]), Step::LookAtView],
            vec![Step::View(vec!["a"]), write(&["a"], 9, 9, 3), Step::LookAtView],
            vec![unlink(&["second"]), unlink(&["a"]), make(Op::Sync)],
        ],
    ));
}

/// One thread reads an open file while the other writes and truncates it.
fn opened_and_changed() -> Workload {
    let look = || Step::LookAtOpened(vec!["a"]);
    pair(
        "open file, write and cut",
        vec![look(), look(), look(), look()],
        vec![write(&["a"], 4000, 3000, 3), truncate(&["a"], 100)],
    )
}

#[test]
fn open_file_reads_are_linearizable() {
    passes(&opened_and_changed().at_every_place_at_night());
    let look = || Step::LookAtOpened(vec!["a"]);
    passes(&pair(
        "open file, cut and reuse",
        vec![look(), look(), look()],
        vec![truncate(&["a"], 0), make(Op::Sync), write(&["large"], 0, 9000, 3)],
    ));
}

/// Two renamings. Each frees an inode of the table from which the other allocates. The created files fill the
/// first table, and the last one is in the second table. One inode of the first table is free again.
fn whiteouts() -> Workload {
    let files = ["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7"].map(|name| vec![name]);
    let others = [vec!["d", "from"], vec!["empty", "from"], vec!["empty", "to"]];
    let made = others.into_iter().chain(files).chain([vec!["d", "to"]]);
    let before = made.map(|path| Op::Create(path, 0o600)).chain([Op::Unlink(vec!["f0"])]).collect();
    let replaces = |dir| vec![rename(&[dir, "from"], &[dir, "to"], Mode::Whiteout)];
    pair("whiteouts", replaces("d"), replaces("empty")).after(before)
}

#[test]
fn whiteout_renames_do_not_deadlock() {
    passes(&whiteouts().at_every_place_at_night());
}

#[test]
fn planted_bugs_of_locks_and_pins_are_caught() {
    let cases = [
        (leaves_and_goes(), Mistake::Fs(Bug::LocksInOrderOfCall), "deadlock"),
        (looked_for_and_removed(), Mistake::Fs(Bug::DentryNotedLate), "no order"),
        (written_durably(), Mistake::Pool(PoolBug::FuaFastPathIgnoresRecords), "no order"),
        (viewed_and_written(), Mistake::Pool(PoolBug::PinIgnoredByPlanner), "a view of"),
    ];
    for (workload, bug, words) in cases {
        let sound = explore::all(&workload);
        assert!(sound.is_ok(), "without {bug:?}: {sound:?}");
        let found = explore::all(&workload.with_bug(bug).at_every_place())
            .expect_err("a bug was not caught");
        assert!(found.contains(words), "{bug:?} is caught, but otherwise: {found}");
    }
}

fn look(path: &[&'static str]) -> Step {
    Step::Look(path.to_vec())
}

/// One thread looks up a name while the other removes it and then looks.
fn looked_for_and_removed() -> Workload {
    pair(
        "look and unlink",
        vec![look(&["a"]), look(&["a"])],
        vec![unlink(&["a"]), look(&["a"]), create(&["a"])],
    )
}

/// A known absent name becomes a file's.
fn absent_and_made() -> Workload {
    let made = vec![look(&["n"]), create(&["n"]), look(&["n"]), look(&["m"])];
    let linked = vec![look(&["m"]), make(Op::Link(vec!["a"], vec!["m"])), look(&["m"])];
    pair("look and create", made, linked)
}

/// Known names are given to other files and removed.
fn known_and_renamed() -> Workload {
    let renamed = vec![
        look(&["a"]),
        look(&["large"]),
        rename(&["a"], &["large"], Mode::Replace),
        look(&["a"]),
        look(&["large"]),
    ];
    pair("look and rename", renamed, vec![look(&["second"]), look(&["large"])])
}

/// A name in a directory with an inode that later belongs to a file.
fn absent_in_what_was_a_directory() -> Workload {
    let reused = vec![
        look(&["empty", "x"]),
        make(Op::Rmdir(vec!["empty"])),
        make(Op::Sync),
        make(Op::Sync),
        create(&["n"]),
        look(&["n", "x"]),
    ];
    pair("a directory's inode", reused, vec![look(&["a"])])
}

#[test]
fn lookups_are_linearizable() {
    passes(&looked_for_and_removed().at_every_place_at_night());
    passes(&absent_and_made().at_every_place_at_night());
    passes(&known_and_renamed().at_every_place_at_night());
    passes(&absent_in_what_was_a_directory().at_every_place_at_night());
}

#[test]
fn exchanges_end_and_are_linearizable() {
    passes(&pair(
        "exchange both ways",
        vec![rename(&["a"], &["large"], Mode::Exchange)],
        vec![rename(&["large"], &["a"], Mode::Exchange), unlink(&["a"])],
    ));
    passes(&pair(
        "exchange across directories",
        vec![rename(&["d", "inner"], &["empty"], Mode::Exchange)],
        vec![rename(&["a"], &["d", "inner"], Mode::Exchange)],
    ));
    passes(&pair(
        "link, unlink and exchange",
        vec![make(Op::Link(vec!["a"], vec!["d", "a"])), unlink(&["d", "a"])],
        vec![rename(&["a"], &["d", "inner"], Mode::Exchange)],
    ));
}

#[test]
fn unlink_of_open_file_is_linearizable() {
    passes(&pair(
        "open, unlink and close",
        vec![make(Op::Open(vec!["large"], 0)), make(Op::Close(0))],
        vec![unlink(&["large"]), create(&["large"])],
    ));
    passes(&pair(
        "two who have it open",
        vec![make(Op::Open(vec!["large"], 0)), unlink(&["large"]), make(Op::Close(0))],
        vec![make(Op::Open(vec!["large"], 1)), make(Op::Close(1))],
    ));
}

#[test]
fn readdir_of_growing_directory_lists_names_once() {
    let path: Path = vec!["d"];
    let always = (0..92).map(|number| format!("name {number}")).collect();
    let names = |number| make(Op::Names(path.clone(), number, 1));
    let list = Step::List { path: path.clone(), always };
    let tasks = vec![
        vec![names(92), names(93), names(94), names(95)],
        vec![names(96), unlink(&["d", "inner"]), names(97)],
        sync(),
        vec![list.clone(), list],
    ];
    passes(&Workload::new("listing", tasks).after(vec![Op::Names(path.clone(), 0, 92)]));
}

#[test]
fn two_threads_beside_a_new_table_get_inodes() {
    for index in IndexKind::ALL.into_iter().filter(|&index| index != IndexKind::Window) {
        passes(&new_table(index));
    }
    passes(&new_table_used().at_every_place_at_night());
}

/// Tables have 15 inodes. Seven are used before.
fn new_table(index: IndexKind) -> Workload {
    let tasks = [vec![create(&["n"]), create(&["o"])], vec![create(&["m"]), create(&["p"])]];
    let [first, second] = tasks;
    pair(index.name(), first, second).after(new_table_before()).index(index)
}

/// Leaves one inode free.
fn new_table_before() -> Vec<Op> {
    vec![Op::Files(vec!["d"], 15 * 5 - 9)]
}

/// Inodes of a new table that are used immediately.
fn new_table_used() -> Workload {
    let created = |dir| {
        let made = ["n", "o", "p"].map(|name| create(&[dir, name]));
        made.into_iter().chain([write(&[dir, "p"], 0, 9, 3)]).collect()
    };
    let (first, second) = (created("d"), created("empty"));
    pair("new table", first, second).after(new_table_before())
}

/// A window has tables for a whole region from its start.
#[test]
fn two_threads_beside_a_new_region_get_inodes() {
    let free_in_first_table = 8;
    let before = [Op::Files(vec!["d"], free_in_first_table - 1), Op::Tables(510)];
    let table = || make(Op::Tables(1));
    let workload = pair("window", vec![table(), create(&["n"])], vec![table(), create(&["m"])]);
    passes(
        &workload.after(before.to_vec()).index(IndexKind::Window).in_pool(LARGE_POOL_BLOCKS, 9000),
    );
}

#[test]
fn whiteouts_tmpfiles_copies_are_linearizable() {
    passes(&pair(
        "whiteout and create",
        vec![rename(&["a"], &["n"], Mode::Whiteout), unlink(&["a"])],
        vec![create(&["a"]), rename(&["second"], &["a"], Mode::NewWhiteout)],
    ));
    let unnamed = |hand| make(Op::Unnamed(vec!["d"], 0o644, hand));
    let named = |hand, path: &[&'static str]| make(Op::LinkHand(hand, path.to_vec()));
    passes(&pair(
        "two files without names and one name",
        vec![unnamed(0), named(0, &["d", "n"]), make(Op::Close(0))],
        vec![unnamed(0), named(0, &["d", "n"]), make(Op::Close(0))],
    ));
    passes(&pair(
        "a file gets its first name in a directory that goes",
        vec![unnamed(0), named(0, &["empty", "n"]), unlink(&["empty", "n"])],
        vec![make(Op::Rmdir(vec!["empty"]))],
    ));
    let copy = |[from, to]: [&[&'static str]; 2], offsets, len| {
        make(Op::Copy { paths: [from.to_vec(), to.to_vec()], offsets, len })
    };
    passes(&pair(
        "copies both ways",
        vec![copy([&["large"], &["a"]], [61_440, 100], 5000)],
        vec![copy([&["a"], &["large"]], [0, 65_000], 4000)],
    ));
    passes(&pair(
        "copy, write and cut",
        vec![copy([&["large"], &["d", "inner"]], [61_440, 10], 6000)],
        vec![write(&["large"], 62_000, 4096, 4), truncate(&["d", "inner"], 3000)],
    ));
}

#[test]
fn two_threads_on_one_lane_are_linearizable() {
    passes(
        &pair(
            "one lane",
            vec![write(&["a"], 0, 4096, 3), rename(&["a"], &["n"], Mode::Replace)],
            vec![write(&["large"], 61_440, 8192, 4), create(&["d", "n"])],
        )
        .lanes(1),
    );
}
