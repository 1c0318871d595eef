//! Compressed traces, and foreign contents.

use super::*;

fn foreign(bytes: &[u8]) -> Content {
    match reader(bytes, &ReadOptions::default()).err() {
        Some(TraceError::Foreign { content, .. }) => content,
        other => panic!("{other:?}"),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn members_may_end_within_a_line() {
    let text = include_bytes!("../fixtures/msr.csv");
    let (first, second) = text.split_at(70);
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(text).unwrap();
    let skippable = b"\x5A\x2A\x4D\x18\x03\0\0\0abc".to_vec();
    let frames =
        [skippable, zstd::encode_all(first, 1).unwrap(), zstd::encode_all(second, 1).unwrap()];
    for packed in [[gzip(first), gzip(second)].concat(), xz.finish().unwrap(), frames.concat()] {
        let mut reader = reader(&packed, &ReadOptions::default()).unwrap();
        assert_eq!(reader.format(), Format::Msr);
        assert_eq!(requests_of(&mut reader), 4);
    }
}

#[test]
fn other_compressions_are_named() {
    let tar = [vec![b'a'; 257], b"ustar\0".to_vec(), vec![0; 300]].concat();
    let cases: [(&[u8], Content); 14] = [
        (b"BZh91AY&SY....", Content::Bzip2),
        (b"BZh9\x17\x72\x45\x38\x50\x90\0\0\0\0", Content::Bzip2),
        (b"\x04\x22\x4D\x18....", Content::Lz4),
        (b"\x02\x21\x4C\x18....", Content::Lz4),
        (b"LZIP\x01....", Content::Lzip),
        (b"\x89LZO\0\r\n\x1a\n..", Content::Lzop),
        (b"\xFF\x06\0\0sNaPpY..", Content::Snappy),
        (b"PK\x03\x04....", Content::Zip),
        (b"7z\xBC\xAF\x27\x1C...", Content::SevenZip),
        (b"Rar!\x1a\x07\0....", Content::Rar),
        (b"\x27\xB5\x2F\xFD....", Content::OldZstd),
        (b"\x07\x74\x61\x65\0\0\0\0", Content::Blktrace),
        (b"\x65\x61\x74\x07\0\0\0\0", Content::Blktrace),
        (&tar, Content::Tar),
    ];
    for (bytes, content) in cases {
        assert_eq!(foreign(bytes), content);
    }
    assert_eq!(foreign(&gzip(&tar)), Content::Tar);
    assert_eq!(foreign(&gzip(&gzip(b"0,R,a,0,1\n"))), Content::Nested);
    assert_eq!(foreign(&gzip(b"\x07\x74\x61\x65\0\0\0\0")), Content::Blktrace);
}

#[test]
fn doubtful_contents_are_mentioned() {
    for (bytes, word) in [
        (&b"\xFF\xFE0\0,\0R\0"[..], "UTF-16"),
        (b"\x1F\x9D\x90....", "compress"),
        (b"\x78\x9C\x01\x02\x03\xFF", "zlib"),
        (b"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0", "lzma"),
    ] {
        let error = reader(bytes, &ReadOptions::default()).err().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
}
