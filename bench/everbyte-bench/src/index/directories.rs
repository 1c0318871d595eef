//! Filebench's workloads in directories by system calls, compared with our library in process: Figure 5 of the NTL
//! paper.
//!
//! Invariants: a workload does not begin if its data exceed the free space of a file system. With `O_DIRECT` every write has
//! whole blocks.

use anyhow::{Result, ensure};
use everbyte_fs::IndexKind;

use super::cases::{Case, Made, make_new_library, measure};
use super::collected::Collected;
use super::directory::{Access, Directory, Place};
use super::file_set::FileSet;
use super::personality::Personality;
use super::place::{Need, Setting};
use super::{Settings, title};
use crate::rows::Row;

/// Subject of our file system in process.
pub(super) const IN_PROCESS: &str = "everbyte, in process";
/// The workloads of the figure: file, mail and web server.
pub(super) const SERVERS: [Personality; 3] =
    [Personality::Fileserver, Personality::Varmail, Personality::Webserver];

/// The name of a workload with or without the page cache.
pub(super) fn access_title(workload: &str, access: Access) -> String {
    match access {
        Access::Buffered => workload.to_owned(),
        Access::Direct => format!("{workload}, direct"),
    }
}

/// Measures every workload in every directory.
///
/// # Errors
/// It is to stop.
pub(super) fn run(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let files = settings.directory_files;
    let mut collected = Collected::default();
    let subjects = settings.places.len() + 1;
    let steps = settings.rounds * settings.personalities.len() * subjects;
    settings.progress.inc_length(steps as u64);
    for _ in 0..settings.rounds {
        for &personality in &settings.personalities {
            let set = FileSet::new(personality, files);
            let threads = settings.threads_of(personality);
            let case = Case { personality, set: &set, threads };
            // A directory's file system finds its memory while it is measured, so ours does.
            let make = || make_new_library(&Setting::of(IndexKind::default()), &case);
            settings.progress.set_message(IN_PROCESS);
            for (threads, note, outcome) in measure(settings, &case, make) {
                collected.push(IN_PROCESS, &title(personality, files, threads), note, outcome);
            }
            settings.check_stop()?;
            settings.progress.inc(1);
            for place in &settings.places {
                settings.progress.set_message(format!("{} {}", personality.name(), place.name));
                one_place(settings, &case, place, &mut collected)?;
                settings.progress.inc(1);
            }
        }
    }
    // A directory's figures have no index to be compared by.
    Ok(collected.rows(""))
}

fn one_place(
    settings: &Settings<'_>,
    case: &Case<'_>,
    place: &Place,
    collected: &mut Collected,
) -> Result<()> {
    let is_server = SERVERS.contains(&case.personality);
    let accesses = [Access::Buffered, Access::Direct];
    for access in accesses.into_iter().take(if is_server { 2 } else { 1 }) {
        let files = settings.directory_files;
        for (threads, note, outcome) in measure(settings, case, || make(place, access, case)) {
            let workload = access_title(&title(case.personality, files, threads), access);
            collected.push(&place.name, &workload, note, outcome);
        }
        settings.check_stop()?;
    }
    Ok(())
}

fn make(place: &Place, access: Access, case: &Case<'_>) -> Result<Made<Directory>> {
    let need = Need::of(case.personality, case.set.entries.len() as u64);
    let free = place.free_bytes()?;
    ensure!(
        need.data <= free,
        "the files take {} MiB, and {} has {} MiB free",
        need.data >> 20,
        place.path.display(),
        free >> 20
    );
    let note = match access {
        Access::Buffered => None,
        Access::Direct => Some("sizes are rounded up to whole blocks, as O_DIRECT asks"),
    };
    Ok(Made { target: place.open(access)?, note })
}
