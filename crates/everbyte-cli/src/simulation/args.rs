//! Options of a simulation: policies, sizes, ratio, thresholds, backing devices.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use everbyte_policy::PAGE_BYTES;
use everbyte_policy::sim::Kind;
use everbyte_policy::trace::{Columns, Format, ReadOptions};
use serde::{Deserialize, Serialize};

use super::devices::{Backing, KnownDevice, OwnDevice};
use crate::size::parse_size;

/// Hundredths of a percent in the whole.
const WHOLE: u64 = 10_000;

/// Pages of the smallest cache: one for each tier.
const PAGES_MIN: u64 = 2;

/// Options for reading traces.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Reading {
    /// The traces' format: auto, csv, vscsi-v1, vscsi-v2, msr, blkparse, fio, spc, disksim, oracle-general, mobibench,
    /// alibaba, tencent, fiu, systor, twitter, kvcache, lirs or lcs. With auto, the beginning of each trace decides,
    /// if it fits one format only; tencent and lirs must be named.
    #[arg(long, default_value = "auto", value_parser = parse_format, value_name = "FORMAT")]
    format: FormatChoice,
    /// The columns of a text in no known format, such as time_s,op,offset_sectors,len;
    /// 'everbyte sim --help' lists them.
    #[arg(long, value_name = "LIST", conflicts_with = "format", allow_hyphen_values = true)]
    columns: Option<Columns>,
    /// Take every request as a read, if the format has no operations (oracle-general, lirs, lcs of version 1, columns
    /// without op).
    #[arg(long)]
    assume_reads: bool,
    /// A request of more bytes is an error in the trace. Objects of more bytes (oracle-general, lcs, twitter, kvcache,
    /// columns with key) are skipped and counted.
    #[arg(long, default_value = "1G", value_parser = parse_size, value_name = "SIZE")]
    request_max: u64,
}

/// A format, or detection from the trace's beginning.
#[derive(Clone, Copy, Debug)]
struct FormatChoice(Option<Format>);

fn parse_format(text: &str) -> Result<FormatChoice, String> {
    match text {
        "auto" => Ok(FormatChoice(None)),
        name => name.parse().map(|format| FormatChoice(Some(format))),
    }
}

impl Reading {
    pub(crate) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.columns.map(Format::Columns).or(self.format.0),
            assume_reads: self.assume_reads,
            request_bytes_max: self.request_max,
        }
    }
}

/// Options for the selection of simulations.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimArgs {
    /// Policies, with commas between them, or all: everbyte, hybrid, hybrid-drop, hybrid-drop-unused,
    /// clock-migration, clock-dwf, m-clock, four-queue, pdram, spitfire; and of one tier lru, clock,
    /// sieve, s3-fifo, arc, w-tinylfu, belady.
    #[arg(long, default_value = "all", value_parser = parse_policies, value_name = "LIST")]
    policy: Policies,
    /// Sizes of the cache, DRAM and SCM together, with commas between them: percent of the
    /// trace's footprint (0.01% to 1000%, such as 12.5%) or absolute (8K and more, such as 512M).
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "10%,20%,30%,40%,50%,60%,70%,80%,90%,100%"
    )]
    size: Vec<CacheSize>,
    /// Parts of the cache, DRAM:SCM. Policies of one tier are given all of it as DRAM.
    #[arg(long, default_value = "1:3", value_name = "D:P")]
    ratio: Ratio,
    /// Writes of at most this many bytes are small, with commas between several.
    #[arg(long, value_delimiter = ',', default_value = "512", value_name = "BYTES",
          value_parser = clap::value_parser!(u16).range(0..=4096))]
    threshold: Vec<u16>,
    /// Backing devices with known costs, with commas between several. Without this option and
    /// --costs it is sd.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "DEVICE")]
    backing: Vec<KnownDevice>,
    /// Costs of another backing device, from a TOML file: a table [backing] with read_page_ns,
    /// read_jump_ns, write_page_ns and write_jump_ns. docs/simulation.md describes all keys. The
    /// option can be repeated.
    #[arg(long, value_name = "FILE")]
    costs: Vec<PathBuf>,
    /// Let hybrid follow the paper's pseudo-code, where it differs from the paper's text.
    #[arg(long)]
    pseudo_code: bool,
}

#[derive(Clone, Debug)]
struct Policies(Vec<Kind>);

fn parse_policies(text: &str) -> Result<Policies, String> {
    if text == "all" {
        return Ok(Policies(Kind::ALL.to_vec()));
    }
    let kinds = text.split(',').map(|name| name.trim().parse::<Kind>());
    let kinds = kinds.collect::<Result<_, _>>();
    kinds.map(Policies).map_err(|error| error.to_string())
}

/// One of a [`SimArgs`]'s simulations.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    pub(crate) policy: Kind,
    pub(crate) size: CacheSize,
    pub(crate) ratio: Ratio,
    pub(crate) small_write_bytes: u16,
    pub(crate) pseudo_code: bool,
    pub(crate) backing: Backing,
}

impl SimArgs {
    /// The single simulations, in an order by these options alone.
    ///
    /// # Errors
    /// A file of costs cannot be read or is wrong, or two files name the same device.
    pub(crate) fn settings(&self) -> anyhow::Result<Vec<Setting>> {
        let mut settings = Vec::new();
        for backing in &self.devices()? {
            for &small_write_bytes in &self.threshold {
                for &policy in &self.policy.0 {
                    settings.extend(self.size.iter().map(|&size| Setting {
                        policy,
                        size,
                        ratio: self.ratio,
                        small_write_bytes,
                        pseudo_code: self.pseudo_code,
                        backing: backing.clone(),
                    }));
                }
            }
        }
        Ok(settings)
    }

