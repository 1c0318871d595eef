//! `everbyte sim info`: formats, their reasons, and rejected traces.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::{Outcome, Place, everbyte};

fn put(place: &Place, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = place.folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

const FIU: &str = "0 4892 syslogd 904265560 8 W 6 0 531e\n29988 2377 kjournald 926858672 8 W 6 0 a1a0\n\
                   50001 5001 nfsd 926858680 16 R 6 0 a1a0\n";

#[test]
fn info_names_reason_and_skipped_parts() {
    let place = Place::empty();
    put(&place, "fiu.txt", format!("# made up\n\n{FIU}# end\n"));
    let info = &place.run("sim info FOLDER/fiu.txt --json").json()[0];
    assert_eq!(
        (&info["format"], &info["reads"], &info["writes"]),
        (&json!("fiu"), &json!(1), &json!(2))
    );
    assert_eq!((&info["read_bytes"], &info["written_bytes"]), (&json!(8192), &json!(8192)));
    assert_eq!(info["skipped"], json!({"comments": 2, "empty_lines": 1}));
    assert_eq!(info["skipped_total"], 3);
    assert_eq!(info["format_reason"], "it alone of the known formats fits all 3 sampled lines");
    let text = place.run("sim info FOLDER/fiu.txt").good();
    assert!(text.contains("  format     fiu: it alone"), "{text}");
    assert!(text.contains("  skipped    2 comments, 1 empty lines"), "{text}");
    let columns = "--columns time_ns,-,-,offset_sectors,len_sectors,op,-,file,-";
    let info = &place.run(&format!("sim info FOLDER/fiu.txt --json {columns}")).json()[0];
    assert_eq!(
        (&info["requests"], &info["format_reason"]),
        (&json!(3), &json!("named by the caller"))
    );
}

#[test]
fn compressed_traces_are_read() {
    let place = Place::empty();
    let (first, second) = FIU.split_at(50);
    let packed = [gzip(first), gzip(""), gzip(second)].concat();
    let path = put(&place, "trace.without-a-name", &packed);
    let from_file = &place.run("sim info FOLDER/trace.without-a-name --json").json()[0];
    let mut piped = everbyte();
    piped.args(["sim", "info", "-", "--json"]).stdin(fs::File::open(path).unwrap());
    let piped = &Outcome::of(&mut piped).json()[0];
    for info in [from_file, piped] {
        assert_eq!(info["requests"], 3);
    }
    put(&place, "cut.gz", &packed[..packed.len() - 9]);
    place.run("sim info FOLDER/cut.gz").failed(1, &["cut.gz", "the gzip data", "byte"]);
    put(&place, "a.bz2", b"BZh91AY&SY\x01\x02\x03\x04");
    place
        .run("sim info FOLDER/a.bz2")
        .failed(1, &["a.bz2", "bzip2", "bzip2 -dc FILE | everbyte sim"]);
    put(&place, "sda.blktrace.0", b"\x07\x74\x61\x65\x01\0\0\0\0\0\0\0");
    place
        .run("sim info FOLDER/sda.blktrace.0")
        .failed(1, &["recording of blktrace", "blkparse -i"]);
}

#[test]
fn ambiguous_traces_are_refused() {
    let place = Place::empty();
    put(&place, "both.csv", "1,R,4096,8192,100\n1,W,8192,4096,250\n");
    let columns = "--columns file,op,offset,len,time_us";
    let words = ["several formats: csv, alibaba", "--format csv", "--format alibaba", columns];
    place.run("sim info FOLDER/both.csv").failed(1, &words);
    let info = &place.run("sim info FOLDER/both.csv --format alibaba --json").json()[0];
    assert_eq!((&info["read_bytes"], &info["written_bytes"]), (&json!(8192), &json!(4096)));
    put(&place, "cbs.csv", "1538323200,800,8,0,1063\n");
    let words = ["none of the known formats", "tencent is possible", "--format tencent"];
    place.run("sim info FOLDER/cbs.csv").failed(1, &words);
    put(&place, "none.txt", "100 200 reading 3 4096\n");
    place
        .run("sim info FOLDER/none.txt")
        .failed(1, &["none of the known", "--columns", "traces.md"]);
    put(&place, "empty.txt", "# nothing\n*\n");
    place.run("sim info FOLDER/empty.txt").failed(1, &["none of the known"]);
    put(&place, "sockets.txt", "100 200 read 3 4096\n");
    place
        .run("sim info FOLDER/sockets.txt")
        .failed(1, &["neither reads nor writes", "1 calls without"]);
    place.run("sim FOLDER/sockets.txt").failed(1, &["neither reads nor writes", "1 calls without"]);
}

#[test]
fn large_objects_follow_the_limit() {
    let place = Place::empty();
    let record = |object: u64, size: u32| {
        let (time, next) = (1_u32.to_le_bytes(), (-1_i64).to_le_bytes());
        [&time[..], &object.to_le_bytes(), &size.to_le_bytes(), &next].concat()
    };
    put(&place, "og.bin", [record(5, 4096), record(6, 20 << 20), record(5, 4096)].concat());
    for limit in ["", "--request-max 1G"] {
        let info =
            &place.run(&format!("sim info FOLDER/og.bin --assume-reads {limit} --json")).json()[0];
        assert_eq!((&info["requests"], &info["footprint_pages"]), (&json!(5122), &json!(5121)));
    }
    let line = "FOLDER/og.bin --assume-reads --request-max 1M";
    let info = &place.run(&format!("sim info {line} --json")).json()[0];
    assert_eq!(info["skipped"], json!({"objects_over_the_limit": 1}));
    let outcome = place.run(&format!("sim {line} --policy lru --size 8K"));
    assert!(outcome.status == 0 && outcome.err.contains("note: "), "{outcome:?}");
    assert!(outcome.err.contains("1 requests for objects"), "{outcome:?}");
}
