//! Every format as it is found in the world, and every way in which a trace can be wrong.

use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

mod compression;
mod detection;
mod public_formats;

/// A request, short: time in ns, operation, file, offset, length.
type Row = (u64, RequestOp, &'static str, u64, u64);

use RequestOp::{Flush, Read, Trim, Write as Put, Zero};

fn reader(bytes: &[u8], options: &ReadOptions) -> Result<TraceReader, TraceError> {
    TraceReader::new("trace", std::io::Cursor::new(bytes.to_vec()), options)
}

fn requests_of(reader: &mut TraceReader) -> usize {
    reader.collect::<Result<Vec<_>, _>>().unwrap().len()
}

fn forced(format: Format) -> ReadOptions {
    ReadOptions { format: Some(format), assume_reads: true, ..ReadOptions::default() }
}

/// Expects that `bytes` are found to be of `format` and say `rows`, compressed as well.
fn expect(format: Format, bytes: &[u8], rows: &[Row]) {
    let compressed = zstd::encode_all(bytes, 3).unwrap();
    for bytes in [bytes, &compressed] {
        let options = ReadOptions { assume_reads: true, ..ReadOptions::default() };
        let mut reader = reader(bytes, &options).unwrap();
        assert_eq!(reader.format(), format);
        let requests: Vec<_> = reader.by_ref().map(|request| request.unwrap()).collect();
        let found: Vec<_> = requests
            .iter()
            .map(|r| (r.time_ns, r.op, reader.files().name(r.file).unwrap(), r.offset, r.len))
            .collect();
        assert_eq!(found, rows, "{format}");
    }
}

/// Expects that reading `bytes` fails with a message containing all of `words`.
fn refuse(format: Format, bytes: impl AsRef<[u8]>, words: &[&str]) {
    let read = reader(bytes.as_ref(), &forced(format))
        .and_then(|reader| reader.collect::<Result<Vec<_>, _>>());
    let error = read.expect_err("a wrong trace was read").to_string();
    for word in words {
        assert!(error.contains(word), "{word:?} is not in {error:?}");
    }
}

fn vscsi_v1(command: u8, len: u32, block: u64, time_us: u64) -> Vec<u8> {
    let mut record = vec![0; 32];
    record[4..8].copy_from_slice(&len.to_le_bytes());
    record[12] = command;
    record[15] = 1;
    record[16..24].copy_from_slice(&block.to_le_bytes());
    record[24..32].copy_from_slice(&time_us.to_le_bytes());
    record
}

fn vscsi_v2(command: u8, len: u32, block: u64, time_us: u64) -> Vec<u8> {
    let mut record = vec![0; 40];
    record[0] = command;
    record[3] = 2;
    record[8..12].copy_from_slice(&len.to_le_bytes());
    record[16..24].copy_from_slice(&block.to_le_bytes());
    record[24..32].copy_from_slice(&time_us.to_le_bytes());
    record
}

fn oracle(time_s: u32, object: u64, size: u32) -> Vec<u8> {
    let mut record = time_s.to_le_bytes().to_vec();
    record.extend(object.to_le_bytes());
    record.extend(size.to_le_bytes());
    record.extend((-1_i64).to_le_bytes());
    record
}

#[test]
fn our_own_format() {
    let rows = [
        (0, Read, "a b", 1, 2),
        (5, Put, "disk", 4096, 512),
        (5, Flush, "disk", 0, 0),
        (6, Trim, "disk", 0, 1 << 40),
        (7, Zero, "disk", 512, 0),
    ];
    let text = "0,R,a b,1,2\n5,W,disk,4096,512\r\n5,F,disk,0,0\n\n6,T,disk,0,1099511627776\n7,Z,disk,512,0";
    expect(Format::Csv, text.as_bytes(), &rows);
    expect(Format::Csv, format!("time_ns,op,file,offset,len\n{text}").as_bytes(), &rows);
    let long = "x".repeat(70_000);
    for (line, word) in [
        ("0,X,a,0,1", "operation is \"X\""),
        ("0,R,a,0", "length is missing"),
        ("0,R,a,0,1,9", "five fields"),
        ("0,R,a,-4096,1", "offset is negative: -4096"),
        ("0,R,a,0,-1", "length is negative"),
        ("0,R,a,99999999999999999999,1", "offset is too large"),
        ("0,R,a,18446744073709551615,1", "beyond the largest offset"),
        ("0,R,a,9223372036854775807,1", "beyond the largest offset"),
        ("0,W,a,0,1073741825", "limit of 1073741824 bytes"),
        ("soon,R,a,0,1", "time is \"soon\""),
        (&long, "longer than 65536 bytes"),
    ] {
        refuse(Format::Csv, format!("0,R,a,0,1\n{line}\n"), &["trace, line 2: ", word]);
    }
    refuse(Format::Csv, b"0,R,\xFF\xFE,0,1\n", &["line 1", "no UTF-8"]);
}

#[test]
fn written_trace_reads_back() {
    let mut writer = CsvWriter::new(Vec::new()).unwrap();
    let request = Request { time_ns: 7, op: Zero, file: 9, offset: 1, len: 2 };
    writer.write(&request, "a,b\nc%").unwrap();
    writer.write(&request, "\u{3000}é\u{A0}").unwrap();
    let text = writer.finish().unwrap();
    let rows = ["a%2Cb%0Ac%25", "%E3%80%80é%C2%A0"].map(|name| (7, Zero, name, 1, 2));
    expect(Format::Csv, &text, &rows);
}

#[test]
fn vscsi_of_both_versions() {
    let rows = [(9000, Read, "disk", 1024, 4096), (10_000, Put, "disk", 1536, 512)];
    let record = |make: fn(u8, u32, u64, u64) -> Vec<u8>| {
        let others = [make(0x93, 512, 9, 11), make(0x41, 512, 9, 11), make(0x42, 24, 0, 12)];
        let first = [make(0x28, 4096, 2, 9), make(0x12, 36, 0, 9), make(0x8A, 512, 3, 10)];
        [first, others].concat().concat()
    };
    expect(Format::VscsiV1, &record(vscsi_v1), &rows);
    expect(Format::VscsiV2, &record(vscsi_v2), &rows);
    let good = record(vscsi_v1);
    refuse(Format::VscsiV1, &good[..95], &["record 3", "31 of 32 bytes"]);
    refuse(Format::VscsiV1, record(vscsi_v2), &["record 1", "version 0 where version 1"]);
    refuse(Format::VscsiV2, vscsi_v2(0x2A, 1, u64::MAX, 0), &["record 1", "block is too large"]);
    refuse(Format::VscsiV2, vscsi_v2(0x2A, 1, u64::MAX / 512, 0), &["beyond the largest"]);
    refuse(Format::VscsiV2, vscsi_v2(0x2A, 1, 1, u64::MAX), &["time is too large"]);
    refuse(Format::VscsiV2, vscsi_v2(0x2A, u32::MAX, 1, 0), &["limit of"]);
}

#[test]
fn msr_cambridge() {
    let text = "128166385295514663,hm,0,Write,9056014336,2048,2833\n\
                128166385295514878,hm,1,Read,11855351808,512,2617\n";
    let rows = [
        (12_816_638_529_551_466_300, Put, "hm.0", 9_056_014_336, 2048),
        (12_816_638_529_551_487_800, Read, "hm.1", 11_855_351_808, 512),
    ];
    expect(Format::Msr, text.as_bytes(), &rows);
    let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime";
    expect(Format::Msr, format!("{header}\n{text}").as_bytes(), &rows);
    refuse(Format::Msr, "1,hm,0,Write,-1,2,3", &["line 1", "offset is negative"]);
    refuse(Format::Msr, "1,hm,0,Flush,1,2,3", &["type is \"Flush\""]);
    refuse(Format::Msr, "1,hm,0,Read,1", &["size is missing"]);
    refuse(Format::Msr, "18446744073709551615,hm,0,Read,1,2,3", &["timestamp is too large"]);
}

#[test]
fn blkparse_counts_each_request_once() {
    let text = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n  \
                8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n  \
                8,0    3        3     0.000002000   697  D   W 223490 + 8 [kjournald]\n  \
                8,0    3        0     0.000002100     0  m   N cfq697S / alloced\n  \
                8,16   1        4     1.500000001   697  Q  RA 16 + 256 [cat of bytes]\n  \
                8,0    0        5     1.500000002   697  Q FWS [jbd2/sda1-8]\n  \
                8,0    0        6     1.500000003   697  Q  DS 8 + 8 [fstrim]\n  \
                8,0    0        7     1.500000004     0  C   W 223490 + 8 [0]\n\
                CPU0 (8,0):\n Reads Queued:           1,        4KiB\n";
    let rows = [
        (0, Put, "8,0", 223_490 * 512, 4096),
        (1_500_000_001, Read, "8,16", 8192, 131_072),
        (1_500_000_002, Flush, "8,0", 0, 0),
        (1_500_000_003, Trim, "8,0", 4096, 4096),
    ];
    expect(Format::Blkparse, text.as_bytes(), &rows);
    let completions = "  8,0 0 7 1.5 0 C W 8 + 8 [0]\n  8,0 0 7 2.5 0 C R 8 + 8 [0]\n";
    let rows = [(1_500_000_000, Put, "8,0", 4096, 4096), (2_500_000_000, Read, "8,0", 4096, 4096)];
    expect(Format::Blkparse, completions.as_bytes(), &rows);
    let wrong = [
        ("8,0 0 1 0.1 1 Q W 8 + -8", "number of sectors is negative"),
        ("8,0 0 1 0.1 1 Q W 36893488147419103232 + 8", "sector is too large"),
        ("8,0 0 1 0.1 1 Q W 36028797018963968 + 8", "sector is too large"),
        ("8,0 0 1 0.1 1 Q W 8 [x]", "sector and number of sectors is missing"),
        ("8,0 0 1 0.1 1", "action is missing"),
        ("sda 0 1 0.1 1 Q W 8 + 8", "device is \"sda\""),
    ];
    for (line, word) in wrong {
        refuse(Format::Blkparse, line, &["line 1", word]);
    }
}

#[test]
fn blkparse_skips_passed_through_commands() {
    let issued = "  8,0 0 1 0.5 1 D R 56 (12 00 00 00 38 00) [inquiry]\n  8,0 0 2 1.5 1 D W 8 + 8 [a]\n  \
                  8,0 0 3 1.6 1 D R 56 [inquiry]\n  8,0 0 4 1.7 1 D N 0 (00 ..) [sg_turs]\n  \
                  8,0 0 5 1.8 1 D FN [a]\n";
    let rows = [(1_500_000_000, Put, "8,0", 4096, 4096), (1_800_000_000, Flush, "8,0", 0, 0)];
    expect(Format::Blkparse, issued.as_bytes(), &rows);
    let completed = "  8,0 0 1 0.5 0 C R (12 00 00 00 38 00) [0]\n  8,0 0 2 1.5 0 C W 8 + 8 [0]\n  \
                     8,0 0 3 1.6 0 C R [0]\n";
    expect(Format::Blkparse, completed.as_bytes(), &rows[..1]);
    for (line, word) in [
        ("8,0 0 1 0.1 1 D R", "sector and number of sectors is missing"),
        ("8,0 0 1 0.1 1 D R 8 8", "sector and number of sectors is missing"),
        ("8,0 0 1 0.1 1 D R x [a]", "number of bytes is \"x\""),
    ] {
        refuse(Format::Blkparse, line, &["line 1", word]);
    }
}

#[test]
fn names_of_processes_may_be_cut_within_a_character() {
    let text = b"  8,0 0 1 0.5 1 Q W 8 + 8 [caf\xC3]\n  8,0 0 2 1.5 1 Q R 0 + 8 [\xE2\x82]\n";
    let rows = [(500_000_000, Put, "8,0", 4096, 4096), (1_500_000_000, Read, "8,0", 0, 4096)];
    expect(Format::Blkparse, text, &rows);
}

#[test]
fn texts_may_begin_with_a_byte_order_mark() {
    let csv = "0,R,a,1,2\n";
    let rows = [(0, Read, "a", 1, 2)];
    for text in [csv.to_owned(), format!("time_ns,op,file,offset,len\n{csv}")] {
        expect(Format::Csv, format!("\u{feff}{text}").as_bytes(), &rows);
    }
    let msr = "\u{feff}128166385295514663,hm,0,Read,1,2,3\n";
    expect(Format::Msr, msr.as_bytes(), &[(12_816_638_529_551_466_300, Read, "hm.0", 1, 2)]);
    let fio = "\u{feff}fio version 3 iolog\n1 /a read 1 2\n";
    expect(Format::Fio, fio.as_bytes(), &[(1000, Read, "/a", 1, 2)]);
    let spc = "\u{feff}0,1,512,R,0.5\n";
    expect(Format::Spc, spc.as_bytes(), &[(500_000_000, Read, "0", 512, 512)]);
    let disksim = "\u{feff}5 0 1 1 1\n";
    expect(Format::Disksim, disksim.as_bytes(), &[(5, Read, "0", 512, 512)]);
    let mobibench = "\u{feff}0 5 pread 3 1 2\n";
    expect(Format::Mobibench, mobibench.as_bytes(), &[(5000, Read, "3", 1, 2)]);
    let blkparse = "\u{feff}8,0 0 1 0.5 1 Q R 1 + 1 [a]\n";
    expect(Format::Blkparse, blkparse.as_bytes(), &[(500_000_000, Read, "8,0", 512, 512)]);
    expect_columns(
        "time_ns,op,offset,len",
        "\u{feff}5,R,1,2\n6,R,3,4\n",
        &[(5, Read, "disk", 1, 2), (6, Read, "disk", 3, 4)],
    );
    let error = reader("\u{feff}\n".as_bytes(), &ReadOptions::default()).err().unwrap();
    assert!(matches!(error, TraceError::Empty { .. }), "{error}");
    let second = "0,R,a,1,2\n\u{feff}0,R,a,1,2\n";
    refuse(Format::Csv, second, &["line 2", "time is"]);
}

/// The first field of a record may have these bytes.
#[test]
fn record_may_begin_like_a_byte_order_mark() {
    let mut record = vscsi_v1(0x28, 4096, 2, 9);
    record[..3].copy_from_slice("\u{feff}".as_bytes());
    expect(Format::VscsiV1, &record, &[(9000, Read, "disk", 1024, 4096)]);
}

#[test]
fn fio_of_both_versions() {
    let three = "fio version 3 iolog\n17 /d/a add\n19 /d/a open\n20 /d/a write 3125376 1024\n\
                 21 /d/a sync 0 0\n22 /d/a trim 0 4096\n23 /d/b read 512 128\n24 /d/a close\n";
    let rows = [
        (20_000, Put, "/d/a", 3_125_376, 1024),
        (21_000, Flush, "/d/a", 0, 0),
        (22_000, Trim, "/d/a", 0, 4096),
        (23_000, Read, "/d/b", 512, 128),
    ];
    expect(Format::Fio, three.as_bytes(), &rows);
    let two = "fio version 2 iolog\n/d/a add\n/d/a open\n/d/a wait 20 0\n/d/a write 1 2\n\
               /d/a wait 3 0\n/d/a datasync\n/d/a close\n";
    let rows = [(20_000, Put, "/d/a", 1, 2), (23_000, Flush, "/d/a", 0, 0)];
    expect(Format::Fio, two.as_bytes(), &rows);
    let after = |line: &str| format!("fio version 3 iolog\n{line}\n");
    refuse(Format::Fio, "fio version 4 iolog\n", &["line 1", "version 4"]);
    refuse(Format::Fio, after("1 /d/a write 1"), &["line 2", "length is missing"]);
    refuse(Format::Fio, after("1 /d/a write -1 8"), &["offset is negative"]);
    refuse(Format::Fio, after("1 /d/a erase 1 8"), &["action is \"erase\""]);
    let waits = "fio version 2 iolog\na wait 18446744073709551615 0\na wait 1 0\n";
    refuse(Format::Fio, waits, &["line 3", "time is too large"]);
}

#[test]
fn spc_of_the_umass_repository() {
    let text = "0,20941264,8192,W,0.551706\n1, 3436288 ,15872,r,1.5\n";
    let rows = [
        (551_706_000, Put, "0", 20_941_264 * 512, 8192),
        (1_500_000_000, Read, "1", 3_436_288 * 512, 15_872),
    ];
    expect(Format::Spc, text.as_bytes(), &rows);
    refuse(Format::Spc, "0,-1,8192,W,0.5", &["line 1", "address is negative"]);
    refuse(Format::Spc, "0,1,8192,X,0.5", &["opcode is \"X\""]);
    refuse(Format::Spc, "0,1,8192,W", &["timestamp is missing"]);
    refuse(Format::Spc, "0,1,8192,W,0.5,more", &["\"more\"", "five fields"]);
    refuse(Format::Spc, "0,36028797018963968,1,W,0.1", &["address is too large"]);
}

#[test]
fn disksim_and_mqsim() {
    let text = "938513000 4 264719034 16 0\n938828000 3 197570570 16 1\n";
    let rows = [
        (938_513_000, Put, "4", 264_719_034 * 512, 8192),
        (938_828_000, Read, "3", 197_570_570 * 512, 8192),
    ];
    expect(Format::Disksim, text.as_bytes(), &rows);
    let disksim = "0.5 0 8 8 9\n12.000001 0 16 8 8\n";
    let rows = [(500_000, Read, "0", 4096, 4096), (12_000_001, Put, "0", 8192, 4096)];
    expect(Format::Disksim, disksim.as_bytes(), &rows);
    refuse(Format::Disksim, "1 0 8 -8 0", &["line 1", "number of blocks is negative"]);
    refuse(Format::Disksim, "1 0 8 8 read", &["type is \"read\""]);
    refuse(Format::Disksim, "1 0 8 8", &["type is missing"]);
    refuse(Format::Disksim, "1 0 36028797018963968 8 0", &["block is too large"]);
}

#[test]
fn oracle_general_is_read_on_request_only() {
    let bytes = [oracle(1, 7, 4096), oracle(2, 8, 5000), oracle(2, 9, 0), oracle(3, u64::MAX, 1)];
    let bytes = bytes.concat();
    let rows = [
        (1_000_000_000, Read, "0.0", 7 * 4096, 4096),
        (2_000_000_000, Read, "0.0", 8 * 4096, 4096),
        (2_000_000_000, Read, "0.1", 8 * 4096, 904),
        (3_000_000_000, Read, "16383.0", ((1 << 50) - 1) * 4096, 1),
    ];
    expect(Format::OracleGeneral, &bytes, &rows);
    let error = reader(&bytes, &ReadOptions::default()).err().unwrap().to_string();
    assert!(error.contains("does not distinguish reads"), "{error}");
    refuse(Format::OracleGeneral, &bytes[..50], &["record 3", "2 of 24 bytes"]);
}

#[test]
fn mobibench_calls_are_sorted_and_followed() {
    let text = "0 0 open /data/data O_RDWR 36\n0 100 write 36 4\n0 300 write 36 8\n\
                0 400 close 36 0\n0 500 open /data/data O_RDWR 36\n0 600 read 36 3\n\
                0 650 read 36 -1\n1 200 pwrite 36 4096 100\n1 250 fsync 36 0\n\
                1 260 read 99 1000\n1 270 access \"/a b\" 0\n";
    let rows = [
        (100_000, Put, "36", 0, 4),
        (200_000, Put, "36", 4096, 100),
        (250_000, Flush, "36", 0, 0),
        (300_000, Put, "36", 4, 8),
        (600_000, Read, "36", 0, 3),
    ];
    expect(Format::Mobibench, text.as_bytes(), &rows);
    refuse(Format::Mobibench, "0 1 pwrite 3 -4096 8", &["line 1", "offset is negative"]);
    refuse(Format::Mobibench, "0 1 pwrite 3 0 -8", &["length is negative"]);
    refuse(Format::Mobibench, "0 1 pwrite 3 0", &["length is missing"]);
    refuse(Format::Mobibench, "0 1 7 3 0", &["call is \"7\""]);
    let far = "0 1 pwrite 3 0 1\n0 2 write 3 9223372036854775807\n0 3 write 3 1\n";
    refuse(Format::Mobibench, far, &["line 3", "beyond the largest offset"]);
    let large = "0 1 pread 3 0 1\n\n0 2 pread 3 0 4294967295\n0 1 pread 3 0 1\n";
    refuse(Format::Mobibench, large, &["line 3", "limit of"]);
}

/// Expects that `text`, read by these columns, says `rows`.
fn expect_columns(columns: &str, text: &str, rows: &[Row]) {
    let format: Format = format!("columns:{columns}").parse().unwrap();
    assert_eq!(format.to_string().parse(), Ok(format));
    let mut reader = reader(text.as_bytes(), &forced(format)).unwrap();
    let requests: Vec<_> = reader.by_ref().map(|request| request.unwrap()).collect();
    let name = |file| reader.files().name(file).unwrap();
    let found: Vec<_> =
        requests.iter().map(|r| (r.time_ns, r.op, name(r.file), r.offset, r.len)).collect();
    assert_eq!(found, rows, "{columns}");
}

#[test]
fn columns_are_in_any_order() {
    let rows = [(1_500_000_000, Read, "a", 1024, 512), (2_000_000_000, Put, "b", 0, 4096)];
    let columns = "op,-,len,offset_sectors,time_s,file";
    expect_columns(columns, "R,x,512,2,1.5,a\nwrite,,4096,0,2,b\n", &rows);
    expect_columns(&format!("{columns},..."), "R,x,512,2,1.5,a\nwrite,,4096,0,2,b,more,1\n", &rows);
    expect_columns(columns, "op;?;len;lba;time;file\nr;x;512;2;1.5;a\n1;x;4096;0;2;b\n", &rows);
    expect_columns(columns, "READ x  512\t2 1.5 a\nW x 4096 0 2 b\n", &rows);
    expect_columns(
        "offset_pages",
        "3\n0\n",
        &[(0, Read, "disk", 12288, 4096), (0, Read, "disk", 0, 4096)],
    );
    expect_columns("time_ns,offset", "5,5000\n", &[(5, Read, "disk", 4096, 4096)]);
    let all = [(0, Flush, "disk", 0, 0), (0, Trim, "disk", 0, 9), (0, Zero, "disk", 0, 1)];
    expect_columns("op,offset,len", "F,0,0\ntrim,0,9\nzero,0,1\n", &all);
}

#[test]
fn wrong_columns_are_explained() {
    let refused = |columns: &str| format!("columns:{columns}").parse::<Format>().unwrap_err();
    assert!(refused("op,lba").contains("\"lba\" is no column: there are -, time_ns"));
    assert!(refused("offset,offset_pages").contains("\"offset_pages\" is the second"));
    assert!(refused("op,len").contains("no column is an offset"));
    assert!(refused(&["-"; 17].join(",")).contains("more than 16"));
    let format = |columns: &str| format!("columns:{columns}").parse::<Format>().unwrap();
    refuse(format("op,offset"), "R,0\nX,1\n", &["line 2", "operation is \"X\"", "0 (read)"]);
    refuse(format("op,offset"), "R,0\nR\n", &["line 2", "offset is missing"]);
    refuse(format("op,offset"), "op,offset\nop,offset\n", &["line 2", "operation"]);
    refuse(format("op,offset_pages"), "R,9999999999999999\n", &["line 1", "too large"]);
    refuse(format("op,offset"), "X,4096\nR,0\n", &["line 1", "operation is \"X\""]);
    refuse(format("op,offset"), "R,0x1000\nR,0\n", &["line 1", "offset is \"0x1000\""]);
    refuse(format("time_s,offset"), "0.5,lba\n0.5,0\n", &["line 1", "offset is \"lba\""]);
    refuse(format("time_s,offset"), "soon, 8 \n0.5,0\n", &["line 1", "time is \"soon\""]);
    refuse(format("op,offset,len"), "R;0;+x\nR;0;1\n", &["line 1", "length is \"+x\""]);
    refuse(format("op,offset"), "R,\nR,0\n", &["line 1", "offset is \"\""]);
    refuse(format("op,offset"), "R,-\nR,0\n", &["line 1", "offset is \"-\""]);
    refuse(format("op,offset,len"), "op,lba\nR,0,1\n", &["line 1", "operation is \"op\""]);
    let options = ReadOptions { format: Some(format("offset")), ..ReadOptions::default() };
    let error = reader(b"0\n", &options).err().unwrap();
    assert!(matches!(error, TraceError::NoOperations { .. }), "{error}");
}

#[test]
fn foreign_content_is_named() {
    for bytes in [&b""[..], b"\n \n"] {
        let error = reader(bytes, &ReadOptions::default()).err().unwrap().to_string();
        assert_eq!(error, "trace: the trace is empty");
    }
    let error = reader(b"0,R,a,0\n0,R,a,5\n", &ReadOptions::default()).err().unwrap();
    assert!(error.to_string().contains("it begins with \"0,R,a,0\""), "{error}");
    for bytes in [&b"hello world\n"[..], b"a,b,c\n", &[0; 12], &[0xFF; 100]] {
        let error = reader(bytes, &ReadOptions::default()).err().unwrap();
        assert!(matches!(error, TraceError::UnknownFormat { .. }), "{bytes:?}: {error}");
        assert!(error.to_string().contains("oracle-general"), "{error}");
    }
    let error = TraceReader::open(std::path::Path::new("no/such"), &ReadOptions::default());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("no/such") && error.contains("No such file"), "{error}");
}

