//! Detection: one format fits, or the trace is refused.

use super::*;

fn refusal(text: impl AsRef<[u8]>) -> Refusal {
    let text = text.as_ref();
    match reader(text, &ReadOptions::default()).err() {
        Some(TraceError::UnknownFormat(refusal)) => *refusal,
        other => panic!("{other:?} for {:?}", String::from_utf8_lossy(text)),
    }
}

fn detected(text: impl AsRef<[u8]>) -> (Format, Reason) {
    let reader = reader(text.as_ref(), &ReadOptions::default()).unwrap();
    (reader.format(), reader.reason())
}

#[test]
fn formats_with_the_same_columns_are_refused() {
    // As our own format these last numbers are lengths, as Alibaba's they are times.
    let refused = refusal("1,R,4096,8192,100\n1,W,8192,4096,250\n");
    assert_eq!(refused.candidates, [Format::Csv, Format::Alibaba]);
    assert!(refused.to_string().contains("several formats: csv, alibaba"), "{refused}");
    // Times that go back are none.
    let (format, _) = detected("5,R,4096,8192,4096\n6,W,8192,4096,512\n");
    assert_eq!(format, Format::Csv);
    let (format, _) = detected("9,R,4096,8192,100\n1,W,8192,4096,250\n");
    assert_eq!(format, Format::Alibaba);
}

#[test]
fn lists_of_numbers_are_refused() {
    for text in [
        "1538323200,12910952,128,0,1063\n1538323201,80,16,1,1290\n",
        "5\n6\n5\n",
        "0 4096 8192\n1 4096 8192\n",
        "1,2,3,4,5,6\n",
        // Bytes as sectors, and times as devices.
        "100 0 4096 8192 1\n200 0 8192 4096 0\n",
        "1538323200 12910952 128 0 1\n",
        // Times as lengths.
        "100,R,a,4096,1577808000000046\n",
        // Seconds since 1970 as a unit of storage.
        "1538323200,12910952,128,W,1063.5\n",
        "0,4096,512,R,5\n0,8192,512,W,7\n",
        "0,4096,700,R,0.5\n",
        "0,4096,512,R,2.5\n0,8192,512,W,1.5\n",
        // No file times.
        "100,host,0,Read,4096,512,7\n",
        "1.5,0.1,R,0,4096,512\n",
    ] {
        let refused = refusal(text);
        assert_eq!(refused.candidates, [], "{text}");
        assert!(refused.to_string().contains("known formats"), "{refused}");
    }
}

#[test]
fn programs_are_no_system_calls() {
    let error = refusal("100 200 reading 3 4096\n").to_string();
    assert!(error.contains("none of the known formats"), "{error}");
    let mut reader = reader(b"100 200 read 3 4096\n", &ReadOptions::default()).unwrap();
    let error = summarise(&mut reader).unwrap_err().to_string();
    assert!(error.contains("neither reads nor writes"), "{error}");
    assert!(error.contains("1 calls without a position"), "{error}");
}

#[test]
fn traces_without_requests_are_an_error() {
    for text in [
        "time_ns,op,file,offset,len\n",
        "0,F,a,0,0\n",
        "8,0 0 1 0.0 1 Q N [fio]\n",
        "fio version 3 iolog\n1 /a add\n2 /a close\n",
        "Timestamp,Response,IOType,LUN,Offset,Size\n1.5,,,0,4096,512\n",
        "key,op,size,op_count,key_size\na,GET,0,0,5\n",
    ] {
        let mut reader = reader(text.as_bytes(), &ReadOptions::default()).unwrap();
        let error = summarise(&mut reader).unwrap_err();
        assert!(matches!(error, TraceError::NoRequests { .. }), "{text}: {error}");
    }
    refusal("# a comment\n# another\n");
    refusal("*\n");
}

#[test]
fn all_sampled_lines_have_to_fit() {
    let line = "128166385295514663,hm,0,Write,9056014336,2048,2833\n";
    assert_eq!(detected(line.repeat(3)), (Format::Msr, Reason::Lines { lines: 3 }));
    let refused = refusal(format!("{}0,R,a,0,1\n", line.repeat(3)));
    assert_eq!((refused.near[0].format, refused.near[0].line), (Format::Msr, 4));
    assert!(refused.to_string().starts_with("trace, line 4: "), "{refused}");
    let refused = refusal(format!("{line}{}", line.replace(",2833", ",2833,9")));
    assert!(refused.to_string().contains("\"9\""), "{refused}");
}

#[test]
fn lines_behind_the_sample_are_refused_by_number() {
    let text = format!("{}0,R,a,0\n", "0,R,a,0,1\n".repeat(9000));
    let read = reader(text.as_bytes(), &ReadOptions::default()).unwrap();
    let error = read.last().unwrap().unwrap_err().to_string();
    assert!(error.contains("line 9001: the length is missing"), "{error}");
}

#[test]
fn headings_outweigh_other_candidates() {
    let text = "time_ns,op,file,offset,len\n1,R,4096,8192,100\n1,W,8192,4096,250\n";
    assert_eq!(detected(text), (Format::Csv, Reason::Heading { lines: 3 }));
    let text = "device_id,opcode,offset,length,timestamp\n1,R,4096,8192,100\n1,W,8192,4096,250\n";
    assert_eq!(detected(text), (Format::Alibaba, Reason::Heading { lines: 3 }));
}

