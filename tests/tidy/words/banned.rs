//! The banned words, with their replacements.

use crate::Violation;

/// A banned word or phrase, in lower case.
pub struct Banned {
    /// The word, or the words of the phrase.
    pub word: &'static str,
    /// Replacement, as the message names it.
    instead: &'static str,
    /// Texts that the rule is about.
    pub place: Place,
    /// Path prefixes where the word is legitimate.
    allowed: &'static [&'static str],
}

/// Texts that a rule is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Comments, documents, literals and identifiers.
    Everywhere,
    /// Identifiers only.
    Identifiers,
}

const fn everywhere(word: &'static str, instead: &'static str) -> Banned {
    Banned { word, instead, place: Place::Everywhere, allowed: &[] }
}

const fn identifier(
    word: &'static str,
    instead: &'static str,
    allowed: &'static [&'static str],
) -> Banned {
    Banned { word, instead, place: Place::Identifiers, allowed }
}

/// Places where a slot is no request index: of `BatchSlots`, a worker, a register of the emulator,
/// the server behind a proxy.
#[rustfmt::skip]
const NO_REQUEST_INDEX: &[&str] = &[
    "runtime/src/cuda/", "runtime/tests/cuda", "benches/src/", "kernels/", "ptx/", "tests/emulator/",
    "tests/loom/", "deploy/dynamo/", "simulator/examples/", "server/src/proxy/",
    "src/commands/proxy.rs", "tests/server/proxy/",
];

/// The banned words, in alphabetical order: those of all texts, then those of identifiers.
#[rustfmt::skip]
pub const BANNED: &[Banned] = &[
    everywhere("anew", "\"again\""),
    everywhere("at the host", "\"in host memory\" or \"on the host\""),
    everywhere("by itself", "\"alone\", \"without ...\" or nothing"),
    everywhere("comes by", "\"occurs\" or \"arrives through\""),
    everywhere("company", "\"other requests\" or \"other rows\""),
    everywhere("door", "queue, inbox or ring"),
    everywhere("doors", "queues, inbox or rings"),
    everywhere("for ever", "\"without bound\" or \"forever\""),
    everywhere("if there is one", "\"if any\", \"if present\" or \"optional\""),
    everywhere("is told", "\"receives\" or \"is notified of\""),
    everywhere("lest", "\"so that ... not\""),
    everywhere("lie in", "\"are in\""),
    everywhere("lies in", "\"is in\""),
    everywhere("mourner", "panic guard"),
    everywhere("nobody", "name what does not: \"no thread\", \"no caller\""),
    everywhere("of its own", "\"its own\", \"separate\" or \"dedicated\""),
    everywhere("of them", "name what: \"two requests\", \"all blocks\""),
    everywhere("of which", "\"whose\", \"where\" or two sentences"),
    everywhere("seat", "batch index"),
    everywhere("seats", "batch indices"),
    everywhere("stand in", "\"emulator\" or \"substitute\""),
    everywhere("stands for", "\"means\" or \"represents\""),
    everywhere("the host's", "\"host\" as an adjective: \"host memory\""),
    everywhere("twin", "reference"),
    everywhere("twins", "references"),
    everywhere("under way", "\"in flight\" or \"in progress\""),
    everywhere("who would", "\"requests that would\""),
    everywhere("whoever", "name it: \"the thread that\", \"the caller\""),
    identifier("doing", "operation", &[]),
    identifier("how", "sampling parameters, or the noun that it is", &[]),
    identifier("hows", "sampling parameters", &[]),
    identifier(
        "mark",
        "event, trace point or token count",
        &["tests/emulator/", "python/tests/"],
    ),
    identifier("marks", "events, trace points or token counts", &[]),
    identifier("most", "max or MAX_", &[]),
    identifier("said", "predicted, output, message", &[]),
    identifier("slot", "request index or batch index", NO_REQUEST_INDEX),
    identifier("slots", "request indices, or max_running", NO_REQUEST_INDEX),
    identifier("ticket", "request status", &[]),
    identifier("told", "name the message", &[]),
    identifier("took", "elapsed", &[]),
];

impl Banned {
    /// Returns true if the word is legitimate in the file at `path`.
    pub fn allows(&self, path: &str) -> bool {
        self.allowed.iter().any(|prefix| path.starts_with(prefix))
    }

    /// The violation at `line` of the file at `path`.
    pub fn violation(&self, path: &str, line: usize) -> Violation {
        let message = format!("banned word \"{}\": write {}", self.word, self.instead);
        Violation::new(path, line, message)
    }
}