#[test]
fn truncated_compressed_trace_is_an_error() {
    let mut text = Vec::new();
    for line in 0..50_000 {
        writeln!(text, "{line},W,a,{},512", (line * 7919) % 100_003).unwrap();
    }
    let compressed = zstd::encode_all(&text[..], 3).unwrap();
    assert_eq!(reader(&compressed, &ReadOptions::default()).unwrap().count(), 50_000);
    for len in [compressed.len() - 1, compressed.len() / 2] {
        let read = reader(&compressed[..len], &ReadOptions::default())
            .and_then(|reader| reader.collect::<Result<Vec<_>, _>>());
        let error = read.expect_err("half a trace was read");
        assert!(matches!(error, TraceError::Read { .. }), "{error}");
        assert!(error.to_string().contains("line"), "{error}");
    }
}

#[test]
fn after_an_error_nothing_comes() {
    let options = forced(Format::Csv);
    let mut reader = reader(b"0,R,a,0,1\nwrong\n0,R,a,0,1\n", &options).unwrap();
    assert!(reader.next().unwrap().is_ok());
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn pages_of_a_trace_name_the_place_of_an_error() {
    let text = b"0,R,a,0,8192\n0,W,b,0,1\n";
    let limits = PageLimits { pages_max: 2, ..PageLimits::default() };
    let mut first = reader(text, &ReadOptions::default()).unwrap();
    let error = read_pages(&mut first, limits).unwrap_err().to_string();
    assert_eq!(error, "trace, line 2: there are more than 2 distinct pages");
    let mut second = reader(text, &ReadOptions::default()).unwrap();
    let trace = read_pages(&mut second, PageLimits::default()).unwrap();
    assert_eq!((trace.requests, trace.pages(), trace.accesses.len()), (2, 3, 3));
}

#[test]
fn summaries_count() {
    let text = b"5,R,a,0,8192\n4,W,b,0,512\n9,W,b,0,513\n9,F,b,0,0\n9,T,b,0,99\n9,Z,b,4000,200\n";
    let summary = summarise(&mut reader(text, &ReadOptions::default()).unwrap()).unwrap();
    assert_eq!((summary.reads, summary.read_bytes, summary.requests()), (1, 8192, 4));
    assert_eq!((summary.writes, summary.written_bytes, summary.small_writes), (3, 1225, 2));
    assert_eq!((summary.flushes, summary.trims, summary.times_going_back), (1, 1, 1));
    assert_eq!((summary.footprint_pages(), summary.duration_ns()), (4, 5));
}

proptest! {
    /// For any bytes, reading ends, and its results keep the promises.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), which in 0..Format::ALL.len()) {
        let options = forced(Format::ALL[which]);
        for request in reader(&bytes, &options).into_iter().flatten().flatten() {
            prop_assert!(request.op == Flush || request.offset + request.len <= OFFSET_MAX);
        }
        let _unknown = reader(&bytes, &ReadOptions::default()).map(Iterator::count);
    }

    #[test]
    fn our_format_comes_back(
        rows in prop::collection::vec(
            (any::<u64>(), 0..5_usize, "[a-z0-9._-]{1,9}", 0..1_u64 << 62, 0..=1_u64 << 30),
            1..30,
        ),
    ) {
        let ops = [Read, Put, Flush, Trim, Zero];
        let mut writer = CsvWriter::new(Vec::new()).unwrap();
        for (time_ns, op, name, offset, len) in &rows {
            let (time_ns, op, offset, len) = (*time_ns, ops[*op], *offset, *len);
            writer.write(&Request { time_ns, op, file: 0, offset, len }, name).unwrap();
        }
        let text = writer.finish().unwrap();
        let mut reader = reader(&text, &ReadOptions::default()).unwrap();
        for (time_ns, op, name, offset, len) in &rows {
            let read = reader.next().unwrap().unwrap();
            prop_assert_eq!(reader.files().name(read.file), Some(name.as_str()));
            let found = (read.time_ns, read.op, read.offset, read.len);
            prop_assert_eq!(found, (*time_ns, ops[*op], *offset, *len));
        }
        prop_assert!(reader.next().is_none());
    }
}

