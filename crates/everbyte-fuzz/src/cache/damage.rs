//! Damage to the volume of a cache, done with knowledge of the format.
//!
//! The settings can be forged with a right checksum, so that fuzzing reaches the code behind it.

use arbitrary::Arbitrary;
use everbyte_device::{BlockDevice, Fua};
use serde_json::Value;

use super::volume::{Volume, mark_at, page_at};
use super::{PAGE, PAGES};

const TEXT_AT: usize = 20;

/// A forged setting.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Setting {
    StorageBytes(u64),
    DramBytes(u64),
    ScmBytes(u64),
    DramPages(u8),
    ScmPages(u8),
    SmallWriteBytes(u16),
    Mode(u8),
    Policy(u8),
    Serial(u8),
    /// A setting is missing.
    Without(u8),
}

/// One damage to a volume.
#[derive(Clone, Copy, Debug, Arbitrary)]
pub(crate) enum Damage {
    Header { at: u8, flip: u8, sealed: bool },
    Settings(Setting),
    Length { bytes: u32, sealed: bool },
    Mark { page: u16, mark: u8 },
    Marks { first: u8, count: u8, mark: u8 },
    Bytes { page: u8, at: u16, flip: u8 },
    Hole { page: u8 },
    Copy { from: u8, to: u8 },
}

/// The parts of a volume that are damaged.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Damaged {
    pub(crate) header: bool,
    marks: bool,
    pages: bool,
}

impl Damaged {
    pub(crate) fn any(self) -> bool {
        self.header || self.marks || self.pages
    }

    /// Returns true if damage explains an error about this byte of the volume.
    pub(crate) fn pages_at(self, offset: u64) -> bool {
        (self.marks || self.pages) && (offset as usize) >= PAGE
    }
}

pub(crate) fn apply<'d>(volume: &Volume, all: impl Iterator<Item = &'d Damage>) -> Damaged {
    let mut damaged = Damaged::default();
    for damage in all {
        match *damage {
            Damage::Header { at, flip, sealed } => {
                let mut header = header(volume);
                // One of the first 256 bytes: the magic, the checksum and most settings lie there.
                header[usize::from(at)] ^= flip;
                put_header(volume, header, sealed);
                // A flip of nothing is no damage, and must not excuse a refusal.
                damaged.header |= flip != 0;
            }
            Damage::Settings(setting) => {
                forge(volume, setting);
                damaged.header = true;
            }
            Damage::Length { bytes, sealed } => {
                let mut header = header(volume);
                header[12..16].copy_from_slice(&bytes.to_le_bytes());
                put_header(volume, header, sealed);
                damaged.header = true;
            }
            // Also marks of pages beyond the backing device: a scan must refuse them.
            Damage::Mark { page, mark } => {
                put_mark(volume, usize::from(page) % PAGE, mark);
                damaged.marks = true;
            }
            Damage::Marks { first, count, mark } => {
                for page in (0..usize::from(count)).map(|n| usize::from(first) + n) {
                    put_mark(volume, page % PAGES, mark % 3);
                }
                damaged.marks |= count > 0;
            }
            Damage::Bytes { page, at, flip } => {
                let at = page_at(usize::from(page) % PAGES) + u64::from(at) % PAGE as u64;
                let mut byte = [0];
                volume.read(at, &mut byte).unwrap();
                volume.write(at, &[byte[0] ^ flip], Fua::No).unwrap();
                damaged.pages = true;
            }
            Damage::Hole { page } => {
                let at = page_at(usize::from(page) % PAGES);
                volume.discard(at, PAGE as u64, Fua::No).unwrap();
                damaged.pages = true;
            }
            Damage::Copy { from, to } => {
                let mut bytes = vec![0; PAGE];
                volume.read(page_at(usize::from(from) % PAGES), &mut bytes).unwrap();
                volume.write(page_at(usize::from(to) % PAGES), &bytes, Fua::No).unwrap();
                damaged.pages = true;
            }
        }
    }
    damaged
}

fn put_mark(volume: &Volume, page: usize, mark: u8) {
    volume.write(mark_at(page), &[mark], Fua::No).unwrap();
}

fn header(volume: &Volume) -> Vec<u8> {
    let mut header = vec![0; PAGE];
    volume.read(0, &mut header).unwrap();
    header
}

fn text_len(header: &[u8]) -> usize {
    u32::from_le_bytes(header[12..16].try_into().unwrap()) as usize
}

fn put_header(volume: &Volume, mut header: Vec<u8>, sealed: bool) {
    let text = header.get(TEXT_AT..TEXT_AT.saturating_add(text_len(&header)));
    // A length from earlier damage can exceed the header. Then there is nothing to seal.
    if let (true, Some(text)) = (sealed, text) {
        let sum = crc32c::crc32c(text).to_le_bytes();
        header[16..20].copy_from_slice(&sum);
    }
    volume.write(0, &header, Fua::No).unwrap();
}

/// Changes a setting, if the settings can still be read.
fn forge(volume: &Volume, setting: Setting) {
    let mut header = header(volume);
    let text = header.get(TEXT_AT..TEXT_AT.saturating_add(text_len(&header))).unwrap_or(&[]);
    // Earlier damage may have destroyed the text.
    let Ok(Value::Object(mut settings)) = serde_json::from_slice(text) else { return };
    let page = PAGE as u64;
    let (key, value) = match setting {
        Setting::StorageBytes(bytes) => ("storage_bytes", bytes.into()),
        Setting::DramBytes(bytes) => ("dram_bytes", bytes.into()),
        Setting::ScmBytes(bytes) => ("scm_bytes", bytes.into()),
        Setting::DramPages(pages) => ("dram_bytes", (u64::from(pages) * page).into()),
        Setting::ScmPages(pages) => ("scm_bytes", (u64::from(pages) * page).into()),
        Setting::SmallWriteBytes(bytes) => ("small_write_bytes", bytes.into()),
        Setting::Mode(which) => {
            let names = ["write-back", "write-through", "write-around", "write-never"];
            ("mode", names[usize::from(which) % names.len()].into())
        }
        Setting::Policy(which) => {
            let kinds = everbyte_policy::sim::Kind::ALL;
            ("policy", kinds[usize::from(which) % kinds.len()].name().into())
        }
        Setting::Serial(number) => {
            let mut storage = settings.get("storage").cloned().unwrap_or_default();
            storage["serial"] = number.to_string().into();
            ("storage", storage)
        }
        Setting::Without(which) => {
            let key = settings.keys().nth(usize::from(which) % 7).cloned();
            key.map(|key| settings.remove(&key));
            ("format", Value::Null)
        }
    };
    settings.insert(key.to_owned(), value);
    let text = serde_json::to_vec(&settings).unwrap();
    // A header with more bytes cannot exist on a medium.
    if text.len() > PAGE - TEXT_AT {
        return;
    }
    header[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
    header[TEXT_AT..].fill(0);
    header[TEXT_AT..TEXT_AT + text.len()].copy_from_slice(&text);
    put_header(volume, header, true);
}
