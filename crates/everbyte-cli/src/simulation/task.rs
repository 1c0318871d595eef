//! One simulation for any machine: its parameters, its name, and the execution of several.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, bail};
use everbyte_policy::sim::{self, SIMULATOR_VERSION, Spec};
use everbyte_policy::trace::{Accesses, ReadOptions};
use serde::{Deserialize, Serialize};

use super::args::Setting;
use super::results::Row;

/// Bytes of one read for the fingerprint of a trace.
const CHUNK_BYTES: usize = 1 << 20;
/// Version of a plan's lines.
const PLAN_VERSION: u32 = 2;

/// A line of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    version: u32,
    /// [`SIMULATOR_VERSION`]; the first version of lines has none.
    #[serde(default)]
    simulator: u32,
    /// A hash of the other fields.
    pub(crate) id: String,
    /// Path of the trace in the plan.
    pub(crate) trace: PathBuf,
    /// The trace's length and the CRC-32C of its bytes: its identity.
    trace_bytes: u64,
    trace_crc32c: u32,
    /// Format of the trace; `None` to detect it.
    format: Option<String>,
    assume_reads: bool,
    request_max: u64,
    /// Setting of the simulation.
    pub(crate) setting: Setting,
}

/// A task and its number in the plan, from 0 on.
pub(crate) type NumberedTask = (usize, Task);

/// The tasks of the plan at `path`.
///
/// # Errors
/// The file cannot be read, or a line is not a task; the message names the line.
pub(crate) fn read_plan(path: &Path) -> anyhow::Result<Vec<NumberedTask>> {
    let text = everbyte_path::read_to_string(path)
        .with_context(|| format!("{}: cannot be read", path.display()))?;
    let tasks = text.lines().enumerate().map(|(number, line)| {
        let context = || format!("{}, line {}", path.display(), number + 1);
        Ok((number, Task::parse(line).with_context(context)?))
    });
    tasks.collect()
}

/// Options for the resources of simulations. Results do not depend on them.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Resources {
    /// Simultaneous simulations, each with its tables [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Keep a trace of up to so many accesses to pages in memory, 12 bytes each; a longer one is read
    /// again for each simulation. 0 keeps none.
    #[arg(long, default_value_t = 16_000_000, value_name = "N")]
    keep: u64,
}

impl Resources {
    pub(crate) fn kept_max(self) -> u64 {
        self.keep
    }

    pub(crate) fn threads(self) -> usize {
        // A system that does not tell its cores still runs the plan.
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }
}

/// Fingerprint of a trace's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fingerprint {
    bytes: u64,
    crc32c: u32,
}

impl Fingerprint {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of(path: &Path) -> anyhow::Result<Self> {
        let context = || format!("{}: cannot be read", path.display());
        let (mut file, _) = everbyte_path::open_input(path).with_context(context)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut found = Self::default();
        loop {
            let read = file.read(&mut chunk).with_context(context)?;
            if read == 0 {
                return Ok(found);
            }
            found.add(&chunk[..read]);
        }
    }

    /// Adds the next bytes of the trace.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, bytes);
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, CRC-32C {:08x}", self.bytes, self.crc32c)
    }
}

impl Task {
    pub(crate) fn new(
        trace: &Path,
        fingerprint: Fingerprint,
        options: &ReadOptions,
        setting: Setting,
    ) -> anyhow::Result<Self> {
        let mut task = Self {
            version: PLAN_VERSION,
            simulator: SIMULATOR_VERSION,
            id: String::new(),
            trace: trace.to_owned(),
            trace_bytes: fingerprint.bytes,
            trace_crc32c: fingerprint.crc32c,
            format: options.format.map(|format| format.to_string()),
            assume_reads: options.assume_reads,
            request_max: options.request_bytes_max,
            setting,
        };
        // Last: the hash covers all other fields.
        task.id = task.hash()?;
        Ok(task)
    }

