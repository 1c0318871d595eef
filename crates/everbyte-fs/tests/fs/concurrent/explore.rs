//! Workloads of several threads as scenarios of the explorer, and the schedules of their steps.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use everbyte_crash::schedule::{self, Schedule, Task};
use everbyte_crash::{Crash, Explorer, Log, Scenario, SimMedium};
use everbyte_fs::plant::Bug;
use everbyte_fs::{FsOptions, IndexKind};
use everbyte_media::BLOCK_U64;
use everbyte_plant::plant;
use everbyte_pool::sync::{Observer, observe};

use super::oracle::{self, Event, Step};
use crate::crash::{sound, starting_tree, use_after_crash};
use crate::model::Model;
use crate::operations::{Op, Subject, Tree};
use crate::random::with_index;
use crate::real::Real;

/// Default number of seeded schedules of a workload.
const SEEDED: u64 = 8;
/// Default number of switch points, evenly spread.
const SWITCHES_MAX: u64 = 12;
/// The error number if an inode disappears between lookup and use.
const ESTALE: i32 = 116;
/// Bound of repeated lookups of a name, above the removals in any workload.
const LOOKUPS_MAX: u32 = 8;

/// A planted bug of the file system or of a lower crate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mistake {
    Fs(Bug),
    Pool(everbyte_pool::plant::Bug),
}

/// Steps of several threads on a file system.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) tasks: Vec<Vec<Step>>,
    /// Durable operations before the threads.
    before: Vec<Op>,
    index: IndexKind,
    lanes: u32,
    pool_blocks: u64,
    inodes_max: u64,
    switches_max: u64,
    bug: Option<Mistake>,
    image: OnceLock<Vec<u8>>,
}

impl Workload {
    pub(crate) fn new(name: &'static str, tasks: Vec<Vec<Step>>) -> Self {
        Self {
            name,
            tasks,
            before: Vec::new(),
            index: IndexKind::Direct,
            lanes: 2,
            pool_blocks: 160,
            inodes_max: 400,
            switches_max: SWITCHES_MAX,
            bug: None,
            image: OnceLock::new(),
        }
    }

    /// The workload after these operations.
    pub(crate) fn after(self, before: Vec<Op>) -> Self {
        Self { before, ..self }
    }

    pub(crate) fn index(self, index: IndexKind) -> Self {
        Self { index, ..self }
    }

    /// The workload in a pool of so many blocks, with a limit of inodes.
    pub(crate) fn in_pool(self, pool_blocks: u64, inodes_max: u64) -> Self {
        Self { pool_blocks, inodes_max, ..self }
    }

    pub(crate) fn lanes(self, lanes: u32) -> Self {
        Self { lanes, ..self }
    }

    /// The workload with a switch at each point.
    pub(crate) fn at_every_place(self) -> Self {
        Self { switches_max: u64::MAX, ..self }
    }

    /// The workload with a switch at each point if `EVERBYTE_SCHEDULES` is set.
    pub(crate) fn at_every_place_at_night(self) -> Self {
        if std::env::var_os("EVERBYTE_SCHEDULES").is_some() { self.at_every_place() } else { self }
    }

    pub(crate) fn with_bug(self, bug: Mistake) -> Self {
        Self { bug: Some(bug), ..self }
    }

    fn starting_ops(&self) -> impl Iterator<Item = Op> {
        starting_tree().into_iter().chain(self.before.iter().cloned()).chain([Op::Sync])
    }

    /// The pool is made once, because its creation draws random numbers.
    fn make_image(&self) -> Vec<u8> {
        let medium = Arc::new(SimMedium::new(self.pool_blocks * BLOCK_U64));
        let options = FsOptions {
            inodes_max: Some(self.inodes_max),
            lanes: self.lanes,
            log_bytes: Some(u64::from(self.lanes) << 15),
            ..FsOptions::default()
        };
        let mut real = Real::make(&medium, &with_index(self.index, options));
        for op in self.starting_ops() {
            real.make(&op).unwrap();
        }
        medium.image()
    }

