//! Public formats: made-up fixtures and their counts.

use super::*;

/// Counts of a trace: reads, read bytes, writes, written bytes, flushes, trims, pages, skipped lines.
type Counts = [u64; 8];

fn counts_of(bytes: &[u8], options: &ReadOptions) -> (Format, Counts) {
    let mut reader = reader(bytes, options).unwrap();
    let Summary { reads, read_bytes, writes, written_bytes, flushes, trims, .. } =
        summarise(&mut reader).unwrap();
    let pages = summarise(&mut super::reader(bytes, options).unwrap()).unwrap().footprint_pages();
    let skipped = reader.skipped().total();
    let counts = [reads, read_bytes, writes, written_bytes, flushes, trims, pages, skipped];
    (reader.format(), counts)
}

#[test]
fn detected_fixtures_have_their_counts() {
    let fixtures: [(Format, &[u8], Counts); 10] = [
        (
            Format::Alibaba,
            include_bytes!("../fixtures/alibaba.csv"),
            [2, 20_480, 2, 8704, 0, 0, 6, 0],
        ),
        (Format::Fiu, include_bytes!("../fixtures/fiu.txt"), [2, 12_288, 3, 12_288, 0, 0, 6, 0]),
        (Format::Msr, include_bytes!("../fixtures/msr.csv"), [2, 36_864, 2, 4608, 0, 0, 10, 0]),
        (
            Format::Systor,
            include_bytes!("../fixtures/systor.csv"),
            [2, 5120, 1, 16_384, 0, 0, 6, 2],
        ),
        (
            Format::Twitter,
            include_bytes!("../fixtures/twitter.csv"),
            [4, 12_216, 2, 4024, 0, 1, 5, 0],
        ),
        (
            Format::Kvcache,
            include_bytes!("../fixtures/kvcache-2022.csv"),
            [7, 10_522, 1, 122, 0, 1, 3, 1],
        ),
        (
            Format::Kvcache,
            include_bytes!("../fixtures/kvcache-2024.csv"),
            [12, 630, 1, 132, 0, 0, 4, 1],
        ),
        (
            Format::Blkparse,
            include_bytes!("../fixtures/blkparse-zones.txt"),
            [1, 4096, 2, 12_288, 1, 0, 3, 12],
        ),
        (
            Format::Blkparse,
            include_bytes!("../fixtures/blkparse-summary.txt"),
            [1, 4096, 1, 4096, 0, 0, 3, 21],
        ),
        (
            Format::Blkparse,
            b"Input file sda.blktrace.0 added\n8,0 0 1 0.0 1 Q R 8 + 8 [fio]\n",
            [1, 4096, 0, 0, 0, 0, 1, 1],
        ),
    ];
    for (format, bytes, counts) in fixtures {
        assert_eq!(counts_of(bytes, &ReadOptions::default()), (format, counts));
    }
}

#[test]
fn named_fixtures_have_their_counts() {
    let fixtures: [(&str, &[u8], Counts); 7] = [
        ("tencent", include_bytes!("../fixtures/tencent.csv"), [2, 12_288, 1, 12_288, 0, 0, 6, 0]),
        ("lirs", include_bytes!("../fixtures/lirs.trc"), [5, 20_480, 0, 0, 0, 0, 3, 3]),
        ("columns:offset_pages", include_bytes!("../fixtures/lirs.trc"), [5, 20_480, 0, 0, 0, 0, 3, 3]),
        (
            "columns:-,time_us,op_scsi,len,offset_sectors",
            include_bytes!("../fixtures/cloudphysics.csv"),
            [2, 12_288, 1, 512, 0, 0, 4, 1],
        ),
        (
            "columns:offset_sectors,len_sectors,-,-",
            include_bytes!("../fixtures/arc.lis"),
            [3, 16_384, 0, 0, 0, 0, 3, 0],
        ),
        (
            "columns:time_s,key,-,len,-",
            include_bytes!("../fixtures/wikipedia.tsv"),
            [11, 36_965, 0, 0, 0, 0, 8, 1],
        ),
        (
            "columns:time_ns,-,-,offset_sectors,len_sectors,op,-,file,-",
            b"0 4892 syslogd 904265560 8 W 6 0 531e\n29988 2377 kjournald 926858672 8 W 6 0 a1a0\n50001 5001 nfsd 926858680 16 R 6 0 a1a0\n",
            [1, 8192, 2, 8192, 0, 0, 4, 0],
        ),
    ];
    for (name, bytes, counts) in fixtures {
        let format = name.parse().unwrap();
        assert_eq!(counts_of(bytes, &forced(format)), (format, counts));
    }
}

