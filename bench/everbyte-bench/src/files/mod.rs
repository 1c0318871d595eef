//! The suite of file operations: our file system in process, the floor, file systems of the kernel by system calls, and
//! the block volume.
//!
//! Invariant: a missing subject leaves rows with the reason.

mod allocations;
mod batches;
pub(crate) mod command;
mod load;
mod operation;
mod rows;
mod subjects;

use anyhow::{Result, ensure};

use crate::driver::{Grid, Run};
use crate::rows::Row;
use operation::Operation;

type Settings = Run<command::FilesArgs>;

/// Measures the selected operations and returns the rows and the description of the medium.
///
/// # Errors
/// A subject of ours cannot be created, or the user interrupted the run.
fn run(settings: &Settings) -> Result<(Vec<Row>, String)> {
    settings.progress.set_message("creating files");
    let all = subjects::all(settings)?;
    let subjects = &all.subjects;
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name).collect();
    let is_reference = |subject: usize| subjects[subject].is_reference();
    let titles = Operation::ALL.map(|operation| operation.title(settings.own.names()));
    let mut grid = Grid::new(names.iter().copied(), titles).select(
        settings,
        is_reference,
        |subject, workload| subjects[subject].does(Operation::ALL[workload]),
    );
    grid.measure(settings, |subject, workload, round| {
        let sample = subjects[subject].run(Operation::ALL[workload], settings, round)?;
        ensure!(sample.operations > 0, "no operation was done");
        Ok(sample)
    })?;
    let mut loads =
        Grid::new(names, [operation::BESIDE_LOAD])
            .select(settings, is_reference, |subject, _| subjects[subject].bears_load());
    loads.measure(settings, |subject, _, _| subjects[subject].load(settings.slice))?;
    let mut rows = rows::operations(&grid, &Operation::ALL);
    rows.extend(rows::loads(&loads));
    rows.extend(all.absent.iter().cloned());
    Ok((rows, all.medium))
}
