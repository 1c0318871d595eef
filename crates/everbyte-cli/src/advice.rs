//! Advice about errors, in the words of the command line.
//!
//! Errors of the crates below state facts, because they know no commands. This file alone gives
//! advice on commands; `main` prints it on a separate line, `hint: ...`.

use std::borrow::Cow;
use std::error::Error;

use everbyte_control::{Cause, ControlError, Occupied, RequestError};
use everbyte_device::DeviceError;
use everbyte_media::OpenError;
use everbyte_nbd::BindError;
use everbyte_policy::trace::{Content, Format, Problem, Refusal, TraceError};
use everbyte_pool::PoolError;
use everbyte_pool::file::FileError;
use everbyte_server::recording::RecordError;

use crate::session::{Busy, SessionError};

/// Returns advice on commands about `error`, if any.
pub(crate) fn advice(error: &anyhow::Error) -> Option<Cow<'static, str>> {
    // Before the fixed texts: this advice depends on the formats that the refusal names.
    let refusal = error.chain().find_map(|error| error.downcast_ref().and_then(of_refused_trace));
    refusal.map(Cow::Owned).or_else(|| error.chain().find_map(of).map(Cow::Borrowed))
}

fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<SessionError>() {
        // This error adds nothing to its source, so the chain leaves the source out.
        return match error {
            SessionError::File(error) => of_file(error),
            SessionError::Busy(busy) => Some(of_busy(busy)),
            SessionError::Control(error) => of_control(error),
            SessionError::Refused(refused) => of_refusal(refused),
            _ => None,
        };
    }
    // An I/O error can wrap a typed error, and the chain does not show what it wraps.
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        let is_occupied = error.get_ref().is_some_and(|error| error.is::<Occupied>());
        return is_occupied.then_some(
            "have its owner remove it, or set EVERBYTE_CONTROL_DIR to a directory of yours, for the \
             server and for the commands that are to reach it",
        );
    }
    let control = || error.downcast_ref().and_then(of_control);
    let bind = || error.downcast_ref().and_then(of_bind);
    let file = || error.downcast_ref().and_then(of_file);
    let refusal = || error.downcast_ref().and_then(of_refusal);
    let trace = || error.downcast_ref().and_then(of_trace);
    let pool = || error.downcast_ref().and_then(of_pool);
    let record = || error.downcast_ref().and_then(of_record);
    let media = || error.downcast_ref().and_then(of_media);
    let device = || error.downcast_ref().and_then(of_device);
    let of_engine = || pool().or_else(record).or_else(media).or_else(device);
    control().or_else(bind).or_else(file).or_else(refusal).or_else(trace).or_else(of_engine)
}

fn of_control(error: &ControlError) -> Option<&'static str> {
    match error {
        ControlError::Refused(refused) => of_refusal(refused),
        ControlError::Untrusted { .. } => Some(
            "run this command as the user who serves the pool, or find out who has put the socket \
             there",
        ),
        _ => None,
    }
}

fn of_bind(error: &BindError) -> Option<&'static str> {
    match error {
        BindError::InUse { .. } => Some("stop it, or choose another address"),
        BindError::NotASocket { .. } => Some("remove it, or choose another path"),
        _ => None,
    }
}

fn of_trace(error: &TraceError) -> Option<&'static str> {
    match error {
        TraceError::NoOperations { .. }
        | TraceError::Wrong { problem: Problem::NoOperation { .. }, .. } => {
            Some("--assume-reads takes every request as a read")
        }
        TraceError::Wrong { problem: Problem::RequestTooLarge { .. }, .. } => {
            Some("--request-max raises the limit, if the trace is right")
        }
        TraceError::Foreign { content, .. } => Some(of_content(*content)),
        _ => None,
    }
}

fn of_content(content: Content) -> &'static str {
    match content {
        Content::Bzip2 => "bzip2 -dc FILE | everbyte sim info -",
        Content::Lz4 => "lz4 -dc FILE | everbyte sim info -",
        Content::Lzma => "xz --format=lzma -dc FILE | everbyte sim info -",
        Content::Lzip => "lzip -dc FILE | everbyte sim info -",
        Content::Lzop => "lzop -dc FILE | everbyte sim info -",
        Content::Compress => "gzip -dc FILE | everbyte sim info -",
        Content::Snappy => "snzip -dc FILE | everbyte sim info -",
        Content::Zlib => "zlib-flate -uncompress < FILE | everbyte sim info -",
        Content::OldZstd => {
            "zstd -dc FILE | everbyte sim info -, with a zstd that reads old versions"
        }
        Content::Zip => "unzip -p FILE MEMBER | everbyte sim info -",
        Content::SevenZip => "7z x -so FILE MEMBER | everbyte sim info -",
        Content::Rar => "unrar p -inul FILE MEMBER | everbyte sim info -",
        Content::Tar => "tar -xOf FILE MEMBER | everbyte sim info -",
        Content::Nested => "decompress it once, such as with zcat FILE | everbyte sim info -",
        Content::Blktrace => {
            "blkparse -i NAME -o - | everbyte sim info -, if the recording is in NAME.blktrace.0 and others"
        }
        Content::Utf16 => "iconv -f UTF-16 -t UTF-8 FILE | everbyte sim info -",
        _ => "convert it to a text of lines, and name its columns: --columns time_s,op,offset,len",
    }
}

