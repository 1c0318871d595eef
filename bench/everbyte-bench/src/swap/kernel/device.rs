//! The swap device, from its creation to its removal.
//!
//! Invariants: each step is recorded before the next step, so the removal works from any state. Swap goes off only
//! if the device is nearly empty or its content fits into memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{KernelSwap, machine, read, set};
use crate::children::call;

/// Swapped bytes of a nearly empty device.
const NEARLY_EMPTY: u64 = 1 << 20;
/// Available memory beyond the returned bytes of a fuller device.
const SPARE: u64 = 1 << 30;
/// Attempts to swap off, and the time between them.
const ATTEMPTS: u32 = 1500;
const PAUSE: Duration = Duration::from_millis(20);
const CHUNK: usize = 1 << 20;

/// A step of the removal.
enum Undo {
    SwapOff(PathBuf),
    Call(Command),
    Set(PathBuf, String),
}

impl Undo {
    fn run(&mut self) -> Result<()> {
        match self {
            Self::SwapOff(device) => swap_off(device),
            Self::Call(command) => call(command),
            Self::Set(path, value) => set(path, value),
        }
    }
}

/// The device, and the steps of its removal from the last to the first.
#[derive(Default)]
pub(super) struct SwapDevice {
    path: PathBuf,
    undo: Vec<Undo>,
}

impl SwapDevice {
    /// Makes the device and swaps to it.
    ///
    /// # Errors
    /// Errors of a tool or of the system. The caller removes the device also after an error.
    pub(super) fn begin(&mut self, settings: &KernelSwap, bytes: u64) -> Result<()> {
        self.path = match settings.is_zram {
            false => self.make_loop(settings, bytes)?,
            true => self.make_zram(bytes)?,
        };
        call(Command::new("mkswap").arg("-q").arg(&self.path))?;
        // Recorded first: a failed swapon can leave swap on, and the removal checks for swap.
        self.undo.push(Undo::SwapOff(self.path.clone()));
        call(Command::new("swapon").arg(&self.path))
    }

    fn on_end(&mut self, program: &str, arguments: &[&str], path: &Path) {
        let mut command = Command::new(program);
        command.args(arguments).arg(path);
        self.undo.push(Undo::Call(command));
    }

    fn make_loop(&mut self, settings: &KernelSwap, bytes: u64) -> Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix("everbyte-swap.").tempdir()?.keep();
        self.on_end("rmdir", &[], &folder);
        let options = format!("noswap,mode=700,size={}", bytes + (1 << 20));
        call(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&folder))?;
        self.on_end("umount", &[], &folder);
        // All pages of the image exist before swapping begins: a write to it must not allocate.
        let image = folder.join("swap");
        fill(&image, bytes)?;
        let device = attach(&image)?;
        self.on_end("losetup", &["--detach"], &device);
        let queue = queue(&device)?;
        // A write must not wait for other writes, which wait for memory. Some kernels do not throttle.
        if queue.join("wbt_lat_usec").exists() {
            set(&queue.join("wbt_lat_usec"), "0")?;
        }
        set(&queue.join("scheduler"), settings.scheduler)?;
        // The kernel then allocates slots as on flash, not as on a disk with seeks.
        set(&queue.join("rotational"), "0")?;
        Ok(device)
    }

    fn make_zram(&mut self, bytes: u64) -> Result<PathBuf> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add");
        let number = number.context("cannot make a zram device")?.trim().to_owned();
        let folder = PathBuf::from(format!("/sys/block/zram{number}"));
        let device = PathBuf::from(format!("/dev/zram{number}"));
        // Removal runs from the last step back: a used device must be reset before its removal.
        self.undo.push(Undo::Set("/sys/class/zram-control/hot_remove".into(), number));
        self.undo.push(Undo::Set(folder.join("reset"), "1".to_owned()));
        // The kernel refuses another algorithm after the size is set.
        set(&folder.join("comp_algorithm"), "lz4")?;
        set(&folder.join("disksize"), &bytes.to_string())?;
        set(&folder.join("mem_limit"), &bytes.to_string())?;
        ensure!(device.exists(), "{} does not exist", device.display());
        Ok(device)
    }

    /// The settings of the device as reported by the kernel.
    pub(super) fn describe(&self) -> String {
        let Ok(queue) = queue(&self.path) else { return String::new() };
        let of = |name: &str| read(queue.join(name));
        format!(
            "{}, direct I/O {}, compression {}, scheduler {}, write-back throttling {} us, rotational {}",
            self.path.display(),
            of("../loop/dio"),
            of("../comp_algorithm"),
            of("scheduler"),
            of("wbt_lat_usec"),
            of("rotational"),
        )
    }

    /// Swaps off and removes everything, after the end of the measured program.
    ///
    /// # Errors
    /// A step failed. The error names the rest.
    pub(super) fn end(&mut self) -> Result<()> {
        while let Some(step) = self.undo.last_mut() {
            // A failed step stays for the next attempt, and its successors depend on it.
            step.run()?;
            self.undo.pop();
        }
        Ok(())
    }
}

/// Makes a file with all pages allocated: a write to it takes no memory.
fn fill(image: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create_new(image)?;
    let chunk = vec![0; CHUNK];
    for _ in 0..bytes / CHUNK as u64 {
        file.write_all(&chunk)?;
    }
    Ok(())
}

/// Attaches a loop device, with direct I/O if possible.
fn attach(image: &Path) -> Result<PathBuf> {
    let attach = |direct: &str| {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", direct]).arg(image);
        command.output().context("losetup is not installed")
    };
    let mut output = attach("--direct-io=on")?;
    // Some kernels have no direct I/O on tmpfs.
    if !output.status.success() {
        output = attach("--direct-io=off")?;
    }
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "losetup failed: {}", error.trim());
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn queue(device: &Path) -> Result<PathBuf> {
    let name = device.file_name().with_context(|| format!("{} has no name", device.display()))?;
    Ok(Path::new("/sys/block").join(name).join("queue"))
}

/// Bytes on a swap device; `None` if no swap is on it.
fn used(swaps: &str, device: &Path) -> Option<u64> {
    let line = swaps.lines().find(|line| line.split_whitespace().next() == device.to_str())?;
    Some(line.split_whitespace().nth(3)?.parse::<u64>().ok()? << 10)
}

fn swap_off(device: &Path) -> Result<()> {
    // The content can shrink: a killed program frees its swap.
    for _ in 0..ATTEMPTS {
        let Some(bytes) = used(&read("/proc/swaps"), device) else { return Ok(()) };
        let available = machine::available(&read("/proc/meminfo")).unwrap_or(0);
        if bytes <= NEARLY_EMPTY || available > bytes + SPARE {
            return call(Command::new("swapoff").arg(device));
        }
        std::thread::sleep(PAUSE);
    }
    bail!("{} is left: its content does not fit into memory", device.display())
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