    fn devices(&self) -> anyhow::Result<Vec<Backing>> {
        let mut devices: Vec<Backing> =
            self.backing.iter().map(|known| Backing::Known(*known)).collect();
        for path in &self.costs {
            let own = Backing::Own(Box::new(OwnDevice::read(path)?));
            // Rows and groups are found by the device's name.
            if devices.iter().any(|other| other.name() == own.name()) {
                bail!("{}: another device has the name {}", path.display(), own.name());
            }
            devices.push(own);
        }
        // After the files: --costs alone must not add a default device.
        if devices.is_empty() {
            devices.push(Backing::Known(KnownDevice::Sd));
        }
        Ok(devices)
    }
}

/// A cache's size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) enum CacheSize {
    /// Hundredths of a percent of the footprint.
    Share(u32),
    /// Bytes.
    Bytes(u64),
}

impl CacheSize {
    /// The size in pages, rounded; at least two, one for each tier.
    pub(crate) fn pages(self, footprint: u64) -> u32 {
        let pages = match self {
            // Rounded, not cut, so that shares of 10% to 100% are evenly spaced.
            Self::Share(share) => (footprint * u64::from(share) + WHOLE / 2) / WHOLE,
            Self::Bytes(bytes) => bytes / u64::from(PAGE_BYTES),
        };
        // A cache needs a page in each tier.
        u32::try_from(pages.max(PAGES_MIN)).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for CacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) if share % 100 == 0 => write!(f, "{}%", share / 100),
            Self::Share(share) if share % 10 == 0 => {
                write!(f, "{}.{}%", share / 100, share / 10 % 10)
            }
            Self::Share(share) => write!(f, "{}.{:02}%", share / 100, share % 100),
            Self::Bytes(bytes) => {
                let powers = [(40, 'T'), (30, 'G'), (20, 'M'), (10, 'K')];
                // The largest unit that divides the size, so that the text parses to the same
                // bytes.
                let even = |(power, _): &(u32, char)| bytes.trailing_zeros() >= *power;
                match powers.into_iter().find(even) {
                    Some((power, unit)) if *bytes > 0 => write!(f, "{}{unit}", bytes >> power),
                    _ => write!(f, "{bytes}"),
                }
            }
        }
    }
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            let bytes = parse_size(text)?;
            if bytes < PAGES_MIN * u64::from(PAGE_BYTES) {
                // A bare number up to 100 is almost surely meant as a percentage.
                let percent =
                    if bytes <= 100 { format!("; do you mean {text}%?") } else { String::new() };
                return Err(format!(
                    "{text:?} is less than the 2 pages of 4 KiB that a cache needs{percent}"
                ));
            }
            return Ok(Self::Bytes(bytes));
        };
        let wrong = || {
            format!("{text:?} is no share of the footprint: write 0.01% to 1000%, such as 12.5%")
        };
        let (whole, parts) = percent.split_once('.').unwrap_or((percent, "0"));
        // Digits only: `parse` would accept a sign.
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(parts) || parts.len() > 2 {
            return Err(wrong());
        }
        let whole: u32 = whole.parse().map_err(|_| wrong())?;
        // Padded on the right: .5 is 50 hundredths.
        let parts: u32 = format!("{parts:0<2}").parse().map_err(|_| wrong())?;
        let share = whole.checked_mul(100).and_then(|share| share.checked_add(parts));
        share.filter(|share| (1..=100_000).contains(share)).map(Self::Share).ok_or_else(wrong)
    }
}

/// Parts of DRAM and SCM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Ratio {
    pub(crate) dram: u32,
    pub(crate) scm: u32,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.dram, self.scm)
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(dram, scm)| {
            Some(Self { dram: dram.parse().ok()?, scm: scm.parse().ok()? })
        });
        parts
            .filter(|ratio| ratio.dram > 0 && ratio.scm > 0)
            .ok_or_else(|| format!("{text:?} is no ratio: write two whole numbers, such as 1:3"))
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $type {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }
    };
}

as_text!(CacheSize);
as_text!(Ratio);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, size) in [
            ("10%", CacheSize::Share(1000)),
            ("12.5%", CacheSize::Share(1250)),
            ("0.01%", CacheSize::Share(1)),
            ("1000%", CacheSize::Share(100_000)),
            ("512M", CacheSize::Bytes(512 << 20)),
            ("8193", CacheSize::Bytes(8193)),
        ] {
            assert_eq!(text.parse(), Ok(size));
            assert_eq!(size.to_string(), text);
        }
        for wrong in
            ["0%", "-1%", "1.234%", "%", "1e3%", "1001%", "many", "99999999999%", "8191", "10"]
        {
            assert!(wrong.parse::<CacheSize>().is_err(), "{wrong}");
        }
        assert_eq!(CacheSize::Share(1000).pages(14_330), 1433);
        assert_eq!(CacheSize::Share(1).pages(100), 2);
        assert_eq!(CacheSize::Bytes(1 << 20).pages(5), 256);
    }

    #[test]
    fn ratios_are_read() {
        assert_eq!("1:3".parse(), Ok(Ratio { dram: 1, scm: 3 }));
        for wrong in ["", "1", "0:1", "1:0", "1:2:3", "-1:2", "a:b"] {
            assert!(wrong.parse::<Ratio>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn policies_are_named() {
        assert_eq!(parse_policies("all").unwrap().0, Kind::ALL);
        assert_eq!(parse_policies("lru, hybrid").unwrap().0, [Kind::Lru, Kind::Hybrid]);
        assert!(parse_policies("lru,best").unwrap_err().contains("best"));
    }
}
