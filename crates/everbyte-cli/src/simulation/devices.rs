//! Backing devices of simulations: the known ones, and the devices of cost files.
//!
//! Invariants: a file of costs is a regular file of bounded size, so no pipe blocks the program. Each
//! number lies in its range, so costs are finite and not negative.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use everbyte_policy::sim::{BackingCosts, Costs, MemoryCosts};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// Bytes of the largest file of costs.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Characters of the longest name of a device.
const NAME_CHARS_MAX: usize = 32;
/// Range of the cost of a page: a device without any would make times of zero.
const PAGE_NS: RangeInclusive<f64> = 1.0..=1e12;
/// Range of other costs of a device.
const STEP_NS: RangeInclusive<f64> = 0.0..=1e12;
/// Range of the costs of a memory.
const MEMORY_NS: RangeInclusive<f64> = 0.0..=1e9;
/// Range of writes in a batch of a device.
const BATCH: RangeInclusive<f64> = 1.0..=65_536.0;

/// A backing device with known costs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KnownDevice {
    /// A hard disk.
    Hdd,
    /// A SATA solid-state disk.
    Ssd,
    /// An NVMe solid-state disk.
    Nvme,
    /// An SD card.
    Sd,
}

impl KnownDevice {
    fn costs(self) -> Costs {
        Costs::with_backing(match self {
            Self::Hdd => BackingCosts::HDD,
            Self::Ssd => BackingCosts::SSD,
            Self::Nvme => BackingCosts::NVME,
            Self::Sd => BackingCosts::SD_CARD,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Ssd => "ssd",
            Self::Nvme => "nvme",
            Self::Sd => "sd",
        }
    }
}

/// A backing device of a simulation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Backing {
    Known(KnownDevice),
    Own(Box<OwnDevice>),
}

/// A device of a file of costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnDevice {
    name: String,
    costs: Costs,
}

impl Backing {
    pub(crate) fn costs(&self) -> Costs {
        match self {
            Self::Known(device) => device.costs(),
            Self::Own(device) => device.costs,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Known(device) => device.name(),
            Self::Own(device) => &device.name,
        }
    }

    /// Returns true for the device of the paper.
    pub(crate) fn is_of_paper(&self) -> bool {
        *self == Self::Known(KnownDevice::Sd)
    }
}

impl OwnDevice {
    /// Reads the device of the file at `path`.
    ///
    /// # Errors
    /// The file is not regular, too large, or not TOML; a key is unknown or missing, or its value is
    /// outside of its range. Each error names the file, and the key if there is one.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let context = || path.display().to_string();
        let text = read_small(path).with_context(context)?;
        let table: Table = text.parse().with_context(context)?;
        Self::of(&table, path).with_context(context)
    }

    fn of(table: &Table, path: &Path) -> anyhow::Result<Self> {
        check_keys(table, "", &["name", "backing", "dram", "scm"])?;
        let name = match table.get("name") {
            Some(Value::String(name)) => name.clone(),
            Some(_) => bail!("name is not a text"),
            None => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        check_name(&name)?;
        let backing = part(table, "backing")?.context("[backing] is missing")?;
        check_keys(backing, "backing.", &BACKING_KEYS)?;
        let ns = |key, range| number(backing, "backing.", key, range);
        let (turn_ns, batch) = (ns("turn_ns", &STEP_NS)?, ns("batch_writes", &BATCH)?);
        let required =
            |key, range| ns(key, range)?.with_context(|| missing("backing.", key, range));
        let usual = Costs::default();
        let costs = Costs {
            dram: memory(table, "dram", usual.dram)?,
            scm: memory(table, "scm", usual.scm)?,
            backing: BackingCosts {
                read_page_ns: required("read_page_ns", &PAGE_NS)?,
                read_jump_ns: required("read_jump_ns", &STEP_NS)?,
                write_page_ns: required("write_page_ns", &PAGE_NS)?,
                write_jump_ns: required("write_jump_ns", &STEP_NS)?,
                turn_ns: turn_ns.unwrap_or(0.0),
                batch_writes: whole("backing.batch_writes", batch.unwrap_or(1.0))?,
            },
        };
        Ok(Self { name, costs })
    }
}

const BACKING_KEYS: [&str; 6] =
    ["read_page_ns", "read_jump_ns", "write_page_ns", "write_jump_ns", "turn_ns", "batch_writes"];
const MEMORY_KEYS: [&str; 3] = ["operation_ns", "read_line_ns", "write_line_ns"];

/// The text of a regular file, at most [`FILE_BYTES_MAX`] bytes. A pipe does not block.
fn read_small(path: &Path) -> anyhow::Result<String> {
    let bytes = everbyte_path::read_file(path, FILE_BYTES_MAX).context("cannot be read")?;
    String::from_utf8(bytes).context("is not UTF-8")
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_plain) {
        bail!(
            "name {name:?} is not a name of a device: use 1 to {NAME_CHARS_MAX} letters, digits, '-', \
             '_' and '.'"
        );
    }
    // Results would not tell the two devices apart.
    if KnownDevice::from_str(name, true).is_ok() {
        bail!("name {name:?} is the name of a known device: use another name");
    }
    Ok(())
}

fn check_keys(table: &Table, place: &str, known: &[&str]) -> anyhow::Result<()> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => {
            bail!("{place}{} is not a known key: use {}", key.escape_debug(), known.join(", "))
        }
        None => Ok(()),
    }
}

