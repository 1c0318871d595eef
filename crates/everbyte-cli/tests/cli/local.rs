//! Commands on an unserved pool.

use std::fs::{self, File};

use everbyte_device::Fua;

use crate::{Place, everbyte};

#[test]
fn pools_and_volumes_have_life_cycles() {
    let place = Place::empty();
    let made = place.run("pool create POOL --size 16M --volumes-max 8 --json").json();
    assert_eq!(made["size_bytes"], 16 << 20);
    assert_eq!(made["volumes_max"], 8);

    let made = place
        .run("volume create POOL a --size 4M -o delta=on,threshold=25,log-size=1M,lanes=2 --json");
    let made = made.json();
    for (key, value) in [("name", "a"), ("kind", "block"), ("delta", "on")] {
        assert_eq!(made[key], value);
    }
    for (key, value) in
        [("size_bytes", 4 << 20), ("log_bytes", 1 << 20), ("lanes", 2), ("threshold_lines", 16)]
    {
        assert_eq!(made[key], value, "{key}");
    }
    let said = place.run("volume create POOL b --size 64M").good();
    assert!(said.contains("created block volume b of 64 MiB"), "{said}");

    let info = place.info();
    assert_eq!(info["clean"], true);
    assert_eq!(
        info["survives"],
        if place.pool.starts_with("/dev/shm") { "process" } else { "power" }
    );
    assert_eq!(info["provisioned_bytes"], (64 << 20) + (4 << 20));
    assert_eq!(info["volumes"].as_array().unwrap().len(), 2);
    assert_eq!(info["serving"], serde_json::Value::Null);
    assert_eq!(info["uid"].as_str().unwrap().len(), 32);
    let sum = info["used_bytes"].as_u64().unwrap() + info["free_bytes"].as_u64().unwrap();
    assert_eq!(sum, (16 << 20) - (2 + 8) * 4096);

    let check = place.run("pool check POOL --json").json();
    assert_eq!(check["clean"], true);
    assert_eq!(check["volumes"], 2);

    place.run("volume resize POOL a --size 6M").good();
    place.run("volume delete POOL b").good();
    place.run("pool grow POOL --size 20M").good();
    let list = place.run("volume list POOL --json").json();
    assert_eq!(list["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(list["volumes"][0]["size_bytes"], 6 << 20);
    assert_eq!(place.info()["size_bytes"], 20 << 20);
    assert!(place.run("volume list POOL").good().contains("PROVISIONED"));
    assert!(place.run("pool info POOL").good().contains("clean      yes"));
    assert!(place.run("pool info POOL --stats").good().contains("fences"));
    assert!(place.run("pool check POOL").good().starts_with("clean: 1 volumes"));
}

#[test]
fn looking_changes_nothing() {
    let place = Place::with_disk();
    let before = place.bytes();
    for command in ["pool info POOL", "pool check POOL", "volume list POOL"] {
        place.run(command).good();
        assert!(place.bytes() == before, "{command}");
    }
}

#[test]
fn bad_usage_is_status_2() {
    let place = Place::empty();
    place.run("pool create POOL --size 12Q").failed(2, &["12Q", "K, M, G or T"]);
    place.run("pool create POOL --size -5").failed(2, &["-5"]);
    place.run("pool create POOL --size 1M --volumes-max 0").failed(2, &["volumes-max"]);
    place.run("pool frobnicate POOL").failed(2, &["frobnicate"]);
    place.run("serve POOL --nbd http://x").failed(2, &["unix:PATH, tcp:HOST:PORT"]);
    place.run("serve POOL --nbd tcp:1 --emulate flash").failed(2, &["stt-mram", "reram"]);
    place.run("serve POOL --nbd tcp:1 --checkpoint-interval 0s").failed(2, &["out of range"]);
    place.run("serve POOL --nbd tcp:1 --checkpoint-interval 5").failed(2, &["unit", "5s"]);
    place.run("volume create POOL v --size 1M --kind tape").failed(2, &["block", "fs"]);
    place.run("volume create POOL v --size 1M -o threshold=102").failed(2, &["102"]);
    place.run("").failed(2, &["Usage"]);
    assert!(!place.pool.exists());
}

#[test]
fn missing_options_are_listed_at_once() {
    let place = Place::empty();
    let create = |arguments: &str| place.run(&format!("volume create POOL v {arguments}"));
    create("").failed(2, &["--size"]);
    create("--kind block").failed(2, &["--size"]);
    create("--kind cache").failed(2, &["--backing", "--scm"]);
    create("--kind cache --size 1G").failed(2, &["--backing", "--scm", "without --size"]);
    create("--kind cache --scm 8M").failed(2, &["--backing"]);
    create("--kind cache --backing /dev/null --scm 8M --size 1G").failed(2, &["without --size"]);
    create("--backing /dev/null --scm 8M").failed(2, &["--kind cache"]);
    create("--size 1M --dram 8M").failed(2, &["--kind cache"]);
    create("--size 1M --mode write-through").failed(2, &["--mode", "--kind cache"]);
    create("--size 1M -o small-write=4096").failed(2, &["-o small-write", "--kind cache"]);
    place.run("volume resize POOL v --force").failed(2, &["--size"]);
    create("--kind block --size 1M --scm 8M").failed(2, &["--scm", "caches"]);
    for text in ["nbd+unix:/tmp/sock", "nbd:host/disk", "http://host/disk"] {
        let outcome = create(&format!("--kind cache --scm 8M --backing {text}"));
        assert!(!outcome.err.contains("truncate"), "{outcome:?}");
        outcome.failed(2, &["nbd://HOST:PORT/EXPORT", "nbd+unix:///EXPORT?socket=PATH"]);
        place.run(&format!("volume attach POOL v --backing {text}")).failed(2, &["nbd+unix:///"]);
    }
}

#[test]
fn small_cache_has_a_page_of_dram() {
    let place = Place::with_disk();
    fs::write(place.folder.path().join("slow"), vec![0; 1 << 20]).unwrap();
    let create = "volume create POOL fast --kind cache --backing FOLDER/slow --json --scm";
    let made = place.run(&format!("{create} 4K")).json();
    assert_eq!(made["cache"]["dram_bytes"], 4096);
    place.run("volume delete POOL fast").good();
    assert_eq!(place.run(&format!("{create} 64K")).json()["cache"]["dram_bytes"], 5 * 4096);
}

#[test]
fn sizes_have_the_units_of_the_field() {
    let place = Place::empty();
    place.run("pool create POOL --size 16MiB").good();
    let sizes = [("1.5M", 1_572_864), ("2MB", 2 << 20), ("0.5GiB", 512 << 20), ("1t", 1_u64 << 40)];
    for (text, bytes) in sizes {
        let made = place.run(&format!("volume create POOL v --size {text} -o log-size=1M --json"));
        assert_eq!(made.json()["size_bytes"], bytes, "{text}");
        place.run("volume delete POOL v").good();
    }
    place.run("volume create POOL v --size 0.3K").failed(2, &["0.3K", "whole number of bytes"]);
}

#[test]
fn written_volume_shrinks_by_option_only() {
    let place = Place::with_disk();
    place.run("volume resize POOL disk --size 6M").good();
    let server = place.serve("POOL", "");
    let mut client = place.client("disk");
    client.write(1 << 20, &[7; 4096], Fua::No).unwrap();
    client.flush().unwrap();
    let words = ["6 MiB", "512 B", "--shrink", "disk"];
    place.run("volume resize POOL disk --size 512").failed(1, &words);
    drop(client);
    server.stop();
    place.run("volume resize POOL disk --size 512").failed(1, &words);
    assert_eq!(place.info()["volumes"][0]["size_bytes"], 6 << 20);
    place.run("volume resize POOL disk --size 7M").good();
    place.run("volume resize POOL disk --size 2M --shrink").good();
    assert_eq!(place.info()["volumes"][0]["size_bytes"], 2 << 20);
}

#[test]
fn non_pool_is_reported_once() {
    let place = Place::empty();
    let passwd = place.run("pool info /etc/passwd");
    assert_eq!(passwd.err.matches("/etc/passwd").count(), 1, "{passwd:?}");
    passwd.failed(1, &["is no pool"]);
    place.run("pool info FOLDER").failed(1, &["is no pool"]);
    // An error with a cause. The error contains the words of the cause.
    fs::write(&place.pool, [7; 8192]).unwrap();
    let garbage = place.run("pool info POOL");
    assert_eq!(garbage.err.matches("this is no pool").count(), 1, "{garbage:?}");
}

#[test]
fn errors_name_object_place_and_remedy() {
    let place = Place::empty();
    let path = place.pool.to_str().unwrap().to_owned();
    for command in [
        "pool info POOL",
        "pool grow POOL --size 1M",
        "volume list POOL",
        "serve POOL/v --nbd tcp:0",
    ] {
        place.run(command).failed(1, &["there is no pool at", &path, "pool create"]);
    }
    place.run("pool create POOL").failed(1, &["pass --size"]);
    place.run("pool create POOL --size 5000").failed(1, &["multiple of 4096"]);
    place.run("pool create POOL --size 8K").failed(1, &["needs at least"]);
    place.run("pool create FOLDER/no/pool --size 1M").failed(1, &["no/pool"]);
    assert!(!place.pool.exists());

    place.run("pool create POOL --size 8M --volumes-max 2").good();
    place.run("pool create POOL --size 8M").failed(1, &[&path, "exists already", "--force"]);
    place.run("pool create POOL --size 4M --volumes-max 2 --force").good();
    place.run("pool grow POOL --size 2M").failed(1, &["can only grow", "4 MiB"]);
    place.run("pool grow POOL --size 4098K").failed(1, &["multiple of 4096"]);
    place.run("volume create POOL .x --size 1M").failed(1, &["\".x\" is no volume name"]);
    place.run("volume create POOL x --size 1000").failed(1, &["multiple of 512"]);
    place.run("volume create POOL x --size 1M -o log-size=1G").failed(1, &["no room for"]);
    place.run("volume create POOL x --size 1M -o lanes=1,log-size=64K").good();
    place.run("volume create POOL x --size 1M").failed(1, &["\"x\" exists already"]);
    place.run("volume create POOL y --size 1M -o lanes=1,log-size=64K").good();
    place.run("volume create POOL z --size 1M -o lanes=1,log-size=64K").failed(1, &["everbyte: "]);
    place.run("volume delete POOL z").failed(1, &["\"z\"", "volume list"]);
    place.run("volume resize POOL z --size 1M").failed(1, &["\"z\""]);
    place.run("volume resize POOL x --size 0").failed(1, &["multiple of 512"]);
    place.run("volume resize POOL x --size 1000").failed(1, &["multiple of 512"]);
    place.run("serve POOL/z --nbd tcp:0").failed(1, &["\"z\""]);
    assert_eq!(place.info()["clean"], true, "a failed change leaves a clean pool");
}

#[test]
fn foreign_files_are_left_unchanged() {
    let place = Place::empty();
    for (bytes, words) in
        [(vec![], "0 bytes"), (vec![7; 5000], "5000 bytes"), (vec![7; 8192], "is no pool")]
    {
        fs::write(&place.pool, &bytes).unwrap();
        for command in
            ["pool info POOL", "volume create POOL v --size 1M", "serve POOL --nbd tcp:0"]
        {
            place.run(command).failed(1, &[words, place.pool.to_str().unwrap()]);
        }
        assert_eq!(place.bytes(), bytes);
    }
    let place = Place::with_disk();
    File::options().write(true).open(&place.pool).unwrap().set_len(16 << 20).unwrap();
    place.run("pool info POOL").failed(1, &["truncated", "33554432"]);
}

#[test]
fn check_finds_damage() {
    let place = Place::with_disk();
    let good = place.bytes();
    // One superblock is repaired from the other. This deserves a remark.
    let mut bytes = good.clone();
    bytes[20] ^= 1;
    fs::write(&place.pool, bytes).unwrap();
    let one = place.run("pool check POOL --json");
    assert_eq!(one.status, 1);
    let report: serde_json::Value = serde_json::from_str(&one.out).unwrap();
    assert_eq!(report["health"], "degraded");
    assert!(report["remarks"][0].as_str().unwrap().contains("superblock at 0x0"), "{report}");
    assert_eq!(place.info()["remarks"], report["remarks"]);
    // With both gone there is nothing to open.
    let mut bytes = good.clone();
    bytes[20] ^= 1;
    bytes[4096 + 20] ^= 1;
    fs::write(&place.pool, bytes).unwrap();
    let both = place.run("pool check POOL --json");
    assert_eq!(both.status, 1);
    let report: serde_json::Value = serde_json::from_str(&both.out).unwrap();
    assert_eq!(report["clean"], false);
    assert!(report["problems"][0].as_str().unwrap().contains("superblock"), "{report}");
    fs::write(&place.pool, &good).unwrap();
    place.run("pool check POOL").good();
}

#[test]
fn help_completions_and_manual_pages() {
    let place = Place::empty();
    let help = place.run("--help").good();
    assert!(help.contains("Quick start") && help.contains("Exit status"), "{help}");
    for command in ["pool create", "pool check", "volume create", "serve", "demo"] {
        let help = place.run(&format!("{command} --help")).good();
        let serves = help.lines().filter(|line| line.contains("everbyte serve /"));
        for line in serves {
            let has_face = line.contains("--nbd") || line.contains("--vhost");
            assert!(has_face, "the example is refused: {line}");
        }
        assert!(help.contains("Exit status") || help.contains("Examples:"), "{help}");
    }
    assert!(place.run("completions bash").good().contains("_everbyte"));
    assert!(place.run("man").good().contains(".TH"));
    place.run("man --dir FOLDER/man").good();
    for page in ["everbyte.1", "everbyte-pool-create.1", "everbyte-serve.1"] {
        let page = fs::read_to_string(place.folder.path().join("man").join(page)).unwrap();
        assert!(page.contains(".SH"), "{page}");
    }
}

#[test]
fn closed_pipe_is_not_a_crash() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = everbyte().arg("man").stdout(writer).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(141));
}

