//! The suite of file operations: our file system in process, the floor, file systems of the kernel by system calls, and
//! the block volume.
//!
//! Invariant: a missing subject leaves rows with the reason.

mod allocations;
pub(crate) mod command;
mod load;
mod names;
mod operation;
mod places;
mod rows;
mod subjects;

use anyhow::{Result, ensure};

use crate::driver::{Grid, Run};
use crate::rows::Row;
use operation::Operation;

type Settings = Run<command::FilesArgs>;

/// Measures everything that is asked for; returns the rows and the medium's description.
///
/// # Errors
/// Our own subjects cannot be made, or it is to stop.
fn run(settings: &Settings) -> Result<(Vec<Row>, String)> {
    settings.progress.set_message("making files");
    let all = subjects::all(settings)?;
    let places = &all.places;
    let names: Vec<&str> = places.iter().map(|place| place.name()).collect();
    let is_reference = |subject: usize| places[subject].is_reference();
    let titles = Operation::ALL.map(|operation| operation.title(settings.own.names()));
    let mut grid = Grid::new(names.iter().copied(), titles).select(
        settings,
        is_reference,
        |subject, workload| places[subject].does(Operation::ALL[workload]),
    );
    grid.measure(settings, |subject, workload, round| {
        let sample = places[subject].run(Operation::ALL[workload], settings.slice, round)?;
        ensure!(sample.operations > 0, "not one operation was done");
        Ok(sample)
    })?;
    let mut loads =
        Grid::new(names, [operation::BESIDE_LOAD])
            .select(settings, is_reference, |subject, _| places[subject].bears_load());
    loads.measure(settings, |subject, _, _| places[subject].load(settings.slice))?;
    let mut rows = rows::operations(&grid, &Operation::ALL);
    rows.extend(rows::loads(&loads));
    rows.extend(all.absent.iter().cloned());
    Ok((rows, all.medium))
}