    fn model(&self) -> Model {
        let mut model = Model::new();
        for op in self.starting_ops() {
            model.make(&op).unwrap();
        }
        model
    }
}

/// Connects the engine's locks to the scheduler.
pub(crate) struct Locks;

impl Observer for Locks {
    fn before_lock(&self) {
        schedule::point();
    }
    fn wait(&self, lock: usize) -> bool {
        schedule::wait(lock)
    }
    fn released(&self, lock: usize) {
        schedule::released(lock);
        schedule::point();
    }
    fn thread_index(&self) -> usize {
        schedule::thread_index().unwrap_or(0)
    }
}

/// A workload in one schedule of its threads.
struct OrderedThreads<'a> {
    workload: &'a Workload,
    schedule: Schedule,
    /// Outcome of the last run by the scheduler.
    ran: OnceLock<schedule::Run>,
}

impl OrderedThreads<'_> {
    fn work(&self, task: usize, mut real: Real<SimMedium>, log: &Log<Event>) {
        let (fs_bug, pool_bug) = match self.workload.bug {
            Some(Mistake::Fs(bug)) => (Some(bug), None),
            Some(Mistake::Pool(bug)) => (None, Some(bug)),
            None => (None, None),
        };
        let _planted = (fs_bug.map(plant), pool_bug.map(plant));
        observe(Some(&Locks));
        let volume = Arc::clone(real.fs.volume());
        for (step, what) in self.workload.tasks[task].iter().enumerate() {
            log.note(Event::Begun { task, step, epoch: volume.current_epoch() });
            match take_step(&mut real, what) {
                Ok(answer) => {
                    log.note(Event::Ended { task, step, epoch: volume.current_epoch(), answer });
                }
                Err(trouble) => log.note(Event::Trouble(trouble)),
            }
        }
        // The scheduler also covers the end of views.
        drop(real);
        observe(None);
    }
}

/// Performs `step` as a kernel does: a lookup is repeated a bounded number of times if the file has
/// disappeared.
///
/// # Errors
/// A forbidden outcome.
fn take_step(real: &mut Real<SimMedium>, step: &Step) -> Result<Result<Vec<u8>, i32>, String> {
    let mut lookups = 0;
    loop {
        lookups += 1;
        let answer = match step {
            Step::Make(op) => real.make(op).map(|()| Vec::new()),
            Step::Look(path) => real.bytes(path).map_err(|error| error.errno()),
            Step::LookAtOpened(path) => real.bytes_of_opened(path).map_err(|error| error.errno()),
            Step::View(path) => {
                let taken = real.make(&Op::View(path.clone(), 0));
                taken.map(|()| real.viewed(0).expect("it was taken").to_vec())
            }
            Step::LookAtView => real.look_at_view(0).map(|()| Ok(Vec::new()))?,
            Step::List { path, always } => {
                let names = real.names(path).map_err(|error| error.to_string())?;
                check_names(&names, always)?;
                Ok(Vec::new())
            }
        };
        if answer != Err(ESTALE) || lookups == LOOKUPS_MAX {
            return Ok(answer);
        }
    }
}

fn check_names(names: &[String], always: &[String]) -> Result<(), String> {
    let set: BTreeSet<&String> = names.iter().collect();
    if set.len() != names.len() {
        return Err(format!("a name is listed twice: {names:?}"));
    }
    match always.iter().find(|name| !set.contains(name)) {
        Some(name) => Err(format!("{name} is not listed: {names:?}")),
        None => Ok(()),
    }
}

/// The file system after a crash.
struct RecoveredFs {
    real: Real<SimMedium>,
    completed: u64,
    tree: Tree,
}

