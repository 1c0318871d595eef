//! The suite that measures operations on files: our file system in process beside the floor, file systems of
//! the kernel through system calls, and the block volume.
//!
//! Invariants: a round measures every operation once on every subject, one subject right after the other;
//! ratios are of the same operation in the same round. A subject that cannot be made leaves rows that say
//! why.

mod allocations;
pub(crate) mod command;
mod load;
mod names;
mod operation;
mod places;
mod rows;
mod subjects;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use indicatif::ProgressBar;

use crate::filter::Filter;
use crate::rows::Row;
use load::LoadSample;
use operation::Operation;
use places::{Place, Sample};
use rows::Cell;

/// Settings of a run.
pub(crate) struct Settings<'a> {
    folder: &'a Path,
    /// Bytes of the file that is read, a multiple of 64 KiB.
    file_bytes: u64,
    /// Names in the directory.
    names: usize,
    rounds: usize,
    slice: Duration,
    /// Only operations and subjects whose joined names contain all of these words.
    filter: Filter,
    quick: bool,
    stop: &'a AtomicBool,
    progress: &'a ProgressBar,
}

/// The outcome of one measurement.
enum Outcome {
    Operation(Sample),
    Load(LoadSample),
}

impl Settings<'_> {
    fn wants(&self, subject: &str, title: &str) -> bool {
        self.filter.wants(&format!("{subject} {title}"))
    }

    fn check_stop(&self) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "stopped");
        Ok(())
    }
}

/// Measures everything that is asked for; returns the rows and the medium's description.
///
/// # Errors
/// Our own subjects cannot be made, or it is to stop.
fn run(settings: &Settings<'_>) -> Result<(Vec<Row>, String)> {
    settings.progress.set_message("making files");
    let all = subjects::all(settings)?;
    let places = &all.places;
    let mut cells = Vec::new();
    for operation in Operation::ALL {
        let title = operation.title(settings.names);
        let does = |place: &dyn Place| place.does(operation);
        let is_wanted = |place: &dyn Place| does(place) && settings.wants(place.name(), &title);
        if !places.iter().any(|place| is_wanted(&**place)) {
            continue;
        }
        // Without the references there is nothing to hold the others against.
        let kept = places
            .iter()
            .enumerate()
            .filter(|(_, place)| does(&***place) && (place.is_reference() || is_wanted(&***place)));
        cells.extend(kept.map(|(place, _)| Cell::new(place, operation)));
    }
    settings.progress.inc_length((cells.len() * settings.rounds) as u64);
    for round in 0..settings.rounds {
        for cell in &mut cells {
            settings.check_stop()?;
            let place = &*places[cell.place];
            let title = cell.operation.title(settings.names);
            settings.progress.set_message(format!("{}: {title}", place.name()));
            if cell.failed.is_none() {
                match measure(place, cell.operation, settings, round) {
                    Ok(outcome) => cell.outcomes.push(outcome),
                    Err(error) => cell.failed = Some(format!("{error:#}")),
                }
            }
            settings.progress.inc(1);
        }
    }
    let names: Vec<&str> = places.iter().map(|place| place.name()).collect();
    let mut rows = rows::rows(&cells, &names, settings.names);
    rows.extend(all.absent.iter().cloned());
    Ok((rows, all.medium))
}

fn measure(
    place: &dyn Place,
    operation: Operation,
    settings: &Settings<'_>,
    round: usize,
) -> Result<Outcome> {
    if operation == Operation::FsyncBesideLoad {
        return place.load(settings.slice).map(Outcome::Load);
    }
    let sample = place.run(operation, settings.slice, round)?;
    ensure!(sample.operations > 0, "not one operation was done");
    Ok(Outcome::Operation(sample))
}
