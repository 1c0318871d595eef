//! Replays the corpora: every interesting input so far, on any toolchain. Shows with the canary
//! that a failing target is noticed.

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
fn fs_image() {
    replay("fs_image");
}

#[test]
fn fs_operations() {
    replay("fs_operations");
}

/// Random inputs: `EVERBYTE_FUZZ_INPUTS` of them for each target of file systems, from the seed
/// `EVERBYTE_CRASH_SEED` on. A failure names its seed.
#[test]
fn random_inputs_of_file_systems() {
    let number = |variable: &str, otherwise: u64| {
        std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
    };
    let (count, first) = (number("EVERBYTE_FUZZ_INPUTS", 150), number("EVERBYTE_CRASH_SEED", 1));
    for (target, run) in TARGETS.iter().filter(|(name, _)| name.starts_with("fs_")) {
        for seed in first..first + count {
            let done = std::panic::catch_unwind(|| run(&random_bytes(seed)));
            assert!(done.is_ok(), "{target} fails with seed {seed}, see above");
        }
    }
}

/// Up to 400 bytes from a seed, by SplitMix64. Most are odd: a list continues after an odd byte.
fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let len = 40 + next() % 360;
    (0..len).map(|_| next().to_le_bytes()[0] | u8::from(next() % 8 > 0)).collect()
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
fn control_answers() {
    replay("control_answers");
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == "control_answers").unwrap();
    for seed in 1..=2000 {
        let done = std::panic::catch_unwind(|| run(&random_bytes(seed)));
        assert!(done.is_ok(), "control_answers fails with seed {seed}, see above");
    }
}

#[test]
fn lease() {
    replay("lease");
}

#[test]
fn swap_table() {
    replay("swap_table");
}

#[test]
fn vhost_messages() {
    replay("vhost_messages");
}

#[test]
fn vhost_ring() {
    replay("vhost_ring");
    for seed in 0..300 {
        everbyte_fuzz::vhost_ring(&random_bytes(seed));
    }
}

#[test]
fn config() {
    replay("config");
}

#[test]
fn metrics_request() {
    replay("metrics_request");
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
fn trace_detection() {
    replay("trace_detection");
}

#[test]
fn trace_fiu() {
    replay("trace_fiu");
}

#[test]
fn trace_kvcache() {
    replay("trace_kvcache");
}

#[test]
fn trace_lcs() {
    replay("trace_lcs");
}

/// Inputs of the corpus with bytes changed, cut and joined: `EVERBYTE_FUZZ_INPUTS` of them, from the seed
/// `EVERBYTE_CRASH_SEED` on.
#[test]
fn detection_of_changed_traces_is_refused_or_right() {
    let inputs: Vec<_> =
        corpus("trace_detection").iter().map(|path| std::fs::read(path).unwrap()).collect();
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == "trace_detection").unwrap();
    let number = |variable: &str, otherwise: u64| {
        std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
    };
    let (count, first) = (number("EVERBYTE_FUZZ_INPUTS", 3000), number("EVERBYTE_CRASH_SEED", 1));
    for seed in first..first + count {
        let random = random_bytes(seed);
        let pick = |place: usize, below: usize| {
            usize::from(random[place]) * 256 % below.max(1)
                + usize::from(random[place + 1]) % below.max(1)
        };
        let mut bytes = inputs[pick(0, inputs.len()) % inputs.len()].clone();
        for change in 0..1 + usize::from(random[2] / 2 % 3) {
            let at = pick(4 + change * 4, bytes.len()).min(bytes.len());
            let other = &inputs[pick(6 + change * 4, inputs.len()) % inputs.len()];
            match random[24 + change] / 2 % 6 {
                0 => bytes.truncate(at),
                1 => bytes.extend_from_slice(other),
                2 if at < bytes.len() => {
                    bytes[at] = b" ,\r\n\t0R+#"[usize::from(random[20] / 2) % 9]
                }
                3 => bytes.insert(at, b" ,\r\n\x005Wx;"[usize::from(random[21] / 2) % 9]),
                4 if at < bytes.len() => _ = bytes.remove(at),
                _ if at < bytes.len() => bytes[at] ^= random[22],
                _ => {}
            }
        }
        let done = std::panic::catch_unwind(|| run(&bytes));
        assert!(done.is_ok(), "seed {seed} fails with {:?}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn every_target_is_replayed_here() {
    let here = include_str!("corpora.rs");
    for (target, _) in TARGETS {
        assert!(here.contains(&format!("replay(\"{target}\")")), "{target} is not replayed");
    }
}

#[test]
fn canary_fails() {
    let mut failures = 0;
    for file in corpus("canary") {
        let planted = file.file_name().is_some_and(|name| name == "planted");
        let bytes = std::fs::read(&file).unwrap();
        let failed = std::panic::catch_unwind(|| canary(&bytes)).is_err();
        assert_eq!(failed, planted, "{}", file.display());
        failures += u32::from(failed);
    }
    assert_eq!(failures, 1, "the planted input is in the corpus");
}