/// Known facts of a real trace: name, format, reads, writes, small writes per thousand, footprint
/// in tenths of MiB. fio's file has 64 MiB, of which the trace touches less than half.
type Fixture = (&'static str, Format, u64, u64, u64, u64);

const REAL: [Fixture; 5] = [
    ("cloudPhysicsIO.vscsi", Format::VscsiV1, 46_974, 66_898, 70, 10_516),
    ("mobigen.out.twitter", Format::Mobibench, 3878, 2504, 508, 33),
    ("mqsim_tpcc-small.trace", Format::Disksim, 4381, 2618, 4, 800),
    ("sqlite_wal.csv", Format::Csv, 10_982, 24_541, 472, 51),
    ("fio_small.iolog", Format::Fio, 7665, 11_458, 400, 259),
];

#[test]
fn real_traces_are_read_as_they_are_described() {
    let Some(folder) = std::env::var_os("EVERBYTE_TRACES").map(PathBuf::from) else {
        eprintln!("not run: EVERBYTE_TRACES names no folder with real traces");
        return;
    };
    for (name, format, reads, writes, small, footprint) in REAL {
        let path = folder.join(name);
        if !path.exists() {
            eprintln!("not run: {} is not there", path.display());
            continue;
        }
        let mut reader = TraceReader::open(&path, &ReadOptions::default()).unwrap();
        let summary = summarise(&mut reader).unwrap();
        assert_eq!((reader.format(), summary.reads, summary.writes), (format, reads, writes));
        let small_found = (summary.small_writes * 1000 + writes / 2) / writes;
        assert_eq!(small_found, small, "{name}: small writes per thousand");
        let tenths = (summary.footprint_pages() * 40 + 512) / 1024;
        assert!(tenths.abs_diff(footprint) <= 1, "{name}: footprint {tenths}");
    }
}
