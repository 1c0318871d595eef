//! A FAT file system on the volume, written by the `fatfs` crate over our NBD client.
//!
//! Owns the sample files and their comparison with the volume.

use std::io::{self, Read, Seek, SeekFrom, Write};

use anyhow::ensure;
use everbyte_device::Fua;
use everbyte_nbd::Client;
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Bytes of one request.
const CHUNK: usize = 1 << 20;

/// The sample files in DRAM, by path.
pub(super) struct Samples(Vec<(String, Vec<u8>)>);

/// Results of a comparison with the written data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub(super) struct Verdict {
    /// True if every byte of the volume is as written.
    pub(super) identical: bool,
    /// True if the file system has every file with its bytes.
    pub(super) checked: bool,
}

impl Verdict {
    pub(super) fn is_good(self) -> bool {
        self.identical && self.checked
    }
}

impl Samples {
    /// A few megabytes of text, compressible and random files, the same every time.
    pub(super) fn new() -> Self {
        // A fixed seed: every run writes the same files, and a failure can be repeated.
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

    /// Formats the export at `uri`, writes the files and flushes. Returns the volume's bytes.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn write(&self, uri: &str) -> anyhow::Result<Vec<u8>> {
        let mut disk = Disk::connect(uri)?;
        fatfs::format_volume(&mut disk, FormatVolumeOptions::new())?;
        self.write_fat(disk)?;
        Disk::connect(uri)?.contents()
    }

    /// Compares the export at `uri` with `image` byte for byte, and reads every file.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn verify(&self, image: &[u8], uri: &str) -> anyhow::Result<Verdict> {
        // The bytes prove the volume. The files below prove the file system to a reader.
        let identical = Disk::connect(uri)?.contents()? == image;
        Ok(Verdict { identical, checked: self.are_in_fat(Disk::connect(uri)?)? })
    }

    fn write_fat(&self, disk: Disk) -> io::Result<()> {
        let system = FileSystem::new(disk, FsOptions::new())?;
        for (name, bytes) in &self.0 {
            if let Some((folder, _)) = name.split_once('/') {
                system.root_dir().create_dir(folder)?;
            }
            let mut file = system.root_dir().create_file(name)?;
            file.write_all(bytes)?;
            // The drop would write the length of the file as well, but would hide its error.
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

    /// Reads the whole export.
    fn contents(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Bytes from the position on, at most `len`.
    fn room(&self, len: usize) -> usize {
        // Past the end both read and write transfer nothing, as a file of this size would.
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
    fn changed_byte_of_fat_fails_verification() {
        let folder = tempfile::tempdir().unwrap();
        let size_bytes = 32 << 20;
        let device = Arc::new(MemoryDevice::new(size_bytes));
        let address = Address::Unix(folder.path().join("s"));
        let _server = Server::bind(&address, Arc::new(OneDevice(Arc::clone(&device)))).unwrap();
        let uri = address.uri("");
        let samples = Samples::new();
        let image = samples.write(&uri).unwrap();
        let good = samples.verify(&image, &uri).unwrap();
        assert_eq!(good, Verdict { identical: true, checked: true });
        // The last file's bytes, at any place.
        let mut bytes = vec![0; 32 << 20];
        device.read(0, &mut bytes).unwrap();
        let at = bytes.windows(26).rposition(|w| w == b"39: the quick brown fox ju").unwrap();
        device.write(at as u64, b"X", Fua::No).unwrap();
        let bad = samples.verify(&image, &uri).unwrap();
        assert_eq!(bad, Verdict { identical: false, checked: false });
    }
}
