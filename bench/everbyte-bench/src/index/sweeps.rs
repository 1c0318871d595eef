//! Sweeps over the sizes of nodes, inode tables and pages. The paper fixes them first.

use anyhow::Result;

use super::cases::{Case, make_library, measure};
use super::collected::Collected;
use super::file_set::FileSet;
use super::personality::Personality;
use super::place::{Pages, Setting};
use super::{REFERENCE, Settings, title};
use crate::rows::Row;

/// The workload whose nodes are swept, as in the paper.
const SWEPT: Personality = Personality::Fileserver;

/// The name of a workload with nodes of so many bytes.
pub(super) fn nodes_title(files: u32, threads: usize, node_bytes: u32) -> String {
    format!("{}, nodes of {node_bytes} B", title(SWEPT, files, threads))
}

/// The name of a workload with tables and pages of these sizes.
pub(super) fn sizes_title(workload: &str, large_tables: bool, pages: Pages) -> String {
    let size = |is_large| if is_large { "2 MiB" } else { "4 KiB" };
    format!(
        "{workload}, tables of {}, pages of {}",
        size(large_tables),
        size(pages == Pages::Large)
    )
}

/// All pairs of table and page.
pub(super) fn sizes_of_tables_and_pages() -> [(bool, Pages); 4] {
    [(false, Pages::Small), (true, Pages::Small), (false, Pages::Large), (true, Pages::Large)]
}

/// Every index that has nodes, with nodes of every size, at fileserver with the most files.
///
/// # Errors
/// It is to stop.
pub(super) fn nodes(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let (files, threads) = (settings.files_max(), settings.most_threads(SWEPT));
    let set = FileSet::new(SWEPT, files);
    let case = Case { personality: SWEPT, set: &set, threads: vec![threads] };
    let mut collected = Collected::default();
    let indexes: Vec<_> = settings.indexes.iter().filter(|index| index.is_tree()).collect();
    let steps = settings.rounds * indexes.len() * settings.node_bytes.len();
    settings.progress.inc_length(steps as u64);
    for _ in 0..settings.rounds {
        for &node_bytes in &settings.node_bytes {
            for &&index in &indexes {
                let setting = Setting { node_bytes: Some(node_bytes), ..Setting::of(index) };
                settings.progress.set_message(setting.name());
                let workload = nodes_title(files, threads, node_bytes);
                for (_, note, outcome) in
                    measure(settings, &case, || make_library(settings, &setting, &case))
                {
                    collected.push(index.name(), &workload, note, outcome);
                }
                settings.check_stop()?;
                settings.progress.inc(1);
            }
        }
    }
    Ok(collected.rows(REFERENCE.name()))
}

/// Every index with tables and pages of both sizes, at every workload with the fewest files.
///
/// # Errors
/// It is to stop.
pub(super) fn sizes(settings: &Settings<'_>) -> Result<Vec<Row>> {
    let files = settings.files_min();
    let mut collected = Collected::default();
    let pairs = sizes_of_tables_and_pages();
    let steps =
        settings.rounds * settings.personalities.len() * settings.indexes.len() * pairs.len();
    settings.progress.inc_length(steps as u64);
    for _ in 0..settings.rounds {
        for &personality in &settings.personalities {
            let threads = settings.most_threads(personality);
            let set = FileSet::new(personality, files);
            let case = Case { personality, set: &set, threads: vec![threads] };
            for &index in &settings.indexes {
                for (large_tables, pages) in pairs {
                    let setting = Setting { large_tables, pages, ..Setting::of(index) };
                    settings.progress.set_message(setting.name());
                    let workload = title(personality, files, threads);
                    let workload = sizes_title(&workload, large_tables, pages);
                    for (_, note, outcome) in
                        measure(settings, &case, || make_library(settings, &setting, &case))
                    {
                        collected.push(index.name(), &workload, note, outcome);
                    }
                    settings.check_stop()?;
                    settings.progress.inc(1);
                }
            }
        }
    }
    Ok(collected.rows(REFERENCE.name()))
}
