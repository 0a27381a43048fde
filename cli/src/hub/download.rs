//! Download of one file into its `.part`, resumed where an earlier one ended.
//!
//! Not by the hf-hub crate: its download asks for the metadata a second time and makes paths of
//! that answer unchecked, and a retry of a resumed file whose first request failed appends the
//! whole content to it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

use hf_hub::api::sync::ApiError;
use indicatif::ProgressBar;
use ureq::Error::{StatusCode, Timeout};

use super::cached::Blob;
use super::failure::is_local;
use super::requests::Requests;

/// Requests for one file within one run.
const ATTEMPTS: u32 = 5;

/// Wait before the second request; it grows by as much with each further one.
const WAIT: Duration = Duration::from_millis(300);

/// Waits of one second for another program that downloads the same file.
const LOCK_WAITS: u32 = 5;

/// Brings the `bytes` of `url` into `blob`. `bar` shows the bytes that are there.
pub(super) fn download(
    requests: &Requests,
    url: &str,
    blob: &Blob,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<(), ApiError> {
    let part = blob.path().with_extension("part");
    let _lock = lock(&blob.path().with_extension("lock"))?;
    for attempt in 1.. {
        // Another program may have completed it while this one waited for the lock.
        blob.take_part(bytes)?;
        if blob.size().is_some() {
            break;
        }
        match append(requests, url, &part, bytes, bar) {
            Err(error) if attempt == ATTEMPTS || !is_temporary(&error) => return Err(error),
            Err(_) => thread::sleep(WAIT * attempt),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Appends to `part` what it lacks of `bytes`.
fn append(
    requests: &Requests,
    url: &str,
    part: &Path,
    bytes: u64,
    bar: &ProgressBar,
) -> Result<(), ApiError> {
    let mut file = File::options().create(true).append(true).open(part)?;
    let begin = file.metadata()?.len();
    bar.set_position(begin);
    let response = requests.content(url, begin)?;
    let range = response.headers().get("Content-Range").map(|range| range.to_str());
    // A whole file has no range.
    let first = range.map_or(Some(0), |range| first_byte(range.ok()?));
    if first != Some(begin) {
        return Err(ApiError::InvalidHeader("Content-Range"));
    }
    let body = response.into_body().into_reader();
    let copied = io::copy(&mut bar.wrap_read(body.take(bytes - begin)), &mut file)?;
    match begin + copied {
        end if end == bytes => Ok(()),
        end => {
            let short = format!("{end} of {bytes} bytes came");
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, short).into())
        }
    }
}

/// The first byte of `bytes FIRST-LAST/TOTAL`.
fn first_byte(range: &str) -> Option<u64> {
    range.trim().strip_prefix("bytes")?.trim_start().split('-').next()?.parse().ok()
}

/// True if another request may succeed. A stalled server has had its time.
fn is_temporary(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) => match **error {
            StatusCode(status) => status == 429 || !(400..500).contains(&status),
            Timeout(_) => false,
            _ => true,
        },
        ApiError::IoError(error) if is_stall(error) => false,
        ApiError::IoError(error) => !is_local(error),
        _ => false,
    }
}

/// True if no byte of a content came within the time limit.
fn is_stall(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<ureq::Error>());
    matches!(cause, Some(Timeout(_))) || error.kind() == io::ErrorKind::TimedOut
}

/// Locks `path` against other programs, the hub's own included, until the file is closed.
fn lock(path: &Path) -> Result<File, ApiError> {
    let file = fs::OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    for _ in 0..LOCK_WAITS {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error.into()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_secs(1)),
        }
    }
    Err(ApiError::LockAcquisition(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_is_that_of_the_range() {
        assert_eq!(first_byte("bytes 7-9/10"), Some(7));
        for range in ["", "bytes */10", "7-9/10", "bytes -1/10", "items 7-9/10"] {
            assert_eq!(first_byte(range), None, "{range}");
        }
    }
}
