//! The demonstration and its cleanup.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Outcome, everbyte};

#[test]
fn acknowledged_durable_writes_survive() {
    let report = Outcome::of(everbyte().args(["demo", "--json"]).env("PATH", "")).json();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["files"]["kind"], "FAT");
    assert_eq!(report["files"]["after_crash"]["checked"], true);
    assert_eq!(report["crash"]["clean_after_kill"], false);
    assert_eq!(report["crash"]["found"]["torn"], 0);
    assert_eq!(report["crash"]["found"]["lost"], 0);
    assert!(report["crash"]["found"]["durable"].as_u64().unwrap() > 0);
    assert!(report["crash"]["counts"]["flushes"].as_u64().unwrap() > 0);
    assert!(report["crash"]["counts"]["with_fua"].as_u64().unwrap() > 0);
    assert_eq!(report["check"]["clean"], true);
    assert_eq!(report["throughput"].as_array().unwrap().len(), 3);
}

#[test]
fn interrupted_demo_leaves_nothing() {
    let mut demo = everbyte().arg("demo").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let server: u32 = lines
        .find_map(|line| line.unwrap().split_once("(process ")?.1.split(')').next()?.parse().ok())
        .unwrap();
    let process = PathBuf::from(format!("/proc/{server}"));
    let arguments = fs::read_to_string(process.join("cmdline")).unwrap();
    let pool = arguments.split('\0').find(|word| word.contains("everbyte-demo-")).unwrap();
    let folder = Path::new(pool).parent().unwrap();
    assert!(folder.exists());
    let pid = Pid::from_raw(demo.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    assert!(!folder.exists() && !process.exists());
}