/// The recipes of docs/traces.md have the results of the formats.
#[test]
fn recipes_read_what_formats_read() {
    let recipes: [(&str, &[u8]); 4] = [
        ("file,op,offset,len,time_us", include_bytes!("../fixtures/alibaba.csv")),
        ("time_100ns,file,-,op,offset,len,-", include_bytes!("../fixtures/msr.csv")),
        ("time_s,-,op,file,offset,len", include_bytes!("../fixtures/systor.csv")),
        (
            "file,offset_sectors,len,op,time_s",
            b"0,20941264,8192,W,0.551706\n1,3436288,15872,r,1.5\n",
        ),
    ];
    for (columns, bytes) in recipes {
        // Columns have no blank operations.
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains(",,")).collect();
        let text = lines.join("\n");
        let recipe =
            counts_of(text.as_bytes(), &forced(format!("columns:{columns}").parse().unwrap()));
        let (_, format) = counts_of(text.as_bytes(), &ReadOptions::default());
        let requests = |counts: Counts| [counts[0], counts[2], counts[5], counts[7]];
        assert_eq!(requests(recipe.1), requests(format), "{columns}");
    }
}

#[test]
fn joined_blkparse_outputs_are_read_to_the_end() {
    let one = include_str!("../fixtures/blkparse-summary.txt");
    let (_, counts) = counts_of(format!("{one}{one}{one}").as_bytes(), &ReadOptions::default());
    assert_eq!(counts[..4], [3, 12_288, 3, 12_288]);
}

#[test]
fn blkparse_counts_what_it_skips_by_kind() {
    use SkippedKind::{InputFile, Message, NoData, OtherEvent, ZoneCommand};
    let text = include_bytes!("../fixtures/blkparse-zones.txt");
    let mut reader = reader(text, &ReadOptions::default()).unwrap();
    assert_eq!(reader.by_ref().filter(|request| request.is_ok()).count(), 4);
    let kinds = [InputFile, ZoneCommand, NoData, OtherEvent, Message];
    let found = kinds.map(|kind| reader.skipped().of(kind));
    assert_eq!(found, [2, 5, 3, 1, 1]);
}

#[test]
fn blkparse_refuses_other_lines() {
    let event = "8,0 0 1 0.0 1 Q R 8 + 8 [fio]\n";
    for (line, word) in [
        ("fio 1234", "device is \"fio\""),
        (" Reads Queued: 1", "device is \"Reads\""),
        ("Input file sda", "device is \"Input\""),
        ("8,0 0 2 0.1 1 Q R 8 + 8 [fi", "process is \"[fi\""),
        ("8,0 0 2 0.1 1 Q R 8 + 8 9", "process is \"9\""),
        ("8,0 0 2 0.1 1 Q X 8 + 8 [fio]", "RWBS field is \"X\""),
    ] {
        refuse(Format::Blkparse, format!("{event}{line}\n"), &["line 2", word]);
    }
}

fn lcs(version: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut header = vec![0; 8192];
    header[..8].copy_from_slice(&0x1234_5678_9abc_def0_u64.to_le_bytes());
    header[8..16].copy_from_slice(&version.to_le_bytes());
    header[8184..].copy_from_slice(&0x1234_5678_9abc_def0_u64.to_le_bytes());
    [header, records.concat()].concat()
}

fn lcs_record(version: u64, object: u64, size: u32, op: u8) -> Vec<u8> {
    let mut record =
        [7_u32.to_le_bytes().as_slice(), &object.to_le_bytes(), &size.to_le_bytes()].concat();
    if version >= 3 {
        record.extend([0; 4]);
    }
    if version >= 2 {
        record.extend([op, 1, 0, 0]);
    }
    if version >= 3 {
        record.extend(3600_u32.to_le_bytes());
    }
    record.extend((-1_i64).to_le_bytes());
    let features = if version > 3 { 1 << (version - 4) } else { 0 };
    record.extend(vec![9; 4 * features]);
    record
}

#[test]
fn lcs_of_all_versions() {
    for version in 1..=8 {
        let record = |object, size, op| lcs_record(version, object, size, op);
        let records = [record(5, 4097, 1), record(5, 100, 3), record(6, 0, 1), record(7, 9, 9)];
        let bytes = lcs(version, &records);
        let options = ReadOptions { assume_reads: version == 1, ..ReadOptions::default() };
        let counts = match version {
            1 => [4, 4206, 0, 0, 0, 0, 3, 1],
            _ => [2, 4097, 1, 100, 0, 1, 2, 1],
        };
        assert_eq!(counts_of(&bytes, &options), (Format::Lcs, counts), "version {version}");
        refuse(Format::Lcs, &bytes[..bytes.len() - 1], &["record 4"]);
    }
    let unknown = lcs(2, &[lcs_record(2, 5, 4096, 0)]);
    let mut reader = reader(&unknown, &ReadOptions::default()).unwrap();
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("operation 0 is neither"), "{error}");
    assert_eq!(counts_of(&unknown, &forced(Format::Lcs)).1[..2], [1, 4096]);
    for wrong in [lcs(9, &[]), lcs(0, &[]), vec![0; 9000]] {
        refuse(Format::Lcs, &wrong, &["header of a known version"]);
    }
}