/// Options and columns for a trace of an undetectable format.
fn of_refused_trace(error: &TraceError) -> Option<String> {
    let TraceError::UnknownFormat(refusal) = error else { return None };
    let Refusal { candidates, doubtful, content, .. } = &**refusal;
    let mut advice = String::new();
    if let Some(content) = content {
        advice = format!("{}; or ", of_content(*content));
    }
    // Doubtful formats come last: they were not chosen, for a stated reason.
    let doubtful = doubtful.iter().map(|(format, _)| format);
    for format in candidates.iter().chain(doubtful) {
        advice += &format!("--format {format}");
        if let Some(columns) = columns_of(*format) {
            advice += &format!(" (its columns are --columns {columns})");
        }
        advice += ", or ";
    }
    advice += "--format FORMAT, or --columns time_s,op,offset,len with the columns that there are; \
               docs/traces.md has both for public formats";
    Some(advice)
}

/// Columns for reading the lines of a format.
fn columns_of(format: Format) -> Option<&'static str> {
    match format {
        Format::Csv => Some("time_ns,op,file,offset,len"),
        Format::Msr => Some("time_100ns,file,-,op,offset,len,-"),
        Format::Spc => Some("file,offset_sectors,len,op,time_s"),
        Format::Disksim => Some("time_ns,file,offset_sectors,len_sectors,op_1_reads"),
        Format::Alibaba => Some("file,op,offset,len,time_us"),
        Format::Tencent => Some("time_s,offset_sectors,len_sectors,op,file"),
        Format::Fiu => Some("time_ns,-,-,offset_sectors,len_sectors,op,-,file,-"),
        Format::Systor => Some("time_s,-,op,file,offset,len"),
        Format::Twitter => Some("time_s,key,-,len,-,op,-"),
        Format::Lirs => Some("offset_pages"),
        _ => None,
    }
}

fn of_record(error: &RecordError) -> Option<&'static str> {
    matches!(error, RecordError::Rights { .. }).then(|| of_cause(Cause::UntrustedPool)).flatten()
}

fn of_file(error: &FileError) -> Option<&'static str> {
    match error {
        FileError::NotFound { .. } => Some("'everbyte pool create' makes one"),
        FileError::Exists { .. } => {
            Some("choose another path, or pass --force to destroy what is there")
        }
        FileError::NoSize { .. } => Some("pass --size"),
        FileError::Lent { .. } => Some("end them first"),
        FileError::NotBlank { .. } => Some("pass --force to destroy what it holds"),
        FileError::LeadsNowhere { .. } => Some("remove the link, or choose another path"),
        FileError::Media(error) => of_media(error),
        FileError::Pool { source, .. } => of_pool(source),
        _ => None,
    }
}

fn of_media(error: &OpenError) -> Option<&'static str> {
    matches!(error, OpenError::NoSpace { .. }).then_some("free space, or choose a smaller size")
}

fn of_device(error: &DeviceError) -> Option<&'static str> {
    let is_full = matches!(error, DeviceError::NoSpace { .. });
    is_full.then_some("grow the pool, or trim or delete volumes")
}

fn of_pool(error: &PoolError) -> Option<&'static str> {
    match error {
        PoolError::NoSuchVolume { .. } => of_cause(Cause::NoSuchVolume),
        PoolError::Damaged { .. } => of_cause(Cause::VolumeDamaged),
        _ => None,
    }
}

fn of_busy(busy: &Busy) -> &'static str {
    if busy.is_served() {
        "this needs the pool alone: end the server first. Commands that do not, such as 'everbyte volume', \
         reach the server by themselves"
    } else {
        "try again, or end it"
    }
}

fn of_refusal(refused: &RequestError) -> Option<&'static str> {
    refused.cause.and_then(of_cause)
}

fn of_cause(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::NoSuchVolume => "'everbyte volume list' shows those there are",
        Cause::NoSuchClient => "'everbyte client list' shows those there are",
        Cause::HasClients => "disconnect them first, or pass --force to disconnect them",
        Cause::DeletedUnderClients => "disconnect them, or pass --force to delete it under them",
        Cause::ServedReadOnly => {
            "end the server and serve the pool without --read-only, or try again when nobody serves it"
        }
        Cause::OtherBacking => {
            "give the cache its own backing device again; if that has moved, attach it by \
            'everbyte volume attach'"
        }
        Cause::BackingGrown => {
            "'everbyte volume resize' with --follow-backing makes the cache as large"
        }
        Cause::BackingShrunk => {
            "a cache cannot shrink with its backing device: bring that back to its old size, and \
             detach the cache before you make it smaller"
        }
        Cause::CacheReadOnly => "see 'everbyte pool check' for why, and mend the pool",
        Cause::CacheSize => {
            "make that larger and pass --follow-backing instead of --size; --scm and --dram change \
            how much the cache can hold"
        }
        Cause::CacheDirty => {
            "'everbyte volume detach' writes them there and then deletes it, --force throws them away"
        }
        Cause::CacheUnread => {
            "'everbyte pool check' says what is damaged; --force deletes it with whatever it has"
        }
        Cause::UntrustedPool => {
            "make the pool, and what it lies on, writable for one user: the user whose files and programs use it; or \
            pass --trust-pool to the command that opens it ('everbyte serve', if a server has it) if you trust every \
            user who can change it"
        }
        Cause::VolumeDamaged => {
            "copy out what can be read ('everbyte fs get -r', or a client of 'everbyte serve --read-only'), then \
             'everbyte volume delete --force' removes the volume; 'everbyte pool check' names the damage"
        }
        Cause::FileDamaged => {
            "'everbyte fs rm' removes the damaged name; 'everbyte pool check' names the damage"
        }
        Cause::PoolFull => {
            "choose a smaller size, delete a volume, or grow the pool: 'everbyte pool grow'"
        }
        Cause::NoSuchFile => "'everbyte fs ls' shows the files there are",
        Cause::FilesFull => {
            "remove files, or make room: 'everbyte volume list' and 'everbyte pool info' show how much \
            there is"
        }
        _ => return None,
    })
}