#[test]
fn hint_is_on_its_own_line() {
    let place = Place::with_disk();
    for (command, hint) in [
        ("volume delete POOL none", "'everbyte volume list'"),
        ("pool create POOL --size 32M", "--force"),
    ] {
        let outcome = place.run(command);
        let lines: Vec<_> = outcome.err.lines().collect();
        let [error, advice] = lines[..] else { panic!("{outcome:?}") };
        assert!(error.starts_with("everbyte: ") && !error.contains(hint), "{outcome:?}");
        assert!(advice.starts_with("hint: ") && advice.contains(hint), "{outcome:?}");
    }
}

#[test]
fn volume_shows_checkpoint_lines() {
    let place = Place::empty();
    place.run("pool create POOL --size 64M").good();
    let lines = |create: &str| place.run(create).json()["checkpoint_lines"].clone();
    let named = "volume create POOL named --size 1M --json -o checkpoint-lines=4096";
    assert_eq!(lines(named), 4096);
    assert_eq!(lines("volume create POOL usual --size 1M --json"), 65536);
    let server = place.serve("POOL", "");
    assert_eq!(lines(&named.replace("named", "served").replace("4096", "1")), 1);
    fs::write(place.folder.path().join("backing"), [0; 1 << 20]).unwrap();
    let cache = "volume create POOL cache --kind cache --backing FOLDER/backing --scm 256K --json";
    assert_eq!(lines(&format!("{cache} -o checkpoint-lines=300")), 300);
    for listed in [place.run("volume list POOL --json").json(), place.info()] {
        let found = listed["volumes"].as_array().unwrap().iter();
        let found: Vec<_> = found.map(|volume| volume["checkpoint_lines"].clone()).collect();
        assert_eq!(found, [300, 4096, 1, 65536]);
    }
    server.stop();
    place.run("volume create POOL x --size 1M -o checkpoint-lines=0").failed(2, &["1.."]);
}