impl Scenario for OrderedThreads<'_> {
    type Event = Event;
    type Recovered = RecoveredFs;

    fn medium_len(&self) -> u64 {
        self.workload.pool_blocks * BLOCK_U64
    }

    fn prepare(&self, _: &Arc<SimMedium>) {}

    fn image(&self) -> Vec<u8> {
        self.workload.image.get_or_init(|| self.workload.make_image()).clone()
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Event>) {
        let real = Real::open(medium).unwrap();
        log.note(Event::Opened);
        let tasks = (0..self.workload.tasks.len()).map(|task| -> Task<'_> {
            let real = Real::sharing(Arc::clone(&real.fs));
            Box::new(move || self.work(task, real, log))
        });
        let ran = schedule::run(&self.schedule, tasks.collect());
        if let Some(trouble) = &ran.trouble {
            log.note(Event::Trouble(trouble.clone()));
        } else {
            log.note(match real.try_tree().map_err(|error| error.to_string()) {
                Ok(tree) => Event::Joined { tree },
                Err(error) => Event::Trouble(error),
            });
            if let Err(error) = sound(&real) {
                log.note(Event::Trouble(format!("before the crash: {error}")));
            }
        }
        self.ran.get_or_init(|| ran);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<RecoveredFs, String> {
        let real = Real::open(&medium).map_err(|error| error.to_string())?;
        if let Some(reason) = real.fs.volume().read_only_reason() {
            return Err(format!("the volume is read-only: {reason}"));
        }
        let completed = real.fs.volume().completed_epoch();
        let tree = real.try_tree().map_err(|error| error.to_string())?;
        Ok(RecoveredFs { real, completed, tree })
    }

    fn check(&self, recovered: RecoveredFs, crash: &Crash<'_, Event>) -> Result<(), String> {
        let events: Vec<&Event> = crash.events.iter().map(|stamped| &stamped.event).collect();
        let RecoveredFs { real, completed, tree } = recovered;
        // The opening completes the two open epochs.
        let (tasks, before) = (&self.workload.tasks, self.workload.model());
        oracle::check(tasks, &before, &events, completed - 2, &tree)?;
        use_after_crash(real, &tree)
    }
}

/// Counts of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    schedules: u64,
    switches: u64,
    images: u64,
    /// Number of crash points explored, and number of all crash points.
    crashed: u64,
    points: u64,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, switches, images, crashed, points } = self;
        write!(
            f,
            "{schedules} orders, {switches} switches, crashed at {crashed} of {points} points, {images} \
             images"
        )
    }
}

/// Runs one schedule and its crashes. Returns the number of its points.
///
/// # Errors
/// The failure with its schedule.
fn one(workload: &Workload, schedule: Schedule, tried: &mut Attempt) -> Result<u64, String> {
    let ordered = OrderedThreads { workload, schedule, ran: OnceLock::new() };
    tried.schedules += 1;
    let explorer = Explorer {
        seed: tried.schedules,
        points_max: 5,
        from_first_event: true,
        runs_max: 1,
        samples: 1,
        nested_depth: 0,
        shrink_runs_max: 100,
        recent_max: 40,
        ..Explorer::default()
    };
    let summary = explorer
        .explore(&ordered)
        .map_err(|failure| format!("{}, {}: {failure}", workload.name, ordered.schedule))?;
    let ran = ordered.ran.get().unwrap();
    tried.images += summary.images;
    tried.crashed += summary.points - summary.points_left_out - summary.points_alike;
    tried.points += summary.points;
    tried.switches += ran.switches;
    Ok(ran.points)
}

/// Tries each thread first, without extra switches and with one, and then seeded schedules.
///
/// # Errors
/// The first schedule with a failing crash.
pub(crate) fn all(workload: &Workload) -> Result<Attempt, String> {
    let seeded = std::env::var("EVERBYTE_SCHEDULES");
    let seeded = seeded.map_or(SEEDED, |text| text.parse().unwrap());
    let mut tried = Attempt::default();
    for first in 0..workload.tasks.len() {
        let delays = |at: Vec<u64>| Schedule::Delays { first, at };
        let points = one(workload, delays(Vec::new()), &mut tried)?;
        let count = points.min(workload.switches_max);
        for place in 0..count {
            one(workload, delays(vec![place * points / count]), &mut tried)?;
        }
    }
    for seed in 0..seeded {
        one(workload, Schedule::Seeded(seed), &mut tried)?;
    }
    Ok(tried)
}
