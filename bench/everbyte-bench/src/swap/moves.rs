//! Parts of a region in direct mode that move to DRAM and out of it, and nothing else.
//!
//! Invariant: each move is one that was asked for, and what was moved is checked in the end.

use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::access::Owner;
use super::meter::{Costs, costs_of};
use super::place::Place;

/// Names of the two ways, in the order of their costs.
pub(super) const WAYS: [&str; 2] = ["to DRAM", "out of DRAM"];

/// Fills a region in direct mode, and then moves its first `moved` bytes to DRAM and out of it, `turns` times.
/// Returns the costs of both.
///
/// # Errors
/// Contents are wrong, something does not move, or the place is no region.
pub(super) fn run(place: &mut Place, moved: u64, turns: u64) -> Result<[(String, Costs); 2]> {
    drop(Owner::fill(place.words(), 1));
    let start = Instant::now();
    let mut sums = [Costs::default(); 2];
    move_out(place)?;
    for _ in 0..turns {
        let before = costs_of(place, start)?;
        move_in(place, moved)?;
        let between = costs_of(place, start)?;
        move_out(place)?;
        let after = costs_of(place, start)?;
        sums[0] = sums[0].plus(between.since(before));
        sums[1] = sums[1].plus(after.since(between));
    }
    Owner::of_filled(place.words()).check_all()?;
    let [to, out] = sums;
    Ok([(WAYS[0].to_owned(), to), (WAYS[1].to_owned(), out)])
}

fn move_in(place: &mut Place, bytes: u64) -> Result<()> {
    let Place::Region(region, ..) = place else { bail!("nothing but a region moves") };
    region.set_dram_limit(bytes)?;
    let found = region.prefetch(0..bytes)?;
    ensure!(found == bytes, "{found} of {bytes} bytes moved to DRAM");
    Ok(())
}

fn move_out(place: &mut Place) -> Result<()> {
    let Place::Region(region, ..) = place else { bail!("nothing but a region moves") };
    region.set_dram_limit(0)?;
    let left = region.statistics().units_resident;
    ensure!(left == 0, "{left} pages stay in DRAM");
    Ok(())
}
