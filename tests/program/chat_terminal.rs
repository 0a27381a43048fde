//! `trail-rt chat` in a terminal: the line editor, Ctrl-C, and the bar on the last line.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::PROGRAM;
use crate::common::deadline::Deadline;
use crate::terminal::Terminal;
use rustix::termios::{LocalModes, tcgetattr};

/// Longest wait for a text.
const LIMIT: Duration = Duration::from_secs(60);

/// A chat whose stdin and stderr are a new terminal.
struct Chat {
    terminal: Terminal,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// All that was written to the terminal.
    shown: String,
    child: Child,
    _deadline: Deadline,
}

impl Chat {
    /// Starts a chat with stdout in the terminal too, or else in a pipe.
    fn start(stdout_in_terminal: bool, options: &[&str]) -> Chat {
        let terminal = Terminal::new();
        let open = || terminal.program();
        // `setsid --ctty` makes the terminal that of the program, so that Ctrl-C is a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", PROGRAM, "chat", "--threads", "1", "--seed", "3"]).args(options);
        command.env("TERM", "xterm").stdin(open()).stderr(open());
        command.stdout(if stdout_in_terminal { open().into() } else { Stdio::piped() });
        let child = command.spawn().expect("setsid of util-linux");
        drop(command);
        let (keys, mut screen_side) = (terminal.person(), terminal.person());
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            // The end of the program is an error of the terminal.
            while let Ok(bytes @ 1..) = screen_side.read(&mut piece) {
                if sender.send(piece[..bytes].to_vec()).is_err() {
                    return;
                }
            }
        });
        let _deadline = Deadline::of(child.id());
        let mut chat = Chat { terminal, keys, screen, shown: String::new(), child, _deadline };
        chat.wait_for("/help lists the commands");
        chat.wait_for("> ");
        chat
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
    let mut chat = Chat::start(true, &["--ignore-eos"]);
    for message in ["Tell me a story about a cat.\r", "\"\"\"Tell me\ranother.\"\"\"\r"] {
        chat.press(message);
        // Rows 1 to 11 scroll; the bar is in row 12.
        chat.wait_for("\x1b[1;11r");
        chat.wait_for("\x1b[12;1H\x1b[2K[");
        chat.wait_for("to come");
        chat.press("\x03");
        chat.wait_for("\x1b[r\x1b8");
        chat.wait_for("(stopped)");
        chat.wait_for("> ");
    }
    chat.press("half a message\x03");
    // A Ctrl-D before the prompt is lost: outside of the line editor it ends an empty line.
    chat.wait_for("(Ctrl-D or /exit leaves)");
    chat.wait_for("> ");
    chat.press("/frob\r");
    chat.wait_for("error: there is no command /frob");
    chat.wait_for("> ");
    chat.press("/stats\r");
    chat.wait_for("of 1024 tokens");
    chat.wait_for("> ");
    chat.press("\x04");
    assert!(chat.child.wait().expect("ended").success());
}

#[test]
fn a_piped_stdout_has_the_answers_alone() {
    let mut chat = Chat::start(false, &["--max-tokens", "60", "--ignore-eos"]);
    chat.press("Tell me a story about a cat.\r");
    chat.wait_for("to come");
    chat.wait_for("(cut at --max-tokens)");
    chat.wait_for("> ");
    chat.press("/exit\r");
    let mut answers = String::new();
    let mut stdout = chat.child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut answers).expect("UTF-8");
    assert!(chat.child.wait().expect("ended").success());
    assert!(!answers.contains('\x1b') && !answers.contains("> "), "{answers:?}");
    assert!(answers.split_whitespace().count() > 10, "{answers:?}");
}

/// The modes, the bracketed paste and the scrolling region are those of before, whenever a signal
/// comes.
#[test]
fn a_signal_restores_the_terminal() {
    for (signal, code, answers) in [("TERM", 143, false), ("HUP", 129, true), ("TERM", 143, true)] {
        let mut chat = Chat::start(true, &["--ignore-eos"]);
        let modes = || tcgetattr(chat.terminal.program()).expect("modes").local_modes;
        if answers {
            chat.press("Tell me a story about a cat.\r");
            chat.wait_for("\x1b[1;11r");
        } else {
            assert!(!modes().contains(LocalModes::ECHO), "the line editor is at work");
        }
        // `setsid` has become the program.
        let pid = chat.child.id().to_string();
        let killed = Command::new("kill").args([&format!("-{signal}"), &pid]).status();
        assert!(killed.expect("kill starts").success());
        if answers {
            chat.wait_for("\x1b[r\x1b8");
        }
        chat.wait_for("\x1b[?2004l");
        assert_eq!(chat.child.wait().expect("ended").code(), Some(code));
        let modes = tcgetattr(chat.terminal.program()).expect("modes").local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
    }
}

#[test]
fn a_byte_that_is_not_utf_8_does_not_end_the_chat() {
    let mut chat = Chat::start(true, &["--max-tokens", "4"]);
    chat.keys.write_all(b"caf\xe9\r").expect("typed");
    chat.wait_for("not UTF-8");
    chat.wait_for("> ");
    chat.press("/exit\r");
    assert!(chat.child.wait().expect("ended").success());
}
