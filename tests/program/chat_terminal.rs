//! `trail-rt chat` in a terminal: the line editor, Ctrl-C, and the bar on the last line.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::PROGRAM;
use crate::common::deadline::Deadline;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Longest wait for a text.
const LIMIT: Duration = Duration::from_secs(60);

/// A chat whose stdin and stderr are a new terminal.
struct Terminal {
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// All that was written to the terminal.
    shown: String,
    child: Child,
    _deadline: Deadline,
}

impl Terminal {
    /// Starts a chat with stdout in the terminal too, or else in a pipe.
    fn start(stdout_in_terminal: bool, options: &[&str]) -> Terminal {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keys).and_then(|()| unlockpt(&keys)).expect("a terminal");
        let size = Winsize { ws_row: 12, ws_col: 90, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&keys, size).expect("a size");
        let name = ptsname(&keys, Vec::new()).expect("a name");
        let open = || -> OwnedFd {
            let flags = OFlags::RDWR | OFlags::NOCTTY;
            rustix::fs::open(&name, flags, Mode::empty()).expect("the terminal")
        };
        // `setsid --ctty` makes the terminal that of the program, so that Ctrl-C is a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", PROGRAM, "chat", "--threads", "1", "--seed", "3"]).args(options);
        command.env("TERM", "xterm").stdin(open()).stderr(open());
        command.stdout(if stdout_in_terminal { open().into() } else { Stdio::piped() });
        let child = command.spawn().expect("setsid of util-linux");
        drop(command);
        let (mut terminal, keys) =
            (File::from(keys.try_clone().expect("a copy")), File::from(keys));
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            // The end of the program is an error of the terminal.
            while let Ok(bytes @ 1..) = terminal.read(&mut piece) {
                if sender.send(piece[..bytes].to_vec()).is_err() {
                    return;
                }
            }
        });
        let _deadline = Deadline::of(child.id());
        let mut terminal = Terminal { keys, screen, shown: String::new(), child, _deadline };
        terminal.wait_for("/help lists the commands");
        terminal.wait_for("> ");
        terminal
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("typed");
    }

    /// Waits until the terminal has shown `text`, and forgets what came up to there.
    fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.shown.contains(text) {
            let left = LIMIT.saturating_sub(begin.elapsed());
            let piece = self.screen.recv_timeout(left);
            let piece = piece.unwrap_or_else(|_| panic!("{text:?} is not in {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&piece);
        }
        let end = self.shown.find(text).expect("found") + text.len();
        self.shown.drain(..end);
    }
}

#[test]
fn ctrl_c_stops_the_answer_and_the_bar_comes_and_goes() {
    let mut terminal = Terminal::start(true, &["--ignore-eos"]);
    for message in ["Tell me a story about a cat.\r", "\"\"\"Tell me\ranother.\"\"\"\r"] {
        terminal.press(message);
        // Rows 1 to 11 scroll; the bar is in row 12.
        terminal.wait_for("\x1b[1;11r");
        terminal.wait_for("\x1b[12;1H\x1b[2K[");
        terminal.wait_for("to come");
        terminal.press("\x03");
        terminal.wait_for("\x1b[r\x1b8");
        terminal.wait_for("(stopped)");
        terminal.wait_for("> ");
    }
    terminal.press("half a message\x03");
    // A Ctrl-D before the prompt is lost: outside of the line editor it ends an empty line.
    terminal.wait_for("(Ctrl-D or /exit leaves)");
    terminal.wait_for("> ");
    terminal.press("/frob\r");
    terminal.wait_for("error: there is no command /frob");
    terminal.wait_for("> ");
    terminal.press("/stats\r");
    terminal.wait_for("of 1024 tokens");
    terminal.wait_for("> ");
    terminal.press("\x04");
    assert!(terminal.child.wait().expect("ended").success());
}

#[test]
fn a_piped_stdout_has_the_answers_alone() {
    let mut terminal = Terminal::start(false, &["--max-tokens", "60", "--ignore-eos"]);
    terminal.press("Tell me a story about a cat.\r");
    terminal.wait_for("to come");
    terminal.wait_for("(cut at --max-tokens)");
    terminal.wait_for("> ");
    terminal.press("/exit\r");
    let mut answers = String::new();
    let mut stdout = terminal.child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut answers).expect("UTF-8");
    assert!(terminal.child.wait().expect("ended").success());
    assert!(!answers.contains('\x1b') && !answers.contains("> "), "{answers:?}");
    assert!(answers.split_whitespace().count() > 10, "{answers:?}");
}