fn part<'t>(table: &'t Table, key: &str) -> anyhow::Result<Option<&'t Table>> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::Table(part)) => Ok(Some(part)),
        // A value of another type would otherwise be ignored, and the default costs used.
        Some(_) => bail!("{key} is not a table: write [{key}] and its keys below it"),
    }
}

/// The costs of a memory: the costs of the file, and the usual costs for missing keys.
fn memory(table: &Table, place: &str, usual: MemoryCosts) -> anyhow::Result<MemoryCosts> {
    let Some(part) = part(table, place)? else { return Ok(usual) };
    let place = format!("{place}.");
    check_keys(part, &place, &MEMORY_KEYS)?;
    let ns = |key, usual| -> anyhow::Result<f64> {
        Ok(number(part, &place, key, &MEMORY_NS)?.unwrap_or(usual))
    };
    Ok(MemoryCosts {
        operation_ns: ns("operation_ns", usual.operation_ns)?,
        read_line_ns: ns("read_line_ns", usual.read_line_ns)?,
        write_line_ns: ns("write_line_ns", usual.write_line_ns)?,
    })
}

fn missing(place: &str, key: &str, range: &RangeInclusive<f64>) -> String {
    format!("{place}{key} is missing: write a number from {} to {}", range.start(), range.end())
}

fn number(
    table: &Table,
    place: &str,
    key: &str,
    range: &RangeInclusive<f64>,
) -> anyhow::Result<Option<f64>> {
    let found = match table.get(key) {
        None => return Ok(None),
        Some(Value::Float(found)) => *found,
        // Every integer has a text, and each text of an integer is a number.
        Some(Value::Integer(found)) => found.to_string().parse().unwrap_or(f64::NAN),
        Some(other) => bail!("{place}{key} is of type {}, not a number", other.type_str()),
    };
    if !range.contains(&found) {
        bail!("{place}{key} is {found}, outside of {} to {}", range.start(), range.end());
    }
    Ok(Some(found))
}

fn whole(key: &str, found: f64) -> anyhow::Result<u32> {
    let whole = found.to_string().parse();
    whole.ok().with_context(|| format!("{key} is {found}, not a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "\
        [backing]\nread_page_ns = 585\nread_jump_ns = 0.5\nwrite_page_ns = 1e3\nwrite_jump_ns = 0\n";

    fn read(text: &str) -> Result<OwnDevice, String> {
        let table: Table = text.parse().unwrap();
        OwnDevice::of(&table, Path::new("/x/my-disk.toml")).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn missing_costs_are_the_usual_ones() {
        let device = read(SOUND).unwrap();
        assert_eq!(device.name, "my-disk");
        assert_eq!(device.costs.dram, Costs::default().dram);
        assert_eq!((device.costs.backing.batch_writes, device.costs.backing.turn_ns), (1, 0.0));
        let more = format!("name = \"z\"\n{SOUND}batch_writes = 32\n[scm]\nread_line_ns = 7\n");
        let device = read(&more).unwrap();
        assert_eq!((device.name.as_str(), device.costs.backing.batch_writes), ("z", 32));
        assert_eq!((device.costs.scm.read_line_ns, device.costs.scm.operation_ns), (7.0, 711.0));
    }

    #[test]
    fn wrong_costs_name_key_and_range() {
        let with = |key: &str, value: &str| {
            let lines = SOUND.lines().filter(|line| !line.starts_with(key));
            let lines: Vec<_> =
                lines.map(str::to_owned).chain([format!("{key} = {value}")]).collect();
            read(&lines.join("\n")).unwrap_err()
        };
        for value in ["-1", "0", "nan", "inf", "1e13", "-inf", "9223372036854775807"] {
            let error = with("read_page_ns", value);
            assert!(error.contains("backing.read_page_ns") && error.contains("1 to 1"), "{error}");
        }
        for value in ["\"5\"", "true", "[1]", "{ a = 1 }", "2020-01-01"] {
            let error = with("write_jump_ns", value);
            assert!(
                error.contains("backing.write_jump_ns") && error.contains("not a number"),
                "{error}"
            );
        }
        for (key, value, words) in [
            ("batch_writes", "0", "1 to 65536"),
            ("batch_writes", "1.5", "not a whole number"),
            ("turn_ns", "-0.1", "0 to 1"),
            ("reed_page_ns", "1", "is not a known key: use read_page_ns"),
        ] {
            let error = with(key, value);
            assert!(error.contains(&format!("backing.{key}")) && error.contains(words), "{error}");
        }
        for (text, words) in [
            ("", "[backing] is missing"),
            ("backing = 5", "backing is not a table"),
            ("[backing]\nread_page_ns = 5", "backing.read_jump_ns is missing"),
            ("name = 5", "name is not a text"),
            ("name = \"a b\"", "is not a name of a device"),
            ("name = \"NVMe\"", "is the name of a known device"),
            ("device = 1", "device is not a known key"),
            ("[dram]\nspeed = 1\n[backing]", "dram.speed is not a known key"),
        ] {
            let error = read(text).or_else(|error| {
                let is_later = error.contains("is missing") && !words.contains("is missing");
                if is_later { read(&format!("{text}\n{SOUND}")) } else { Err(error) }
            });
            let error = error.unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}
