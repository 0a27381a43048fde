//! A terminal for a program under test.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A new terminal of 12 rows and 90 columns.
pub(crate) struct Terminal {
    keys: OwnedFd,
}

impl Terminal {
    pub(crate) fn new() -> Terminal {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("a terminal");
        let size = Winsize { ws_row: 12, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, size).expect("a size");
        Terminal { keys }
    }

    /// The side of the person: what is written is typed, what is read is shown.
    pub(crate) fn person(&self) -> File {
        File::from(self.keys.try_clone().expect("a copy"))
    }

    /// The side of the program, for its standard streams.
    pub(crate) fn program(&self) -> OwnedFd {
        let name = ptsname(&self.keys, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        rustix::fs::open(&name, flags, Mode::empty()).expect("the terminal")
    }
}
