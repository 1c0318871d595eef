//! Pools and volumes in the words of the control protocol, which are also those of the JSON output.

use everbyte_block::{Checksum, Delta};
use everbyte_control::{
    CheckStatus, CheckpointStats, DeletedStatus, HealthStatus, MediumStats, MediumStatus, Response,
    ScrubPart, ScrubProblem, ServerStats, VolumeStatus, WearStats, WritersStatus,
};
use everbyte_media::{BLOCK_U64, Counters, Description, Mapped, Wear, Writers};
use everbyte_pool::{CheckReport, DeletedVolume, Health, Pool, ScrubFinding, ScrubReport, Volume};

use crate::kinds::Kind;
use crate::words::{CHECKSUM_WORDS, DELTA_WORDS, word};

pub(crate) fn medium(description: &Description) -> MediumStatus {
    MediumStatus {
        kind: description.kind.to_string(),
        flush: description.flush.to_owned(),
        sync: description.sync.map(str::to_owned),
        copy: description.copy.to_owned(),
        emulates: description.emulated.map(|technology| technology.to_string()),
    }
}

pub(crate) fn writers(writers: &Writers) -> WritersStatus {
    WritersStatus {
        users: writers.users().map(|(uid, reason)| (uid, reason.to_owned())).collect(),
        more: writers.crowd().map(str::to_owned),
    }
}

pub(crate) fn volume(
    pool: &Pool<Mapped>,
    volume: &Volume<Mapped>,
    clients: Option<u64>,
) -> VolumeStatus {
    let info = pool.volume_info(volume);
    let descriptor = volume.descriptor();
    VolumeStatus {
        name: info.name,
        kind: info.kind,
        uid: info.uid,
        size_bytes: info.size_bytes,
        used_bytes: info.used_bytes,
        log_bytes: info.log_bytes,
        lanes: descriptor.lanes,
        delta: word(&DELTA_WORDS, Delta::from_code(descriptor.delta)),
        checksum: word(&CHECKSUM_WORDS, Checksum::from_code(descriptor.checksum)),
        threshold_lines: descriptor.threshold_lines,
        checkpoint_lines: volume.checkpoint_lines(),
        epoch: info.completed_epoch,
        state: String::new(),
        damage: volume.damage().filter(|_| Kind::of(volume.kind()).is_ok()).map(str::to_owned),
        read_only: info.read_only,
        clients,
        clients_with_old_size: None,
        mounted_on: None,
        of_kind: None,
    }
}

pub(crate) fn check(report: CheckReport) -> CheckStatus {
    CheckStatus {
        clean: report.is_clean(),
        volumes: report.volumes as u64,
        used_blocks: report.used_blocks,
        free_blocks: report.free_blocks,
        problems: report.problems,
        remarks: report.remarks,
        health: health(report.health),
        leaked_bytes: report.leaked_blocks * BLOCK_U64,
    }
}

/// The answer about a volume that was deleted.
pub(crate) fn deleted(name: &str, deleted: DeletedVolume) -> Response {
    Response::Deleted(DeletedStatus {
        name: name.to_owned(),
        damage: deleted.damage,
        freed_bytes: deleted.freed_blocks * BLOCK_U64,
        leaked_bytes: deleted.leaked_blocks * BLOCK_U64,
    })
}

/// The health in the words of the protocol.
pub(crate) fn health(health: Health) -> HealthStatus {
    match health {
        Health::Clean => HealthStatus::Clean,
        Health::Degraded => HealthStatus::Degraded,
        Health::Damaged => HealthStatus::Damaged,
    }
}

/// Health of a pool that has this volume.
pub(crate) fn health_of(volume: &VolumeStatus) -> Health {
    match volume.state.as_str() {
        DAMAGED => Health::Damaged,
        state if state.starts_with("backing") => Health::Degraded,
        UNKNOWN_KIND => Health::Degraded,
        _ => Health::Clean,
    }
}

/// The state of a volume in a word or a few.
pub(crate) fn state(volume: &VolumeStatus, is_known: bool) -> String {
    let cache = volume.cache().map(|cache| cache.state.as_str());
    let state = match cache {
        _ if volume.damage.is_some() => DAMAGED,
        _ if !is_known => UNKNOWN_KIND,
        Some(state) if !["", "open", "closed"].contains(&state) => state,
        _ if volume.read_only.is_some() => "read-only",
        _ if volume.mounted_on.is_some() => "mounted",
        _ => "ok",
    };
    state.to_owned()
}

const DAMAGED: &str = "damaged";
const UNKNOWN_KIND: &str = "unknown kind";

pub(crate) fn scrub(report: ScrubReport, next: Option<u64>) -> ScrubPart {
    let problem = |finding: ScrubFinding| ScrubProblem {
        volume: finding.volume,
        structure: finding.structure,
        offset: finding.offset,
        pool_offset: finding.at.0,
        what: finding.what,
    };
    ScrubPart {
        health: health(Health::of_findings(&report.findings)),
        read_bytes: report.read_bytes,
        verified_blocks: report.verified_blocks,
        next,
        problems: report.findings.into_iter().map(problem).collect(),
    }
}

pub(crate) fn counters(counters: &Counters) -> MediumStats {
    MediumStats {
        bytes_stored: counters.bytes_stored,
        lines_stored: counters.lines_stored,
        lines_flushed: counters.lines_flushed,
        fences: counters.fences,
        modelled_ns: counters.modelled_ns,
    }
}

pub(crate) fn wear(wear: &Wear) -> WearStats {
    WearStats {
        frames: wear.frames,
        frames_written: wear.frames_written,
        lines: wear.lines,
        lines_most: wear.lines_most,
        frame_most: wear.frame_most.0,
        lines_p99: wear.lines_p99,
    }
}

pub(crate) fn checkpoints(volume: &Volume<Mapped>) -> CheckpointStats {
    CheckpointStats {
        name: volume.name().to_owned(),
        log_bytes: volume.log_bytes(),
        checkpoints: volume.checkpoints(),
        epoch: volume.completed_epoch(),
    }
}

pub(crate) fn server(address: String, stats: &everbyte_nbd::ServerStats) -> ServerStats {
    ServerStats {
        address,
        connections: stats.connections,
        connections_total: stats.connections_total,
        connections_dropped: stats.connections_dropped,
        requests: stats.requests,
        errors: stats.errors,
        flushes: stats.flushes,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
    }
}
