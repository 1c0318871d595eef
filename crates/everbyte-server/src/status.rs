//! Pools and volumes in the words of the control protocol. The JSON output has the same words.

use std::time::Duration;

use everbyte::block::{Checksum, Delta};
use everbyte::cache::{ActionCount, CacheStats, CacheStatus, PAGE_BYTES};
use everbyte::pool::{CheckReport, DeletedVolume, Health, ScrubFinding, ScrubReport};
use everbyte::swap::{LenderStatus, RUN_BYTES};
use everbyte_control::{
    CheckStatus, CheckpointStats, ClientStatus, DeletedStatus, HealthStatus, KindStatus,
    MediumStats, MediumStatus, Response, ScrubPart, ScrubProblem, ServerStats, SwapStatus,
    VolumeStatus, WearStats, WritersStatus,
};
use everbyte_device::connection::ConnectionInfo;
use everbyte_media::{BLOCK_U64, Counters, Description, Mapped, Wear, Writers};
use everbyte_nbd::Server;

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
    volume: &everbyte_pool::Volume<Mapped>,
    found: everbyte::volume::VolumeStatus,
    clients: Option<u64>,
) -> VolumeStatus {
    let state = found.state().to_string();
    let swap = found.swap.map(|LenderStatus { lent, pids, .. }| {
        KindStatus::Swap(SwapStatus { lent_bytes: lent * RUN_BYTES, pids })
    });
    let cache = found.cache.as_ref().map(|found| KindStatus::Cache(Box::new(cache(found))));
    let (info, descriptor) = (found.info, volume.descriptor());
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
        state,
        damage: found.damage,
        read_only: info.read_only,
        clients,
        clients_with_old_size: None,
        mounted_on: None,
        of_kind: cache.or(swap),
    }
}

fn cache(found: &CacheStatus) -> everbyte_control::CacheStatus {
    let (settings, stats) = (&found.settings, &found.stats);
    let reason = |found: &ActionCount| (format!("{}/{}", found.action, found.reason), found.count);
    everbyte_control::CacheStatus {
        state: found.state.to_string(),
        reason: found.reason.clone(),
        backing: settings.backing.name.clone(),
        backing_bytes: settings.backing_bytes,
        dram_bytes: settings.dram_bytes,
        scm_bytes: settings.scm_bytes,
        mode: settings.mode.to_string(),
        policy: settings.policy.to_string(),
        cached_bytes: stats.pages * PAGE_BYTES,
        dirty_bytes: stats.dirty_pages * PAGE_BYTES,
        hit_permille: stats.hit_permille(),
        // Zeroes of a closed cache would look like counts.
        counts: if found.has_counts { counts(stats) } else { [].into() },
        reasons: stats.actions.iter().map(reason).collect(),
    }
}

fn counts(stats: &CacheStats) -> std::collections::BTreeMap<String, u64> {
    let counts = [
        ("hits_dram", stats.hits_dram),
        ("hits_scm", stats.hits_scm),
        ("hits_dropped", stats.hits_dropped),
        ("misses", stats.misses),
        ("fetched_pages", stats.fetched_pages),
        ("fetches", stats.fetches),
        ("scm_bytes_in_place", stats.scm_bytes_in_place),
        ("scm_bytes_moved", stats.scm_bytes_moved),
        ("scm_bytes_persisted", stats.scm_bytes_persisted),
        ("written_back_pages", stats.written_back_pages),
        ("write_back_runs", stats.write_back_runs),
        ("bypass_write_bytes", stats.bypass_write_bytes),
        ("bypass_zero_bytes", stats.bypass_zero_bytes),
        ("backing_errors", stats.backing_errors),
        ("scm_errors", stats.scm_errors),
        ("pending_pages", stats.pending_pages),
        ("unproven_pages", stats.unproven_pages),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into()
}

pub(crate) fn check(report: CheckReport) -> Response {
    Response::Check(CheckStatus {
        clean: report.is_clean(),
        volumes: report.volumes as u64,
        used_blocks: report.used_blocks,
        free_blocks: report.free_blocks,
        problems: report.problems,
        remarks: report.remarks,
        health: health(report.health),
        leaked_bytes: report.leaked_blocks * BLOCK_U64,
    })
}

/// The answer about a deleted volume.
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

/// Health of a pool with this volume.
pub(crate) fn health_of(volume: &VolumeStatus) -> Health {
    match volume.state.as_str() {
        "damaged" => Health::Damaged,
        state if state.starts_with("backing") || state == "unknown kind" => Health::Degraded,
        _ => Health::Clean,
    }
}

pub(crate) fn scrub(report: ScrubReport, next: Option<u64>) -> Response {
    let problem = |finding: ScrubFinding| {
        let ScrubFinding { volume, structure, offset, at, what } = finding;
        ScrubProblem { volume, structure, offset, pool_offset: at.0, what }
    };
    let health = health(Health::of_findings(&report.findings));
    let ScrubReport { read_bytes, verified_blocks, findings } = report;
    let problems = findings.into_iter().map(problem).collect();
    Response::Scrub(ScrubPart { read_bytes, verified_blocks, health, next, problems })
}

pub(crate) fn counters(counters: Counters) -> MediumStats {
    let Counters { bytes_stored, lines_stored, lines_flushed, fences, modelled_ns } = counters;
    MediumStats { bytes_stored, lines_stored, lines_flushed, fences, modelled_ns }
}

pub(crate) fn wear(wear: Wear) -> WearStats {
    let Wear { frames, frames_written, lines, lines_most, frame_most, lines_p99 } = wear;
    let frame_most = frame_most.0;
    WearStats { frames, frames_written, lines, lines_most, frame_most, lines_p99 }
}

pub(crate) fn checkpoints(volume: &everbyte_pool::Volume<Mapped>) -> CheckpointStats {
    CheckpointStats {
        name: volume.name().to_owned(),
        log_bytes: volume.log_bytes(),
        checkpoints: volume.checkpoints(),
        epoch: volume.completed_epoch(),
    }
}

pub(crate) fn server(server: &Server) -> ServerStats {
    let stats = server.stats();
    ServerStats {
        address: server.address().to_string(),
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

/// The status of a connection to `server`.
pub(crate) fn client(address: String, connection: ConnectionInfo) -> ClientStatus {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let ConnectionInfo { id, peer, export, requests, read_bytes, written_bytes, .. } = connection;
    let (age_ms, idle_ms) = (ms(connection.age), ms(connection.idle));
    ClientStatus { id, peer, address, export, age_ms, idle_ms, requests, read_bytes, written_bytes }
}
