//! A real file system on the volume, made by code that is not ours: `mke2fs` and `nbdcopy` or
//! `qemu-img` where they are installed, else the FAT of the `fatfs` crate over our NBD client.
//!
//! Owns the sample files and the comparison of what comes back.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use everbyte_device::Fua;
use everbyte_nbd::Client;
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Bytes read at once when comparing.
const CHUNK: usize = 1 << 20;
/// Folders of administrators' tools, besides `PATH`.
const SBIN: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Way to make the file system on the volume.
pub(super) enum Maker {
    /// `mke2fs` makes an image from the sample files, another tool copies it over NBD.
    Ext4 { mke2fs: PathBuf, copier: Copier },
    /// The `fatfs` crate formats the volume and writes the files over NBD.
    Fat,
}

/// A program that copies an image to an NBD server.
pub(super) enum Copier {
    NbdCopy(PathBuf),
    QemuImg(PathBuf),
}

/// The sample files in DRAM, by path.
pub(super) struct Samples(Vec<(String, Vec<u8>)>);

impl Maker {
    /// The best that is installed here.
    pub(super) fn find() -> Self {
        let copier = find_tool("nbdcopy")
            .map(Copier::NbdCopy)
            .or_else(|| find_tool("qemu-img").map(Copier::QemuImg));
        match (find_tool("mke2fs"), copier) {
            (Some(mke2fs), Some(copier)) => Self::Ext4 { mke2fs, copier },
            _ => Self::Fat,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Ext4 { .. } => "ext4",
            Self::Fat => "FAT",
        }
    }

    /// Names of the tools that write it, for people.
    pub(super) fn tools(&self) -> &'static str {
        match self {
            Self::Ext4 { copier: Copier::NbdCopy(_), .. } => "mke2fs and nbdcopy",
            Self::Ext4 { copier: Copier::QemuImg(_), .. } => "mke2fs and qemu-img",
            Self::Fat => "the fatfs library (mke2fs or nbdcopy are not installed)",
        }
    }

    /// Puts a file system with `samples` on the export at `uri` and flushes it. Returns the image
    /// that the volume must hold from now on.
    ///
    /// # Errors
    /// A tool's or the server's.
    pub(super) fn write(
        &self,
        samples: &Samples,
        folder: &Path,
        uri: &str,
        size_bytes: u64,
    ) -> anyhow::Result<PathBuf> {
        let image = folder.join("image");
        match self {
            Self::Ext4 { mke2fs, copier } => {
                let source = folder.join("samples");
                samples.write_to(&source)?;
                let mut make = Command::new(mke2fs);
                make.args(["-q", "-F", "-t", "ext4", "-d"]).arg(&source).arg(&image);
                tool(make.arg(format!("{}k", size_bytes >> 10)))?;
                let mut copy = match copier {
                    Copier::NbdCopy(path) => Command::new(path),
                    Copier::QemuImg(path) => Command::new(path),
                };
                match copier {
                    Copier::NbdCopy(_) => copy.arg("--flush"),
                    Copier::QemuImg(_) => {
                        copy.args(["convert", "-n", "-t", "writeback", "-f", "raw", "-O", "raw"])
                    }
                };
                tool(copy.arg(&image).arg(uri))?;
                // What the copier says it flushed is one thing, that we ask for it another.
                Client::connect_uri(uri)?.flush()?;
            }
            Self::Fat => {
                let mut disk = Disk::connect(uri)?;
                fatfs::format_volume(&mut disk, FormatVolumeOptions::new())?;
                samples.write_fat(disk)?;
                copy_out(uri, &image)?;
            }
        }
        Ok(image)
    }

    /// Compares the export at `uri` with `image` byte for byte, and runs the file system's own check, if
    /// it has one, on a copy.
    ///
    /// # Errors
    /// The server's, or a tool cannot be run.
    pub(super) fn verify(
        &self,
        samples: &Samples,
        image: &Path,
        uri: &str,
    ) -> anyhow::Result<Verdict> {
        let back = image.with_extension("back");
        copy_out(uri, &back)?;
        let identical = same_bytes(image, &back)?;
        let checked = match self {
            Self::Ext4 { .. } => match find_tool("e2fsck") {
                Some(e2fsck) => {
                    let mut check = Command::new(e2fsck);
                    check.arg("-fn").arg(&back).stdout(Stdio::null()).stderr(Stdio::null());
                    Some(check.stdin(Stdio::null()).status()?.success())
                }
                None => None,
            },
            Self::Fat => Some(samples.are_in_fat(Disk::connect(uri)?)?),
        };
        fs::remove_file(&back)?;
        Ok(Verdict { identical, checked })
    }
}

/// Results of a comparison with what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub(super) struct Verdict {
    /// True if every byte is as it was written.
    pub(super) identical: bool,
    /// True if the file system's own check found nothing; `None` if there is none here.
    pub(super) checked: Option<bool>,
}

impl Verdict {
    pub(super) fn is_good(self) -> bool {
        self.identical && self.checked != Some(false)
    }
}

/// Runs a tool to its end.
fn tool(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(SBIN.map(PathBuf::from));
    places.map(|place| place.join(name)).find(|file| file.is_file())
}

