//! State of the terminal that the program changes: its modes, and the scrolling region while its
//! last line is in use.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use trail_cli::{Error, SignalKind};

use crate::interrupt::on_signals;
use crate::terminal_modes::{Modes, is_in_background};

/// Longest wait for a terminal that takes no output, before the process ends all the same.
const RESTORE_LIMIT: Duration = Duration::from_millis(500);

/// Ends the bracketed paste that the line editor has begun.
const END_OF_PASTE: &str = "\x1b[?2004l";

/// Rows and columns of the terminal when the region was set.
type Size = (u16, u16);

struct State {
    /// The region, if one is set.
    region: Option<Size>,
    /// The modes to restore, if a line editor may have changed them.
    modes: Option<Modes>,
}

static STATE: Mutex<State> = Mutex::new(State { region: None, modes: None });

/// Writes the last line `text` of a terminal of `size`, below a region of the other rows.
pub fn draw(size: Size, text: &str) {
    let (mut state, (rows, _)) = (lock(), size);
    let mut codes = String::new();
    if state.region != Some(size) {
        // Down and up again: where the text is on the last row, it moves up by one. Then the
        // rows that scroll; setting them moves the cursor, which is saved and restored.
        codes += &format!("\x1bD\x1b[A\x1b7\x1b[1;{}r\x1b8", rows - 1);
        state.region = Some(size);
    }
    write(&format!("{codes}\x1b7\x1b[{rows};1H\x1b[2K{text}\x1b8"));
}

/// Clears the last line, and lets the whole terminal scroll again, if a region is set.
pub fn reset_region() {
    clear(&mut lock().region);
}

/// Restores the terminal and ends the process: no other thread changes it in between. A terminal
/// that is stopped (Ctrl-S) does not hold it up for long.
pub fn exit(code: i32) -> ! {
    if is_in_background() {
        // The shell has the terminal and its own modes; a write would stop this process.
        std::process::exit(code);
    }
    let (sender, restored) = channel();
    let restore = move || {
        let mut state = lock();
        clear(&mut state.region);
        if let Some(modes) = state.modes.take() {
            // The editor draws on the terminal also where stderr is a file.
            match File::options().write(true).open("/dev/tty") {
                Ok(mut terminal) => drop(terminal.write_all(END_OF_PASTE.as_bytes())),
                Err(_) if std::io::stderr().is_terminal() => write(END_OF_PASTE),
                Err(_) => {}
            }
            modes.restore();
        }
        // Kept locked: no thread draws any more.
        std::mem::forget(state);
        let _ = sender.send(());
    };
    // Without a thread the channel is closed, and nothing is waited for.
    let _ = thread::Builder::new().name("restore".into()).spawn(restore);
    let _ = restored.recv_timeout(RESTORE_LIMIT);
    std::process::exit(code)
}

/// From here on SIGTERM, SIGHUP and SIGQUIT restore the modes that the terminal has now, and end
/// the process with 128 and their number.
pub fn restore_on_signals() -> Result<(), Error> {
    let is_plain = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    lock().modes = Modes::read().filter(|_| !is_plain);
    let kinds = [SignalKind::Terminate, SignalKind::Hangup, SignalKind::Quit];
    on_signals(kinds, |kind| exit(kind.exit_code()))
}

fn clear(set: &mut Option<Size>) {
    if let Some((rows, _)) = set.take() {
        write(&format!("\x1b7\x1b[{rows};1H\x1b[2K\x1b[r\x1b8"));
    }
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(codes: &str) {
    // A terminal that is gone shows nothing.
    let _ = std::io::stderr().write_all(codes.as_bytes());
}