#[test]
fn pool_deletion_needs_force_and_no_server() {
    let place = Place::with_disk();
    let before = place.bytes();
    let said = ["has volumes: disk (block of 8 MiB)", "--force"];
    place.run("pool delete POOL").failed(1, &said);
    assert_eq!(place.bytes(), before);
    let server = place.serve("POOL", "");
    place.run("pool delete POOL --force").failed(1, &["is being served by process"]);
    server.stop();
    let socket = place.pool.with_file_name("pool.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap()); // as kill -9 leaves it
    std::os::unix::fs::symlink(&place.pool, place.folder.path().join("link")).unwrap();
    let deleted = place.run("pool delete FOLDER/link --force --json").json();
    assert_eq!(deleted["volumes"], serde_json::json!(["disk"]));
    assert!(!place.pool.exists() && !socket.exists());
    place.run("pool create POOL --size 4M").good();
    assert!(place.run("pool delete POOL").good().starts_with("deleted pool"));
    place.run("pool delete POOL").failed(1, &["there is no pool"]);
    place.run("pool create POOL --size 32M").good();
    place.run("volume create POOL disk --size 8M").good();
    let mut damaged = place.bytes();
    damaged[2 * 4096..8 * 4096].fill(0xa5);
    fs::write(&place.pool, &damaged).unwrap();
    place.run("pool delete POOL").failed(1, &["is damaged", "--force"]);
    assert_eq!(place.bytes(), damaged);
    fs::write(&place.pool, [1; 8192]).unwrap();
    place.run("pool delete POOL --force").failed(1, &["this is no pool"]);
    assert!(place.pool.exists());
}