/// Copies the export at `uri` into a new file.
fn copy_out(uri: &str, to: &Path) -> anyhow::Result<()> {
    let mut disk = Disk::connect(uri)?;
    let mut file = fs::File::create(to)?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let len = disk.read(&mut chunk)?;
        if len == 0 {
            return Ok(());
        }
        file.write_all(&chunk[..len])?;
    }
}

fn same_bytes(one: &Path, other: &Path) -> anyhow::Result<bool> {
    if fs::metadata(one)?.len() != fs::metadata(other)?.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (fs::File::open(one)?, fs::File::open(other)?);
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let len = one.read(&mut a)?;
        if len == 0 {
            return Ok(true);
        }
        other.read_exact(&mut b[..len])?;
        if a[..len] != b[..len] {
            return Ok(false);
        }
    }
}

impl Samples {
    /// A few megabytes of text, compressible and random files, the same every time.
    pub(super) fn new() -> Self {
        let mut random = SmallRng::seed_from_u64(1);
        let mut files = vec![(
            "README.TXT".to_owned(),
            b"These files were written to a volume of byte-addressable memory.\n".repeat(200),
        )];
        for number in 0..24_usize {
            let mut bytes = vec![0; 20_000 + number * 15_000];
            random.fill(&mut bytes[..]);
            files.push((format!("PHOTOS/IMG_{number:04}.RAW"), bytes));
        }
        for number in 0..40 {
            let text = format!("{number}: the quick brown fox jumps over the lazy dog\n");
            files.push((format!("NOTES/NOTE{number:02}.TXT"), text.repeat(1 + number * 7).into()));
        }
        Self(files)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn write_to(&self, folder: &Path) -> io::Result<()> {
        for (name, bytes) in &self.0 {
            let file = folder.join(name);
            fs::create_dir_all(file.parent().unwrap_or(folder))?;
            fs::write(file, bytes)?;
        }
        Ok(())
    }

    fn write_fat(&self, disk: Disk) -> io::Result<()> {
        let system = FileSystem::new(disk, FsOptions::new())?;
        for (name, bytes) in &self.0 {
            if let Some((folder, _)) = name.split_once('/') {
                system.root_dir().create_dir(folder)?;
            }
            let mut file = system.root_dir().create_file(name)?;
            file.write_all(bytes)?;
            file.flush()?;
        }
        system.unmount()
    }

    /// Returns true if a FAT file system on `disk` has every file with its bytes.
    fn are_in_fat(&self, disk: Disk) -> io::Result<bool> {
        let system = FileSystem::new(disk, FsOptions::new())?;
        for (name, bytes) in &self.0 {
            let mut found = Vec::new();
            system.root_dir().open_file(name)?.read_to_end(&mut found)?;
            if &found != bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// An export as a file.
struct Disk {
    client: Client,
    at: u64,
}

impl Disk {
    fn connect(uri: &str) -> anyhow::Result<Self> {
        let client = Client::connect_uri(uri)?;
        ensure!(client.size_bytes() > 0, "{uri} is empty");
        Ok(Self { client, at: 0 })
    }

    /// Bytes from here on, at most `len`.
    fn room(&self, len: usize) -> usize {
        let left = self.client.size_bytes().saturating_sub(self.at);
        len.min(CHUNK).min(usize::try_from(left).unwrap_or(usize::MAX))
    }
}

impl Read for Disk {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.room(out.len());
        if len > 0 {
            out[..len].copy_from_slice(&self.client.read(self.at, len).map_err(io::Error::other)?);
            self.at += len as u64;
        }
        Ok(len)
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.room(bytes.len());
        if len > 0 {
            self.client.write(self.at, &bytes[..len], Fua::No).map_err(io::Error::other)?;
            self.at += len as u64;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.client.flush().map_err(io::Error::other)
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.client.size_bytes().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use everbyte_device::{BlockDevice, MemoryDevice};
    use everbyte_nbd::{Address, Export, ExportInfo, Exports, OpenError, Server};

    use super::*;

    struct OneDevice(Arc<MemoryDevice>);

    impl Exports for OneDevice {
        fn list(&self) -> Vec<ExportInfo> {
            Vec::new()
        }

        fn open(&self, name: &str) -> Result<Export, OpenError> {
            Ok(Export::new(name, Arc::<MemoryDevice>::clone(&self.0)))
        }
    }

    #[test]
    fn fat_is_written_verified_and_damage_to_it_seen() {
        let folder = tempfile::tempdir().unwrap();
        let size_bytes = 32 << 20;
        let device = Arc::new(MemoryDevice::new(size_bytes));
        let address = Address::Unix(folder.path().join("s"));
        let _server = Server::bind(&address, Arc::new(OneDevice(Arc::clone(&device)))).unwrap();
        let uri = address.uri("");
        let samples = Samples::new();
        let image = Maker::Fat.write(&samples, folder.path(), &uri, size_bytes).unwrap();
        let good = Maker::Fat.verify(&samples, &image, &uri).unwrap();
        assert_eq!(good, Verdict { identical: true, checked: Some(true) });
        // The last file's bytes, wherever they are.
        let mut bytes = vec![0; 32 << 20];
        device.read(0, &mut bytes).unwrap();
        let at = bytes.windows(26).rposition(|w| w == b"39: the quick brown fox ju").unwrap();
        device.write(at as u64, b"X", Fua::No).unwrap();
        let bad = Maker::Fat.verify(&samples, &image, &uri).unwrap();
        assert_eq!(bad, Verdict { identical: false, checked: Some(false) });
    }
}
