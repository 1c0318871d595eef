//! The walk from a descriptor down through loop devices, partitions, device-mapper and RAID devices to the bottom.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fstatfs, major, minor};

use super::system::{System, device_number, number, word};
use super::{Allocation, Layer, Object, Stack};
use crate::free_space::RAMFS_MAGIC;

/// Objects of a stack at most.
const LAYERS_MAX: usize = 256;
/// Objects on top of each other at most.
const DEPTH_MAX: usize = 24;
/// Unit of partitions in `/sys`, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Major number of loop devices.
const LOOP_MAJOR: u32 = 7;
/// Characters of the identifiers of a volume group and of a logical volume.
const LVM_ID_LEN: usize = 32;
/// Files with lasting names in the folder of a disk below `/sys`, by preference.
const HARDWARE_NAMES: [&str; 3] = ["wwid", "device/wwid", "md/uuid"];

/// A range of the next object, and the way to it.
#[derive(Clone)]
struct Part {
    range: Range<u64>,
    allocations: Vec<Allocation>,
    depth: usize,
    /// The object is the device of a file system. This process may have no access to it.
    is_host: bool,
}

impl Part {
    fn whole() -> Self {
        Self { range: 0..u64::MAX, allocations: Vec::new(), depth: 0, is_host: false }
    }

    /// The same bytes of the object below, `start` bytes further on, within `len` bytes.
    fn shifted(&self, start: u64, len: u64) -> Self {
        let place = |at: u64| start.saturating_add(at.min(len));
        let range = place(self.range.start)..place(self.range.end);
        Self { range, depth: self.depth + 1, ..self.clone() }
    }

    /// Bytes somewhere in the object below.
    fn somewhere(&self, allocation: Option<(String, String)>) -> Self {
        let mut part = Self { range: 0..u64::MAX, depth: self.depth + 1, ..self.clone() };
        let range = self.range.clone();
        let allocation = allocation.map(|(allocator, id)| Allocation { allocator, id, range });
        part.allocations.extend(allocation);
        part
    }
}

/// The walk.
struct Walk<'s> {
    system: &'s System,
    stack: Stack,
}

pub(super) fn walk(system: &System, file: &File) -> io::Result<Stack> {
    let stack = Stack { layers: Vec::new(), unknown: None };
    let mut walk = Walk { system, stack };
    walk.add_open(file, Part::whole())?;
    Ok(walk.stack)
}

/// The stack of a block device by its number.
#[cfg(test)]
pub(super) fn walk_device(system: &System, number: u64) -> Stack {
    let stack = Stack { layers: Vec::new(), unknown: None };
    let mut walk = Walk { system, stack };
    walk.add_device(number, Part::whole());
    walk.stack
}

