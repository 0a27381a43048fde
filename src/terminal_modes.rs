//! System calls on the terminal: its modes, its size, and the job that has it.

pub use system::{Modes, is_in_background, size};

#[cfg(unix)]
mod system {
    use rustix::process::getpgrp;
    use rustix::termios::{
        OptionalActions, Termios, Winsize, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    };

    /// Modes of the terminal at stdin.
    pub struct Modes(Termios);

    impl Modes {
        /// The modes now; `None` without a terminal.
        pub fn read() -> Option<Modes> {
            tcgetattr(std::io::stdin()).ok().map(Modes)
        }

        /// Sets these modes again.
        pub fn restore(&self) {
            // A terminal that is gone has none.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
        }
    }

    /// Rows and columns of the terminal at stderr.
    pub fn size() -> Option<(u16, u16)> {
        let Winsize { ws_row, ws_col, .. } = tcgetwinsize(std::io::stderr()).ok()?;
        Some((ws_row, ws_col))
    }

    /// True for a job that its shell has stopped or put in the background.
    pub fn is_in_background() -> bool {
        tcgetpgrp(std::io::stdin()).is_ok_and(|group| group != getpgrp())
    }
}

/// Elsewhere the line editor alone changes the modes, and restores them; nothing is drawn below the
/// text.
#[cfg(not(unix))]
mod system {
    /// There are none to restore.
    pub enum Modes {}

    impl Modes {
        /// None.
        pub fn read() -> Option<Modes> {
            None
        }

        /// Never called.
        pub fn restore(&self) {
            match *self {}
        }
    }

    /// Not asked for.
    pub fn size() -> Option<(u16, u16)> {
        None
    }

    /// There are no jobs.
    pub fn is_in_background() -> bool {
        false
    }
}
