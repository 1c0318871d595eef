//! Results of single tasks, one file each.
//!
//! Invariants: a file `ID.json` is complete, because the rename follows the last write. Its name is the id of its
//! task, a hash of the result's parameters.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use everbyte_path::{Dir, look};
use serde::{Deserialize, Serialize};
use tempfile::Builder;

use super::results::Row;
use super::task::Task;

/// Version of the files.
const VERSION: u32 = 1;

/// A task and its result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskResult {
    version: u32,
    /// The task's place in its plan; other plans can have it at another place.
    number: usize,
    pub(crate) task: Task,
    pub(crate) row: Row,
}

impl TaskResult {
    pub(crate) fn new(number: usize, task: Task, row: Row) -> Self {
        Self { version: VERSION, number, task, row }
    }

    fn path(folder: &Path, task: &Task) -> PathBuf {
        folder.join(format!("{}.json", task.id))
    }

    /// Returns true if the task's result is in the folder.
    pub(crate) fn exists(folder: &Path, task: &Task) -> bool {
        look(&Self::path(folder, task)).is_ok()
    }

    /// Saves the result in the folder, atomically. Other processes with the same task save the same bytes.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub(crate) fn save(&self, folder: &Path) -> anyhow::Result<()> {
        let path = Self::path(folder, &self.task);
        let write = || -> anyhow::Result<()> {
            // A user with read access to this user's other files may read results.
            let mut unfinished = Builder::new()
                .prefix(&format!(".{}.", self.task.id))
                .suffix(".tmp")
                .permissions(Permissions::from_mode(0o666))
                .tempfile_in(folder)?;
            unfinished.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            // Before the rename: after a crash a file under the final name must be complete,
            // because `run` skips it.
            unfinished.as_file().sync_all()?;
            // Atomic. A concurrent run of the same task replaces it by equal content.
            unfinished.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write to {}", path.display()))
    }

    /// Reads the result of a task, `None` if it is not in the folder.
    ///
    /// # Errors
    /// The file cannot be read, or is not a result.
    pub(crate) fn of(folder: &Path, task: &Task) -> anyhow::Result<Option<Self>> {
        let path = Self::path(folder, task);
        match Self::read(&path) {
            Ok(result) => Ok(Some(result)),
            // Missing is a normal state. An unreadable result must not be taken for a missing one.
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error.context(path.display().to_string())),
        }
    }

    /// Reads all results in the folder, in the order of their plans.
    ///
    /// # Errors
    /// A file cannot be read, or is not a result.
    pub(crate) fn all(folder: &Path) -> anyhow::Result<Vec<Self>> {
        let context = || format!("{}: cannot be read", folder.display());
        let mut all = Vec::new();
        let names = Dir::open(folder).and_then(|folder| folder.names());
        for name in names.with_context(context)? {
            let path = folder.join(name);
            // Temporary files of runs in progress have another ending.
            if has_ending(&path) {
                all.push(Self::read(&path).with_context(|| path.display().to_string())?);
            }
        }
        // The order of the plan. Equal numbers come from several plans in one folder.
        all.sort_by(|a, b| (a.number, &a.task.id).cmp(&(b.number, &b.task.id)));
        Ok(all)
    }

    /// Returns true if [`TaskResult::all`] reads a file at `path` in the folder, existing or not.
    pub(crate) fn is_place(folder: &Path, path: &Path) -> bool {
        let is_in_folder = |path: PathBuf| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).canonicalize();
            has_ending(&path)
                && parent.is_ok_and(|parent| folder.canonicalize().is_ok_and(|own| own == parent))
        };
        // By its name, and by the name of its target.
        is_in_folder(path.to_owned()) || path.canonicalize().is_ok_and(is_in_folder)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let result: Self =
            serde_json::from_slice(&everbyte_path::read(path)?).context("is no result")?;
        if result.version != VERSION {
            bail!("the result's version is {}, not {VERSION}", result.version);
        }
        result.task.check()?;
        if path.file_stem().is_none_or(|stem| stem != result.task.id.as_str()) {
            bail!("it is the result of task {}", result.task.id);
        }
        Ok(result)
    }
}

/// Returns true if the name is a result's name.
fn has_ending(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "json")
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}