impl Walk<'_> {
    fn set_unknown(&mut self, what: String) {
        self.stack.unknown.get_or_insert(what);
    }

    /// Returns false for an object with the same part as before, and beyond the limits.
    fn is_new(&mut self, object: Object, part: &Part) -> bool {
        let is_known = self.stack.layers.iter().any(|layer| {
            layer.object == object
                && layer.range == part.range
                && layer.allocations == part.allocations
        });
        if !is_known && (self.stack.layers.len() >= LAYERS_MAX || part.depth >= DEPTH_MAX) {
            self.set_unknown("it lies on too many devices to inspect".to_owned());
            return false;
        }
        !is_known
    }

    /// Adds the object of an open descriptor.
    fn add_open(&mut self, file: &File, part: Part) -> io::Result<()> {
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        if !kind.is_block_device() && !kind.is_char_device() {
            return self.add_file(file, part);
        }
        // Another node than the one in /dev may be open.
        let (number, is_block) = (metadata.rdev(), kind.is_block_device());
        let name = format!("device {}:{}", major(number), minor(number));
        let node = Some(self.system.node(file)?);
        let object = Object::Device { number, is_block };
        if is_block {
            self.add_device(number, part.clone());
        }
        if let Some(layer) = self.stack.layers.iter().position(|layer| layer.object == object) {
            let shown = self.stack.layers[layer].name.clone();
            let opened = Layer { name: shown, node, ..self.stack.layers[layer].clone() };
            self.stack.layers.push(opened);
            return Ok(());
        }
        let Part { range, allocations, .. } = part;
        let (hardware, is_read_only) = (None, false);
        self.stack.layers.push(Layer {
            object,
            name,
            hardware,
            range,
            allocations,
            node,
            is_read_only,
            is_storage: false,
        });
        Ok(())
    }

    fn add_file(&mut self, file: &File, part: Part) -> io::Result<()> {
        let metadata = file.metadata()?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        let object = Object::File { device, inode };
        if !self.is_new(object, &part) {
            return Ok(());
        }
        let node = self.system.node(file)?;
        let host = match major(device) {
            0 => self.system.mount_source(file),
            _ => Some(device),
        };
        self.stack.layers.push(Layer {
            object,
            name: crate::open::name_of(file),
            hardware: None,
            range: part.range.clone(),
            allocations: part.allocations.clone(),
            node: Some(node),
            is_read_only: false,
            is_storage: host.is_none() && !is_in_memory(file),
        });
        let allocation = (format!("file system {device}"), format!("inode {inode}"));
        let below = Part { is_host: true, ..part.somewhere(Some(allocation)) };
        if let Some(host) = host {
            self.add_device(host, below);
        }
        Ok(())
    }

    fn add_device(&mut self, device: u64, part: Part) {
        let object = Object::Device { number: device, is_block: true };
        if !self.is_new(object, &part) {
            return;
        }
        let Some(folder) = self.system.block_folder(device) else {
            let name = format!("block device {}:{}", major(device), minor(device));
            if !part.is_host || major(device) == LOOP_MAJOR {
                self.set_unknown(format!("{name} is not described in /sys"));
            }
            self.push_device(object, name, None, &part, None);
            return;
        };
        let node = self.system.block_node(&folder, device);
        let shown = node.as_ref().map(|(path, _)| path.display().to_string());
        let in_sys = || folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = shown.unwrap_or_else(in_sys);
        self.push_device(
            object,
            name.clone(),
            node.as_ref().map(|(_, file)| file),
            &part,
            Some(&folder),
        );
        if folder.join("loop/backing_file").exists() {
            let node = node.as_ref().map(|(path, _)| path.as_path());
            self.add_loop(&folder, node, &name, &part);
        }
        if folder.join("partition").exists() {
            self.add_disk(&folder, &name, &part);
        }
        self.add_slaves(&folder, &name, &part);
    }

    fn push_device(
        &mut self,
        object: Object,
        name: String,
        node: Option<&File>,
        part: &Part,
        folder: Option<&Path>,
    ) {
        let is_partition = folder.is_some_and(|folder| folder.join("partition").exists());
        let hardware = folder.filter(|_| !is_partition).and_then(|folder| {
            HARDWARE_NAMES
                .iter()
                .find_map(|file| Some(format!("{file} {}", word(&folder.join(file))?)))
        });
        let node = node.and_then(|node| self.system.node(node).ok());
        self.stack.layers.push(Layer {
            object,
            name,
            hardware,
            range: part.range.clone(),
            allocations: part.allocations.clone(),
            node,
            is_read_only: folder.is_some_and(|folder| number(&folder.join("ro")) != 0),
            is_storage: folder.is_some_and(|folder| folder.join("device").exists()),
        });
    }

    fn add_loop(&mut self, folder: &Path, node: Option<&Path>, name: &str, part: &Part) {
        let offset = number(&folder.join("loop/offset"));
        let len = match number(&folder.join("loop/sizelimit")) {
            0 => u64::MAX,
            limit => limit,
        };
        let added = self.system.loop_file(folder, node);
        let added = added.and_then(|file| self.add_open(&file, part.shifted(offset, len)));
        if let Err(error) = added {
            let is_out_of_reach =
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound);
            // The file system of an ordinary file may lie on an image of another namespace.
            if !(part.is_host && is_out_of_reach) {
                self.set_unknown(format!("the file of {name} cannot be inspected: {error}"));
            }
        }
    }

    fn add_disk(&mut self, folder: &Path, name: &str, part: &Part) {
        let disk = folder.parent().and_then(device_number);
        let Some(disk) = disk else {
            return self.set_unknown(format!("the disk of partition {name} is unknown"));
        };
        let start = number(&folder.join("start")).saturating_mul(SECTOR_BYTES);
        let len = number(&folder.join("size")).saturating_mul(SECTOR_BYTES);
        self.add_device(disk, part.shifted(start, len));
    }

    /// Adds the members of a device-mapper or RAID device.
    fn add_slaves(&mut self, folder: &Path, name: &str, part: &Part) {
        let mut slaves: Vec<PathBuf> = match fs::read_dir(folder.join("slaves")) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(_) => return,
        };
        slaves.sort();
        let allocation = word(&folder.join("dm/uuid")).and_then(|uuid| allocation_of(&uuid));
        for slave in slaves {
            match device_number(&slave) {
                Some(number) => self.add_device(number, part.somewhere(allocation.clone())),
                None => self.set_unknown(format!("a device below {name} is unknown")),
            }
        }
    }
}

/// Allocator and name of a device-mapper device, if it is a logical volume or a partition. LVM's internal
/// volumes have a suffix, and share bytes with others.
fn allocation_of(uuid: &str) -> Option<(String, String)> {
    if let Some(ids) = uuid.strip_prefix("LVM-") {
        let is_volume = ids.len() == 2 * LVM_ID_LEN && ids.is_ascii();
        return is_volume.then(|| {
            let (group, id) = ids.split_at(LVM_ID_LEN);
            (format!("volume group {group}"), id.to_owned())
        });
    }
    let (partition, disk) = uuid.split_once('-')?;
    let is_partition = partition.strip_prefix("part").is_some_and(|nth| nth.parse::<u32>().is_ok());
    is_partition.then(|| (format!("partitions of {disk}"), partition.to_owned()))
}

/// Returns true if the file's file system keeps everything in memory.
fn is_in_memory(file: &File) -> bool {
    fstatfs(file).is_ok_and(|system| {
        [libc::TMPFS_MAGIC, RAMFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&system.f_type)
    })
}