#[test]
fn lcs_of_the_first_kind_names_its_fields() {
    let mut header = vec![0; 1024];
    for at in [0, 1016] {
        header[at..at + 8].copy_from_slice(&0x1234_5678_9abc_def0_u64.to_le_bytes());
    }
    header[8..13].copy_from_slice(b"<IBQI");
    header[248..254].copy_from_slice(&[3, 4, 1, 0, 0, 2]);
    header[1000..1004].copy_from_slice(&4_u32.to_le_bytes());
    header[1004..1008].copy_from_slice(&17_u32.to_le_bytes());
    let record = |op: u8, object: u64, size: u32| {
        [&[1, 0, 0, 0, op][..], &object.to_le_bytes(), &size.to_le_bytes()].concat()
    };
    let bytes = [header, record(12, 5, 512), record(13, 6, 8192)].concat();
    let counts = [1, 512, 2, 8192, 0, 0, 3, 0];
    assert_eq!(counts_of(&bytes, &ReadOptions::default()), (Format::Lcs, counts));
}

#[test]
fn counts_of_requests_have_a_limit() {
    let heading = "key,op,size,op_count,key_size\n";
    let columns = ReadOptions {
        format: Some(Format::Columns("key,op,len,count".parse().unwrap())),
        ..ReadOptions::default()
    };
    let at_most = format!("{heading}a,GET,1,1000000,1\n");
    assert_eq!(counts_of(at_most.as_bytes(), &ReadOptions::default()).1[0], 1_000_000);
    for (text, options) in [
        (format!("{heading}a,GET,1,1,1\na,GET,1,1000001,1\n"), ReadOptions::default()),
        (format!("{heading}a,GET,1,1,1\na,GET,1,1000000000000000000,1\n"), ReadOptions::default()),
        (format!("{heading}a,GET,1,1,1\na,GET,900000000,1000000,1\n"), ReadOptions::default()),
        ("a,R,1,1\na,W,1,1000001\n".to_owned(), columns),
    ] {
        let read: Result<Vec<_>, _> =
            reader(text.as_bytes(), &options).and_then(|reader| reader.collect());
        let error = read.unwrap_err().to_string();
        assert!(error.contains("line ") && error.contains("too large"), "{error}");
    }
}

#[test]
fn large_objects_refuse_no_trace() {
    let records = [oracle(1, 5, 4096), oracle(1, 6, 20 << 20), oracle(2, 5, 4096)].concat();
    let (_, counts) = counts_of(&records, &forced(Format::OracleGeneral));
    assert_eq!((counts[0], counts[6], counts[7]), (5122, 5121, 0));
    let small = ReadOptions { request_bytes_max: 1 << 20, ..forced(Format::OracleGeneral) };
    let mut reader = reader(&records, &small).unwrap();
    assert_eq!(requests_of(&mut reader), 2);
    assert_eq!(reader.skipped().of(SkippedKind::LargeObject), 1);
    let lines = "0,a,1,9000,1,get,0\n0,b,1,2000000,1,get,0\n0,a,1,9000,1,get,0\n";
    let (_, counts) = counts_of(lines.as_bytes(), &ReadOptions { format: None, ..small });
    assert_eq!((counts[0], counts[7]), (6, 1));
}

#[test]
fn comments_are_skipped_in_every_text_format() {
    let fixtures: [(Format, &str); 9] = [
        (Format::Csv, "0,R,a,0,1\n"),
        (Format::Msr, include_str!("../fixtures/msr.csv")),
        (Format::Spc, "0,1,512,R,0.5\n"),
        (Format::Disksim, "5 0 8 1 1\n"),
        (Format::Fio, "fio version 3 iolog\n1 /a read 1 2\n"),
        (Format::Mobibench, "0 5 pread 3 1 2\n"),
        (Format::Alibaba, include_str!("../fixtures/alibaba.csv")),
        (Format::Twitter, include_str!("../fixtures/twitter.csv")),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 + 8 [fio]\n"),
    ];
    for (format, text) in fixtures {
        let (found, mut counts) = counts_of(text.as_bytes(), &ReadOptions::default());
        assert_eq!(found, format);
        let commented = format!("# first\n\n{text}  # more\n*\n# last");
        counts[7] += 5;
        let read = counts_of(commented.as_bytes(), &ReadOptions::default());
        assert_eq!(read, (format, counts));
    }
}
