//! Replays the corpora: every input that ever was of interest, on any toolchain. And shows with
//! the canary that a target which fails is noticed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::path::PathBuf;

use everbyte_fuzz::{TARGETS, canary};

fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let files = corpus(target);
    assert!(!files.is_empty(), "there is no corpus of {target}");
    run(&[]);
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let done = std::panic::catch_unwind(|| run(&bytes));
        assert!(done.is_ok(), "{} fails, see above", file.display());
    }
}

#[test]
fn pool_image() {
    replay("pool_image");
}

#[test]
fn cache_volume() {
    replay("cache_volume");
}

#[test]
fn nbd_server() {
    replay("nbd_server");
}

#[test]
fn nbd_client() {
    replay("nbd_client");
}

#[test]
fn control() {
    replay("control");
}

#[test]
fn address() {
    replay("address");
}

#[test]
fn trace_any() {
    replay("trace_any");
}

#[test]
fn trace_csv() {
    replay("trace_csv");
}

#[test]
fn trace_vscsi1() {
    replay("trace_vscsi1");
}

#[test]
fn trace_vscsi2() {
    replay("trace_vscsi2");
}

#[test]
fn trace_msr() {
    replay("trace_msr");
}

#[test]
fn trace_blkparse() {
    replay("trace_blkparse");
}

#[test]
fn trace_fio() {
    replay("trace_fio");
}

#[test]
fn trace_spc() {
    replay("trace_spc");
}

#[test]
fn trace_disksim() {
    replay("trace_disksim");
}

#[test]
fn trace_oracle_general() {
    replay("trace_oracle_general");
}

#[test]
fn trace_mobibench() {
    replay("trace_mobibench");
}

#[test]
fn every_target_is_replayed_here() {
    let here = include_str!("corpora.rs");
    for (target, _) in TARGETS {
        assert!(here.contains(&format!("replay(\"{target}\")")), "{target} is not replayed");
    }
}

#[test]
fn the_canary_fails() {
    for file in corpus("canary") {
        let planted = file.file_name().is_some_and(|name| name == "planted");
        let bytes = std::fs::read(&file).unwrap();
        let failed = std::panic::catch_unwind(|| canary(&bytes)).is_err();
        assert_eq!(failed, planted, "{}", file.display());
    }
}
