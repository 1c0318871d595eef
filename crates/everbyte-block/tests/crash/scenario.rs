//! A workload as a scenario for the explorer: how its pool is made, recovered and checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use everbyte_block::BlockVolume;
use everbyte_crash::{Crash, Labels, Log, Omission, Scenario, SimMedium, Steps};
use everbyte_device::{BlockDevice, DeviceError, Fua, Hole};
use everbyte_pool::Pool;

use crate::content::{BLOCK, Content, pattern};
use crate::history::{Expect, History, Open, open};
use crate::probe::{self, Generations};
use crate::steps::{Case, MAPPED, PREPARED, Setup, ZERO, b};
use crate::{labels, lanes};

/// A pool after recovery.
pub(crate) struct Recovered {
    medium: Arc<SimMedium>,
    open: Open,
    contents: BTreeMap<String, Content>,
    probe: Option<Generations>,
}

impl Setup {
    fn prepare(&self, medium: &Arc<SimMedium>) {
        lanes::first();
        Pool::format(&**medium, 4, [7; 16]).unwrap();
        let Open { pool, .. } = open(medium).unwrap();
        let size_bytes = self.volume_blocks * BLOCK;
        let volume = BlockVolume::create(&pool, "a", size_bytes, &self.options).unwrap();
        probe::prepare(&volume);
        for block in MAPPED..MAPPED + self.mapped {
            let data = pattern(PREPARED, b(block), self.filled);
            volume.write(b(block), &data, Fua::No).unwrap();
        }
        volume.write_zeroes(b(ZERO), 2 * BLOCK, Hole::Forbidden, false, Fua::No).unwrap();
        volume.flush().unwrap();
        for &(name, blocks) in &self.others {
            BlockVolume::create(&pool, name, blocks * BLOCK, &self.options).unwrap();
        }
        if self.clean {
            pool.close().unwrap();
        }
    }
}

fn contents_of(open: &Open) -> Result<BTreeMap<String, Content>, String> {
    let of = |(name, volume): (&String, &Arc<BlockVolume<SimMedium>>)| {
        Ok((name.clone(), Content::of(volume)?))
    };
    open.volumes.iter().map(of).collect()
}

impl Scenario for Case {
    type Event = Arc<Expect>;
    type Recovered = Recovered;

    fn medium_len(&self) -> u64 {
        self.setup.pool_blocks * BLOCK
    }

    fn prepare(&self, medium: &Arc<SimMedium>) {
        self.setup.prepare(medium);
    }

    fn run(&self, medium: &Arc<SimMedium>, log: &Log<Arc<Expect>>) {
        History::run(self, medium, log);
    }

    fn recover(&self, medium: Arc<SimMedium>) -> Result<Recovered, String> {
        lanes::first();
        let open = open(&medium)?;
        let contents = contents_of(&open)?;
        let probe = self.probe.then(|| probe::run(&open.volumes["a"])).transpose()?;
        Ok(Recovered { medium, open, contents, probe })
    }

    fn check(&self, recovered: Recovered, crash: &Crash<'_, Arc<Expect>>) -> Result<(), String> {
        let Recovered { medium, open: opened, contents, probe } = recovered;
        if let Some(last) = crash.events.last() {
            check_contents(&last.event, &contents)?;
        }
        if let Some(found) = probe {
            found.check(crash.nested)?;
        }
        drop(opened);
        let again = open(&medium).map_err(|error| format!("opened again: {error}"))?;
        if contents_of(&again)? != contents {
            return Err("opened again, it is not the same".to_owned());
        }
        if let Some(before) = probe {
            before.check_raised(probe::read(&again.volumes["a"])?)?;
        }
        check_ownership(&again)?;
        if crash.nested == 0 {
            again.volumes.values().try_for_each(|volume| check_usable(volume))?;
            check_ownership(&again)?;
        }
        Ok(())
    }

    fn labels(&self) -> Labels {
        labels::of(&self.image())
    }

    fn omission(&self) -> Option<Omission> {
        self.omission.clone()
    }
}

impl Steps for Case {
    fn steps(&self) -> usize {
        self.steps.len()
    }

    fn only(&self, kept: &[usize]) -> Self {
        let steps = kept.iter().map(|&step| self.steps[step].clone()).collect();
        Self { steps, ..self.clone() }
    }
}

fn check_contents(expect: &Expect, found: &BTreeMap<String, Content>) -> Result<(), String> {
    let names: Vec<String> =
        found.keys().cloned().chain(expect.names().map(str::to_owned)).collect();
    for name in names {
        let candidates = expect.of(&name);
        let there = found.get(&name).cloned();
        if candidates.contains(&&there) {
            continue;
        }
        let why: Vec<String> = candidates
            .iter()
            .map(|candidate| match (&there, candidate) {
                (Some(there), Some(candidate)) => there.first_difference(candidate),
                (there, candidate) => {
                    format!("exists: {}, expected: {}", there.is_some(), candidate.is_some())
                }
            })
            .collect();
        return Err(format!("{}: volume {name} is none of {why:?}", expect.label));
    }
    Ok(())
}

/// Checks that block ownership is a partition. A torn and repaired superblock copy is not a problem.
fn check_ownership(open: &Open) -> Result<(), String> {
    let report = open.pool.check().map_err(|error| error.to_string())?;
    let mended = |problem: &&String| problem.starts_with("on opening: superblock");
    match report.problems.iter().find(|problem| !mended(problem)) {
        Some(problem) => Err(format!("check: {problem}")),
        None => Ok(()),
    }
}

/// Checks that a recovered volume can be written, flushed and read, as far as space allows.
fn check_usable(volume: &BlockVolume<SimMedium>) -> Result<(), String> {
    let size_bytes = volume.geometry().size_bytes;
    let at = b(MAPPED).min(size_bytes / 2);
    let len = usize::try_from((size_bytes - at).min(5000)).unwrap();
    let data = pattern(4242, at, len);
    for (part, fua) in [(&data[..len.min(100)], Fua::Yes), (&data[..], Fua::No)] {
        let mut found = vec![0; part.len()];
        let written = volume.write(at, part, fua);
        let flushed = volume.flush().and_then(|()| volume.read(at, &mut found));
        match written {
            Err(DeviceError::NoSpace { .. }) => return Ok(()),
            Err(error) => return Err(format!("after recovery: {error}")),
            Ok(()) => flushed.map_err(|error| format!("after recovery: {error}"))?,
        }
        if found != part {
            return Err("after recovery: a write does not read back".to_owned());
        }
    }
    Ok(())
}