#[test]
fn joined_traces_repeat_their_heading() {
    let one = "time_ns,op,file,offset,len\n1,R,a,8192,100\n";
    let mut read = reader(one.repeat(2).as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(requests_of(&mut read), 2);
    let one = "fio version 3 iolog\n1 /a read 1 2\n";
    let mut read = reader(one.repeat(2).as_bytes(), &ReadOptions::default()).unwrap();
    assert_eq!(requests_of(&mut read), 2);
}

#[test]
fn bytes_behind_the_last_field_are_refused() {
    let lines = [
        (Format::Csv, "0,R,a,0,1"),
        (Format::Msr, "128166385295514663,hm,0,Write,9056014336,2048,2833"),
        (Format::Spc, "0,1,512,R,0.5"),
        (Format::Disksim, "5 0 8 1 1"),
        (Format::Mobibench, "0 5 pread 3 1 2"),
        (Format::Alibaba, "7,W,40960,8192,1577808000000046"),
        (Format::Tencent, "1538323200,800,8,0,1063"),
        (Format::Fiu, "0 4892 syslogd 904265560 8 W 6 0 531e"),
        (Format::Systor, "1456135200.013118000,0.000806000,R,0,4096,4096"),
        (Format::Twitter, "0,q,12,4000,4,get,0"),
        (Format::Lirs, "5"),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q R 8 + 8 [fio]"),
        ("columns:offset,op".parse().unwrap(), "4096,R"),
        ("columns:offset;op".replace(';', ",").parse().unwrap(), "4096 R"),
    ];
    for (format, line) in lines {
        let count =
            |text: &[u8]| reader(text, &forced(format)).unwrap().collect::<Result<Vec<_>, _>>();
        for end in ["", "\n", "\r\n", " \n", "\n\n"] {
            let read = count(format!("{line}{end}").as_bytes());
            assert_eq!(read.unwrap().len(), 1, "{format} {end:?}");
        }
        assert_eq!(count(format!("\u{feff}{line}").as_bytes()).unwrap().len(), 1, "{format}");
        for end in [
            format!("\r{line}\r{line}\r"),
            format!("\r{line}"),
            "\0\n".to_owned(),
            "\0\0\0\0".to_owned(),
            format!("\n\0\0\0\n{line}\n"),
            ",x\n".to_owned(),
            " x\n".to_owned(),
            ",5\n".to_owned(),
            " 5 5 5 5 5 5 5 5 5 5 5 5 5\n".to_owned(),
            ";\n".to_owned(),
        ] {
            let read = count(format!("{line}{end}").as_bytes());
            assert!(read.is_err(), "{format}: {line:?}{end:?} gives {read:?}");
        }
    }
}

#[test]
fn carriage_returns_alone_end_no_line() {
    let text = include_str!("../fixtures/msr.csv").replace('\n', "\r");
    let error = reader(text.as_bytes(), &ReadOptions::default()).err().unwrap();
    assert!(
        error.to_string().starts_with("trace, line 1: a carriage return at byte 51"),
        "{error}"
    );
    let padded = [include_bytes!("../fixtures/msr.csv").as_slice(), &[0; 9]].concat();
    assert!(refusal(padded).to_string().starts_with("trace, line 5: a NUL at byte 1"));
    refuse(Format::Msr, &text, &["line 1", "a carriage return at byte 51"]);
    let crlf = include_str!("../fixtures/msr.csv").replace('\n', "\r\n");
    assert_eq!(reader(crlf.as_bytes(), &ReadOptions::default()).unwrap().count(), 4);
}

#[test]
fn records_have_to_be_plausible() {
    let good = [vscsi_v1(0x28, 4096, 2, 9), vscsi_v1(0x2A, 512, 3, 10)].concat();
    assert_eq!(detected(&good), (Format::VscsiV1, Reason::Records { records: 2 }));
    let oracle_records = [oracle(1, 7, 4096), oracle(2, 8, 5000)].concat();
    let options = ReadOptions { assume_reads: true, ..ReadOptions::default() };
    let found = reader(&oracle_records, &options).unwrap();
    assert_eq!(
        (found.format(), found.reason()),
        (Format::OracleGeneral, Reason::Records { records: 2 })
    );
    let mut far = good.clone();
    far[23] = 0xFF;
    let mut command = good.clone();
    command[45] = 1;
    let no_requests = [vscsi_v1(0x12, 36, 0, 9), vscsi_v1(0x12, 36, 0, 9)].concat();
    let back = [oracle(3, 7, 4096), oracle(2, 8, 5000)].concat();
    let mut next = oracle_records.clone();
    next[40..48].copy_from_slice(&1_u64.to_le_bytes());
    let cut = refusal(&good[..63]).to_string();
    assert!(cut.contains("vscsi-v1 is possible, but the trace ends within"), "{cut}");
    for (number, bytes) in
        [far, command, no_requests, back, next, good[..63].to_vec(), vec![0; 480]]
            .iter()
            .enumerate()
    {
        assert_eq!(refusal(bytes).candidates, [], "case {number}");
    }
}
