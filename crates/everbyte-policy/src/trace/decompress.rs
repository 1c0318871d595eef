//! Decompresses gzip, xz and zstd, recognised by their first bytes.
//!
//! Invariants: members, streams and frames may follow each other in any order allowed by their
//! formats, including empty ones and skippable frames. Memory is bounded, because data streams and
//! dictionaries are limited. Cut or damaged data is an error with its place.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use liblzma::read::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};

use super::content::Content;

pub(crate) type Source = Box<dyn Read + Send>;

/// Bytes of the compression's magic number, and of a skippable frame's head.
const HEAD_BYTES: u64 = 8;
/// Most bytes of memory for decompressing xz: `xz -9` needs 65 MiB.
const XZ_MEMORY_MAX: u64 = 512 << 20;
/// The largest window of zstd: 2^27 bytes, the limit of the program `zstd` too.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// First byte of a skippable frame, without its lowest 4 bits, and the others (RFC 8878, 3.1.2).
const SKIPPABLE: (u8, [u8; 3]) = (0x50, [0x2A, 0x4D, 0x18]);

/// A compression that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compression {
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            // No flag of RFC 1952 stands above bit 4.
            [0x1F, 0x8B, 8, 0..=0x1F, ..] => Some(Self::Gzip),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Some(Self::Zstd),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }
}

/// A source, classified by its beginning.
pub(crate) enum OpenedSource {
    /// Bytes as they are.
    Plain(Source),
    /// Bytes that are decompressed while they are read.
    Unpacked(Source),
    /// Bytes that cannot be read.
    Foreign(Content),
}

/// Looks at the beginning of `source` and decompresses it if it is compressed.
///
/// # Errors
/// Those of the source, and damaged data.
pub(crate) fn open(source: Source) -> io::Result<OpenedSource> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut source = CountedSource { source, taken: Arc::clone(&taken) };
    let mut was_skipped = false;
    // Skippable frames can precede any zstd frame, and name no format by themselves.
    let head = loop {
        let mut head = Vec::new();
        (&mut source).take(HEAD_BYTES).read_to_end(&mut head)?;
        let Some(bytes) = skippable_bytes(&head) else { break head };
        was_skipped = true;
        let bytes = bytes.ok_or_else(|| cut_off(&taken))?;
        // Copied to nowhere: the length is a stranger's, and must not become an allocation.
        if io::copy(&mut (&mut source).take(bytes), &mut io::sink())? < bytes {
            return Err(cut_off(&taken));
        }
    };
    let compression = match Compression::of(&head) {
        Some(compression) => compression,
        // Frames that hold nothing are an empty trace.
        None if was_skipped && head.is_empty() => {
            return Ok(OpenedSource::Plain(Box::new(io::empty())));
        }
        None if was_skipped => return foreign_frames(&head, &taken),
        None => return Ok(OpenedSource::Plain(Box::new(Cursor::new(head).chain(source)))),
    };
    let whole = Cursor::new(head).chain(source);
    let source: Source = match compression {
        // Files of rotated logs are often several members in a row.
        Compression::Gzip => Box::new(MultiGzDecoder::new(whole)),
        Compression::Xz => {
            // The header of xz names its memory. Without a bound a few bytes could ask for all of
            // it.
            let stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, CONCATENATED)?;
            Box::new(XzDecoder::new_stream(whole, stream))
        }
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::new(whole)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
    };
    Ok(OpenedSource::Unpacked(Box::new(Decompression { source, compression, taken, given: 0 })))
}

/// Returns the bytes of the skippable frame that `head` begins with; `Some(None)` if its length is cut off.
fn skippable_bytes(head: &[u8]) -> Option<Option<u64>> {
    let (&first, rest) = head.split_first()?;
    if first & 0xF0 != SKIPPABLE.0 || !rest.starts_with(&SKIPPABLE.1) {
        return None;
    }
    let length = head.get(4..8).and_then(|bytes| bytes.try_into().ok());
    Some(length.map(|bytes| u64::from(u32::from_le_bytes(bytes))))
}

