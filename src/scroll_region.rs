//! The terminal's scrolling region while its last line is in use.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rows and columns of the terminal when the region was set.
type Size = (u16, u16);

/// The region, if one is set.
static REGION: Mutex<Option<Size>> = Mutex::new(None);

/// Writes the last line `text` of a terminal of `size`, below a region of the other rows.
pub fn draw(size: Size, text: &str) {
    let (mut set, (rows, _)) = (lock(), size);
    let mut codes = String::new();
    if *set != Some(size) {
        // Down and up again: where the text is on the last row, it moves up by one. Then the
        // rows that scroll; setting them moves the cursor, which is saved and restored.
        codes += &format!("\x1bD\x1b[A\x1b7\x1b[1;{}r\x1b8", rows - 1);
        *set = Some(size);
    }
    write(&format!("{codes}\x1b7\x1b[{rows};1H\x1b[2K{text}\x1b8"));
}

/// Clears the last line, and lets the whole terminal scroll again, if a region is set.
pub fn reset() {
    clear(&mut lock());
}

/// Resets the region and ends the process: no other thread sets it in between.
pub fn exit(code: i32) -> ! {
    let mut set = lock();
    clear(&mut set);
    std::process::exit(code)
}

fn clear(set: &mut Option<Size>) {
    if let Some((rows, _)) = set.take() {
        write(&format!("\x1b7\x1b[{rows};1H\x1b[2K\x1b[r\x1b8"));
    }
}

fn lock() -> MutexGuard<'static, Option<Size>> {
    REGION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(codes: &str) {
    // A terminal that is gone shows nothing.
    let _ = std::io::stderr().write_all(codes.as_bytes());
}
