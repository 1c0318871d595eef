//! Scrubbing: reads everything in use, to find bad memory before a user needs it.
//!
//! Owns the type of a finding, and the reads of the pool's own structures: superblocks, headers and logs. The
//! volume's kind holds the locks for maps and data, and reads them. Works concurrently with readers and
//! writers: it holds no lock but the superblock's, and that one for two short copies.

use everbyte_media::{BLOCK, BLOCK_U64, BlockNo, Medium, PoolOffset};

use crate::format::{
    CHECKSUM_ROOT_AT, COMPLETED_A_AT, COMPLETED_B_AT, Corrupt, DESCRIPTOR_AT, Descriptor, ROOT_AT,
    SIZE_AT, STATE_AT, SUPERBLOCK_COPIES, Superblock, decode_word,
};
use crate::pool::Pool;
use crate::readable::check_readable;
use crate::volume::Volume;

/// Damage found by a scrub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubFinding {
    /// The volume it belongs to, if to one.
    pub volume: Option<String>,
    /// Name of the structure.
    pub structure: String,
    /// The first affected byte of the volume, if any.
    pub offset: Option<u64>,
    /// Offset in the pool, in bytes.
    pub at: PoolOffset,
    /// Description of the damage.
    pub what: String,
}

impl ScrubFinding {
    /// For damage found by the pool's own rules.
    #[must_use]
    pub fn of(volume: Option<&str>, corrupt: Corrupt) -> Self {
        Self {
            volume: volume.map(str::to_owned),
            structure: corrupt.structure,
            offset: None,
            at: corrupt.at,
            what: corrupt.what,
        }
    }
}

/// Report of a scrub, or of a part of one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Bytes read.
    pub read_bytes: u64,
    /// Data blocks with a compared checksum.
    pub verified_blocks: u64,
    /// Damage found.
    pub findings: Vec<ScrubFinding>,
}

impl ScrubReport {
    /// Notes the error, if `judged` is one.
    pub fn note(&mut self, volume: Option<&str>, judged: Result<(), Corrupt>) {
        self.findings.extend(judged.err().map(|corrupt| ScrubFinding::of(volume, corrupt)));
    }

    /// Reads `len` bytes at `at`, a multiple of a block, only to test that they are readable.
    pub fn read<M: Medium>(
        &mut self,
        medium: &M,
        volume: Option<&str>,
        structure: &str,
        at: PoolOffset,
        len: u64,
    ) {
        let mut bytes = [0; BLOCK];
        for block in at.block().0..at.plus(len).block().0 {
            let at = BlockNo(block).offset();
            medium.read(at, &mut bytes);
            self.read_bytes += BLOCK_U64;
            // After the read: the system reports bad memory only when it is accessed.
            self.note(volume, check_readable(medium, structure, at, BLOCK_U64));
        }
    }
}

impl<M: Medium> Pool<M> {
    /// Scrubs the structures of the pool and of every volume: superblocks, volume headers, logs. Reports also
    /// the findings of opening: unusable headers, and, for an inspected pool, copies whole only in the
    /// private copy.
    #[must_use]
    pub fn scrub(&self) -> ScrubReport {
        self.scrub_structures(true)
    }

    /// The same without logs.
    pub(crate) fn scrub_headers(&self) -> ScrubReport {
        self.scrub_structures(false)
    }

    fn scrub_structures(&self, with_logs: bool) -> ScrubReport {
        let medium = &**self.medium();
        let mut report = ScrubReport::default();
        let sb = self.scrub_superblocks(&mut report);
        for slot in 0..sb.table_slots {
            let header = BlockNo(sb.table_start + slot).offset();
            report.read(medium, None, "volume header", header, BLOCK_U64);
        }
        for volume in self.volumes() {
            scrub_header(medium, &volume, &sb, &mut report);
            if !with_logs {
                continue;
            }
            let descriptor = volume.descriptor();
            let log = BlockNo(descriptor.log_start).offset();
            let len = descriptor.log_blocks() * BLOCK_U64;
            report.read(medium, Some(volume.name()), "log", log, len);
        }
        // Reports irreparable damage only once.
        let told: Vec<_> = report.findings.iter().map(|finding| finding.at.block()).collect();
        for corrupt in self.damage_when_opened().filter(|damage| !told.contains(&damage.at.block()))
        {
            report.note(None, Err(corrupt.clone()));
        }
        report
    }

    fn scrub_superblocks(&self, report: &mut ScrubReport) -> Superblock {
        let medium = &**self.medium();
        // Under the lock, so an update in progress does not look like damage.
        self.with_superblock(|sb| {
            for at in SUPERBLOCK_COPIES {
                let before = report.findings.len();
                report.read(medium, None, "superblock", at, BLOCK_U64);
                let mut bytes = [0; size_of::<Superblock>()];
                medium.read(at, &mut bytes);
                let judged = Superblock::parse(&bytes, at, medium.len()).and_then(|copy| {
                    let same = copy == *sb;
                    let stale = || Corrupt::new("superblock", at, "it is not the newest");
                    if same { Ok(()) } else { Err(stale()) }
                });
                // Bad memory is one finding. Its substitute zeroes are not judged.
                if report.findings.len() == before {
                    report.note(None, judged);
                }
            }
            *sb
        })
    }
}

/// Judges the words and descriptors in a volume's header, unless its memory is bad.
fn scrub_header<M: Medium>(
    medium: &M,
    volume: &Volume<M>,
    sb: &Superblock,
    report: &mut ScrubReport,
) {
    let header = volume.header_at;
    let name = Some(volume.name());
    let words = [
        ("volume state", STATE_AT),
        ("checkpoint record", COMPLETED_A_AT),
        ("checkpoint record", COMPLETED_B_AT),
        ("volume root", ROOT_AT),
        ("volume size", SIZE_AT),
        ("checksum root", CHECKSUM_ROOT_AT),
    ];
    for (structure, offset) in words {
        let at = header.plus(offset);
        let word = medium.load_word(at);
        // The scrub of the whole header block has reported bad memory.
        if medium.check_range(at, 8).is_ok() && decode_word(word).is_none() {
            report.note(name, Err(Corrupt::new(structure, at, "its check bits are wrong")));
        }
    }
    for offset in DESCRIPTOR_AT {
        let at = header.plus(offset);
        let mut bytes = [0; size_of::<Descriptor>()];
        medium.read(at, &mut bytes);
        if medium.check_range(at, bytes.len() as u64).is_ok() {
            let judged = Descriptor::parse(&bytes, at, sb.data_start, sb.size_blocks);
            report.note(name, judged.map(drop));
        }
    }
}