/// LZ4 has the same skippable frames as zstd.
fn foreign_frames(head: &[u8], taken: &AtomicU64) -> io::Result<OpenedSource> {
    // A known kind of data has advice. Only unknown bytes are a damaged file.
    if let Some(content) = Content::surely(head, true) {
        return Ok(OpenedSource::Foreign(content));
    }
    let at = taken.load(Ordering::Relaxed).saturating_sub(head.len() as u64);
    let text = format!("no zstd frame begins at byte {at}, behind skippable frames");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

fn cut_off(taken: &AtomicU64) -> io::Error {
    let at = taken.load(Ordering::Relaxed);
    let text = format!("the zstd data ends at byte {at}, within a skippable frame");
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

/// A source whose bytes are counted.
struct CountedSource {
    source: Source,
    taken: Arc<AtomicU64>,
}

impl Read for CountedSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// A decompressor whose errors contain their place.
struct Decompression {
    source: Source,
    compression: Compression,
    taken: Arc<AtomicU64>,
    given: u64,
}

impl Read for Decompression {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.source.read(buffer) {
            Ok(count) => {
                self.given += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let text = format!(
                    "the {} data is damaged, cut off or not supported, before byte {} of the file and \
                     behind {} decompressed bytes: {error}",
                    self.compression.name(),
                    self.taken.load(Ordering::Relaxed),
                    self.given
                );
                Err(io::Error::new(error.kind(), text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use liblzma::write::XzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn xz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = XzEncoder::new(Vec::new(), 1);
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).unwrap()
    }

    fn skippable(kind: u8, content: &[u8]) -> Vec<u8> {
        let len = u32::try_from(content.len()).unwrap().to_le_bytes();
        [&[0x50 | kind, 0x2A, 0x4D, 0x18][..], &len, content].concat()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let source = Cursor::new(bytes.to_vec());
        let mut all = Vec::new();
        match open(Box::new(source))? {
            OpenedSource::Plain(mut source) | OpenedSource::Unpacked(mut source) => {
                source.read_to_end(&mut all)?;
            }
            OpenedSource::Foreign(content) => return Err(io::Error::other(content.to_string())),
        }
        Ok(all)
    }

    #[test]
    fn frames_in_any_order_are_one_text() {
        let (hello, world) = (b"hello ".as_slice(), b"world".as_slice());
        let empty_frames = [skippable(0, b""), skippable(15, b"\x28\xB5\x2F\xFD")].concat();
        let layouts = [
            [gzip(hello), gzip(b""), gzip(world)].concat(),
            [gzip(b""), gzip(hello), gzip(world), gzip(b"")].concat(),
            [xz(hello), xz(b""), xz(world)].concat(),
            [xz(b""), xz(hello), vec![0; 8], xz(world), vec![0; 4]].concat(),
            [zstd(hello), zstd(b""), zstd(world)].concat(),
            [skippable(5, &[7; 300]), zstd(hello), zstd(world)].concat(),
            [
                &empty_frames,
                &zstd(b"")[..],
                &zstd(hello),
                &empty_frames,
                &zstd(world),
                &empty_frames,
            ]
            .concat(),
        ];
        for (number, layout) in layouts.iter().enumerate() {
            assert_eq!(read(layout).unwrap(), b"hello world", "layout {number}");
        }
        assert_eq!(read(&empty_frames).unwrap(), b"");
        assert_eq!(read(b"\x50\x2A plain").unwrap(), b"\x50\x2A plain");
    }

    #[test]
    fn cut_off_data_is_an_error_with_its_place() {
        let text: Vec<u8> = (0..3000_u32).flat_map(|i| (i * i).to_le_bytes()).collect();
        for packed in
            [gzip(&text), xz(&text), zstd(&text), [skippable(1, b"abc"), zstd(&text)].concat()]
        {
            // Fewer bytes may not be recognized as compressed.
            for len in (6..packed.len()).step_by(97).chain([packed.len() - 1]) {
                let error =
                    read(&packed[..len]).expect_err("half of the data was read").to_string();
                assert!(error.contains("byte "), "{len}: {error}");
            }
        }
        let trailing = [zstd(&text), skippable(2, b"abc")].concat();
        for len in [trailing.len() - 1, trailing.len() - 5, trailing.len() - 9] {
            assert!(read(&trailing[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn damaged_data_is_an_error() {
        let text: Vec<u8> = (0..3000_u32).flat_map(|i| (i * i).to_le_bytes()).collect();
        for packed in [gzip(&text), xz(&text), zstd(&text)] {
            let garbage = [&packed[..], b"garbage"].concat();
            assert!(read(&garbage).is_err(), "garbage behind the data was ignored");
        }
        // gzip and xz have checksums.
        for mut packed in [gzip(&text), xz(&text)] {
            let middle = packed.len() / 2;
            packed[middle] ^= 0x10;
            assert!(read(&packed).is_err());
        }
    }

    #[test]
    fn lz4_behind_skippable_frames_is_named() {
        let error = read(&[skippable(3, b"x"), b"\x04\x22\x4D\x18more".to_vec()].concat());
        assert!(error.unwrap_err().to_string().contains("lz4"));
        let error = read(&[skippable(3, b"x"), b"text".to_vec()].concat());
        assert!(error.unwrap_err().to_string().contains("at byte 9"));
    }

    #[test]
    fn dictionaries_beyond_the_limit_are_refused() {
        // A frame whose window descriptor asks for 2^41 bytes.
        let window = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xF8, 0x01, 0x00, 0x00];
        assert!(read(&window).unwrap_err().to_string().contains("zstd"));
    }
}
