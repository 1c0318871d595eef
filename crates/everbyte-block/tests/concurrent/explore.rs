//! The tested orders of a workload, and the density of crashes in each.

use std::fmt;
use std::sync::OnceLock;

use everbyte_crash::Explorer;
use everbyte_crash::schedule::Schedule;
use everbyte_testkit::number;

use crate::mistake::Mistake;
use crate::workload::{Ordered, Workload};

/// Seeded orders tried of each workload, unless the environment says otherwise.
const SEEDED: u64 = 60;
/// The variable for their number. If it is set, every place of a delay is tried, too.
const SCHEDULES: &str = "EVERBYTE_SCHEDULES";

/// At most `max` of the numbers `0..count`, evenly spread.
fn spread(count: u64, max: u64) -> impl Iterator<Item = u64> {
    let taken = count.min(max);
    (0..taken).map(move |i| i * count / taken)
}

/// Counts of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tried {
    pub(crate) schedules: u64,
    /// Places of a first delay, by the first thread, left out because of their number.
    pub(crate) places_left_out: u64,
    pub(crate) switches: u64,
    pub(crate) images: u64,
    /// Crashes of recoveries.
    pub(crate) nested: u64,
    /// Moments with a crash in these orders, and possible moments.
    pub(crate) crashed: u64,
    pub(crate) points: u64,
}

/// An order with a crash that the engine does not survive.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) schedule: Schedule,
    /// Description of the failure.
    pub(crate) message: String,
    text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.schedule, self.text)
    }
}

/// Images of few crash points; the points differ from order to order.
fn explorer(workload: &Workload, turn: u64) -> Explorer {
    let points_max = if workload.delays == 1 { 6 } else { 3 };
    Explorer {
        seed: turn,
        points_max,
        from_first_event: true,
        runs_max: 1,
        samples: 1,
        nested_depth: u32::from(workload.is_nested),
        nested_images_max: 1,
        nested_points_max: 4,
        nested_runs_max: 1,
        recent_max: 40,
        ..Explorer::default()
    }
}

/// Runs and crashes one order. Returns the number of its points, or the error.
pub(crate) fn one(
    workload: &Workload,
    schedule: Schedule,
    mistake: Option<&Mistake>,
    tried: &mut Tried,
) -> Result<u64, Box<Failed>> {
    let ordered = Ordered { workload, schedule, mistake, ran: OnceLock::new() };
    tried.schedules += 1;
    let summary = explorer(workload, tried.schedules).explore(&ordered).map_err(|failure| {
        let text = format!("{}: {failure}", workload.name);
        Box::new(Failed { schedule: ordered.schedule.clone(), message: failure.message, text })
    })?;
    let ran = ordered.ran.get().unwrap();
    tried.images += summary.images;
    tried.nested += summary.nested_crashes;
    tried.crashed += summary.points - summary.points_left_out - summary.points_alike;
    tried.points += summary.points;
    tried.switches += ran.switches;
    Ok(ran.points)
}

/// Tries every order with at most the workload's number of delays, for any first thread, or as many of them
/// as fit in the time; then seeded ones.
///
/// # Errors
/// The first order with a crash that the engine does not survive.
pub(crate) fn all(
    workload: &Workload,
    mistake: Option<&Mistake>,
    tried: &mut Tried,
) -> Result<(), Box<Failed>> {
    let seeded = number(SCHEDULES, SEEDED);
    let is_night = std::env::var_os(SCHEDULES).is_some();
    let (delayed_within, delayed_max) = match is_night {
        true => (u64::MAX, u64::MAX),
        false => (workload.delayed_within, workload.delayed_max),
    };
    for first in 0..workload.tasks.len() {
        let delays = |at: Vec<u64>| Schedule::Delays { first, at };
        let points = one(workload, delays(Vec::new()), mistake, tried)?;
        let places = points.min(delayed_within);
        tried.places_left_out += points - places.min(delayed_max);
        for at in spread(places, delayed_max) {
            let points = one(workload, delays(vec![at]), mistake, tried)?;
            for second in (at + 1..points).filter(|_| workload.delays == 2) {
                one(workload, delays(vec![at, second]), mistake, tried)?;
            }
        }
    }
    for seed in 0..seeded {
        one(workload, Schedule::Seeded(seed), mistake, tried)?;
    }
    Ok(())
}