    /// A line of a plan, checked.
    ///
    /// # Errors
    /// The text is not a line, or was changed by hand.
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        let task: Self = serde_json::from_str(line).context("is no task")?;
        task.check()?;
        Ok(task)
    }

    /// Checks the versions, and compares the id with the hash of the rest.
    ///
    /// # Errors
    /// A version differs, or the task was changed.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        // Before the id: the fields of another version hash differently, and the message would
        // mislead.
        if self.version != PLAN_VERSION {
            bail!("the task's version is {}, not {PLAN_VERSION}: make a new plan", self.version);
        }
        if self.simulator != SIMULATOR_VERSION {
            bail!(
                "the task is one of version {} of the simulator, and this is version \
                 {SIMULATOR_VERSION}: make a new plan, and keep its results in another folder",
                self.simulator
            );
        }
        // A line edited by hand would store its result under the name of another simulation.
        if self.id != self.hash()? {
            bail!("the task does not belong to its id {}: make a new plan", self.id);
        }
        Ok(())
    }

    fn hash(&self) -> anyhow::Result<String> {
        // Without the id itself. The text is serde's: the order of fields is part of the plan's
        // version.
        let content = Self { id: String::new(), ..self.clone() };
        let text = serde_json::to_string(&content)?;
        Ok(format!("{:032x}", fnv1a(text.as_bytes())))
    }

    /// Returns true if both read the same trace in the same way.
    pub(crate) fn reads_as(&self, other: &Self) -> bool {
        let setting = other.setting.clone();
        // Equal but for the setting: such tasks share one read of the trace.
        Self { id: String::new(), setting, ..self.clone() }
            == Self { id: String::new(), ..other.clone() }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { bytes: self.trace_bytes, crc32c: self.trace_crc32c }
    }

    /// Returns the reading options of its trace.
    ///
    /// # Errors
    /// The format is not known.
    pub(crate) fn options(&self) -> anyhow::Result<ReadOptions> {
        let format = self.format.as_deref().map(str::parse).transpose();
        Ok(ReadOptions {
            format: format.map_err(anyhow::Error::msg)?,
            assume_reads: self.assume_reads,
            request_bytes_max: self.request_max,
        })
    }
}

/// Fowler, Noll, Vo: FNV-1a of 128 bits (RFC 9923). Names need no cryptography.
fn fnv1a(bytes: &[u8]) -> u128 {
    const PRIME: u128 = (1 << 88) + (1 << 8) + 0x3B;
    const BASIS: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The specification of a setting over a trace.
///
/// # Errors
/// The size or ratio is invalid.
pub(crate) fn spec(setting: &Setting, trace: &dyn Accesses) -> anyhow::Result<Spec> {
    let pages = setting.size.pages(trace.addresses().len() as u64);
    let mut spec = Spec::new(pages).with_context(|| format!("size {}", setting.size))?;
    spec.dram_parts = setting.ratio.dram;
    spec.scm_parts = setting.ratio.scm;
    spec.small_write_bytes = setting.small_write_bytes;
    spec.pseudo_code = setting.pseudo_code;
    spec.costs = setting.backing.costs();
    // Before a run: a plan from another machine may ask for an impossible cache.
    spec.check()?;
    Ok(spec)
}

/// Simulates all settings over a trace on `threads` threads. Each finished row goes to `done` with its number. The
/// first error ends it.
///
/// # Errors
/// The errors of a setting, or of `done`.
pub(crate) fn simulate(
    name: &str,
    trace: &dyn Accesses,
    settings: &[Setting],
    threads: usize,
    done: &(dyn Fn(usize, Row) -> anyhow::Result<()> + Sync),
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let one = |number: usize, setting: &Setting| {
        let spec = spec(setting, trace)?;
        let outcome = sim::replay(setting.policy, &spec, trace)?;
        done(number, Row { trace: name.to_owned(), setting: setting.clone(), outcome })
    };
    let work = || {
        loop {
            // Simulations differ in length, so threads take the next one instead of a fixed share.
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(setting) = settings.get(number) else { return };
            if let Err(error) = one(number, setting) {
                // The other threads finish their present simulation and stop. Its result stays
                // valid.
                next.store(settings.len(), Ordering::Relaxed);
                if let Ok(mut failed) = failed.lock() {
                    // The first failure is reported: later ones often follow from it.
                    failed.get_or_insert(error);
                }
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, settings.len().max(1)) {
            scope.spawn(work);
        }
        // The calling thread works too, so one thread fewer is started.
        work();
    });
    match failed.into_inner() {
        Ok(None) => Ok(()),
        Ok(Some(error)) => Err(error),
        Err(_) => bail!("a simulation failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_published_ones() {
        // From the reference vectors of FNV-1a 128.
        assert_eq!(fnv1a(b""), 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D);
        assert_eq!(fnv1a(b"a"), 0xD228_CB69_6F1A_8CAF_7891_2B70_4E4A_8964);
    }
}
