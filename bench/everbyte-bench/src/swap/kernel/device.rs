//! The device that is swapped to, from its making to its end.
//!
//! Invariants: every step is noted before the next one, so that taking down works from any state; a device
//! is swapped off only when nearly nothing is on it, or all of it fits into memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{DeviceKind, SwapSettings, machine, read, set};
use crate::children::call;

/// Bytes that may be on a device that is swapped off without a look at memory.
const NEARLY_NOTHING: u64 = 1 << 20;
/// Memory that must be left over when more is swapped off.
const SPARE: u64 = 1 << 30;
/// Looks at a device that is to become empty, and the time between them.
const LOOKS: u32 = 1500;
const LOOK: Duration = Duration::from_millis(20);
const CHUNK: usize = 1 << 20;

/// A device, as far as it is there.
#[derive(Default)]
pub(super) struct SwapDevice {
    folder: Option<PathBuf>,
    is_mounted: bool,
    loop_device: Option<PathBuf>,
    zram: Option<String>,
    swapped_to: Option<PathBuf>,
}

impl SwapDevice {
    /// Makes the device and swaps to it.
    ///
    /// # Errors
    /// A tool's, or the system's. What was made is to be taken down also then.
    pub(super) fn begin(&mut self, settings: &SwapSettings, bytes: u64) -> Result<()> {
        let device = match settings.device {
            DeviceKind::Loop => self.make_loop(settings, bytes)?,
            DeviceKind::Zram => self.make_zram(bytes)?,
        };
        call(Command::new("mkswap").arg("-q").arg(&device))?;
        // Noted first: swapping off what is not swapped to does no harm.
        self.swapped_to = Some(device.clone());
        call(Command::new("swapon").arg(&device))
    }

    fn make_loop(&mut self, settings: &SwapSettings, bytes: u64) -> Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix("everbyte-swap.").tempdir()?.keep();
        self.folder = Some(folder.clone());
        let options = format!("noswap,mode=700,size={}", bytes + (1 << 20));
        call(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder))?;
        self.is_mounted = true;
        let image = folder.join("swap");
        fill(&image, bytes)?;
        let device = attach(&image)?;
        self.loop_device = Some(device.clone());
        let queue = queue(&device)?;
        // A write must not wait for others, which wait for memory. Not every kernel throttles.
        if queue.join("wbt_lat_usec").exists() {
            set(&queue.join("wbt_lat_usec"), "0")?;
        }
        set(&queue.join("scheduler"), settings.scheduler)?;
        set(&queue.join("rotational"), "0")?;
        Ok(device)
    }

    fn make_zram(&mut self, bytes: u64) -> Result<PathBuf> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add");
        let number = number.context("cannot make a zram device")?.trim().to_owned();
        self.zram = Some(number.clone());
        let folder = PathBuf::from(format!("/sys/block/zram{number}"));
        set(&folder.join("comp_algorithm"), "lz4")?;
        set(&folder.join("disksize"), &bytes.to_string())?;
        set(&folder.join("mem_limit"), &bytes.to_string())?;
        let device = PathBuf::from(format!("/dev/zram{number}"));
        if !device.exists() {
            bail!("{} is not there", device.display());
        }
        Ok(device)
    }

    /// The settings of the device as the kernel tells them.
    pub(super) fn describe(&self) -> String {
        let Some(device) = &self.swapped_to else { return String::new() };
        let Ok(queue) = queue(device) else { return String::new() };
        let of = |name: &str| read(&queue.join(name));
        let own = match &self.loop_device {
            Some(_) => format!("direct I/O {}", read(&queue.join("../loop/dio"))),
            None => format!("compression {}", read(&queue.join("../comp_algorithm"))),
        };
        format!(
            "{}, {own}, scheduler {}, write-back throttling {} us, rotational {}",
            device.display(),
            of("scheduler"),
            of("wbt_lat_usec"),
            of("rotational"),
        )
    }

    /// Swaps off and takes everything down, once the program that paged is gone.
    ///
    /// # Errors
    /// Something is left, and is named.
    pub(super) fn end(&mut self) -> Result<()> {
        if let Some(device) = &self.swapped_to {
            swap_off(device)?;
            self.swapped_to = None;
        }
        if let Some(device) = &self.loop_device {
            call(Command::new("losetup").arg("--detach").arg(device))?;
            self.loop_device = None;
        }
        if let (true, Some(folder)) = (self.is_mounted, &self.folder) {
            call(Command::new("umount").arg(folder))?;
            self.is_mounted = false;
        }
        if let Some(folder) = &self.folder {
            fs::remove_dir(folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
            self.folder = None;
        }
        if let Some(number) = &self.zram {
            set(Path::new(&format!("/sys/block/zram{number}/reset")), "1")?;
            set(Path::new("/sys/class/zram-control/hot_remove"), number)?;
            self.zram = None;
        }
        Ok(())
    }
}

/// Makes a file whose every page is there: a write to it takes no memory.
fn fill(image: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create_new(image)?;
    let chunk = vec![0; CHUNK];
    for _ in 0..bytes / CHUNK as u64 {
        file.write_all(&chunk)?;
    }
    Ok(())
}

/// Attaches a loop device, past the page cache where that is possible.
fn attach(image: &Path) -> Result<PathBuf> {
    let attach = |direct: &str| {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", direct]).arg(image);
        command.output().context("losetup is not installed")
    };
    let mut output = attach("--direct-io=on")?;
    if !output.status.success() {
        output = attach("--direct-io=off")?;
    }
    if !output.status.success() {
        bail!("losetup failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn queue(device: &Path) -> Result<PathBuf> {
    let name = device.file_name().with_context(|| format!("{} has no name", device.display()))?;
    Ok(Path::new("/sys/block").join(name).join("queue"))
}

/// Bytes on a device that is swapped to; `None` if it is not.
fn used(swaps: &str, device: &Path) -> Option<u64> {
    let line = swaps.lines().find(|line| line.split_whitespace().next() == device.to_str())?;
    Some(line.split_whitespace().nth(3)?.parse::<u64>().ok()? << 10)
}

fn swap_off(device: &Path) -> Result<()> {
    for _ in 0..LOOKS {
        let Some(bytes) = used(&read(Path::new("/proc/swaps")), device) else { return Ok(()) };
        let available = machine::available(&read(Path::new("/proc/meminfo"))).unwrap_or(0);
        if bytes <= NEARLY_NOTHING || available > bytes + SPARE {
            return call(Command::new("swapoff").arg(device));
        }
        std::thread::sleep(LOOK);
    }
    bail!("{} is left: what is on it does not fit into memory", device.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_holders_are_read() {
        let swaps = "Filename Type Size Used Priority\n/dev/loop0 partition 65532 256 -2\n";
        assert_eq!(used(swaps, Path::new("/dev/loop0")), Some(256 << 10));
        assert_eq!(used(swaps, Path::new("/dev/loop1")), None);
    }
}
