//! A source file split into code, comments and string literals, line by line.

use crate::tree;

/// One line of a source file.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Code outside comments; literals of strings and characters keep their quotes only.
    pub code: String,
    /// Comment with its marker (`//`, `///`, `#`), or a line of a Python docstring.
    pub comment: String,
    /// Contents of the string literals, each followed by a quotation mark; a space for an escape.
    pub literals: String,
}

/// Lexical rules of one language, for comments and strings only.
#[derive(Clone, Copy)]
struct Syntax {
    comment: &'static str,
    blocks: bool,
    /// `r"..."`, `r#"..."#`, and `'` as lifetime or character.
    rust: bool,
    /// `'...'` strings.
    single_quotes: bool,
    /// `"""` strings; one that begins a line is a docstring.
    triple_quotes: bool,
    /// An unclosed `"` ends with its line.
    one_line_strings: bool,
}

const RUST: Syntax = Syntax {
    comment: "//",
    blocks: true,
    rust: true,
    single_quotes: false,
    triple_quotes: false,
    one_line_strings: false,
};
const C: Syntax = Syntax { rust: false, single_quotes: true, one_line_strings: true, ..RUST };
const PYTHON: Syntax = Syntax {
    comment: "#",
    blocks: false,
    rust: false,
    single_quotes: true,
    triple_quotes: true,
    one_line_strings: true,
};
const TOML: Syntax = Syntax { triple_quotes: false, ..PYTHON };

enum State {
    Code,
    LineComment,
    BlockComment(u32),
    Text { close: String, escapes: bool, docstring: bool },
}

/// The lines of a source file, or none for a document.
pub fn lines(path: &str, text: &str) -> Vec<Line> {
    let syntax = match tree::extension(path) {
        "rs" => RUST,
        "cu" | "cuh" | "h" => C,
        "py" => PYTHON,
        "toml" | "sh" | "ci" => TOML,
        _ => return Vec::new(),
    };
    text.lines().scan(State::Code, |state, line| Some(split(line, state, syntax))).collect()
}

/// Splits one line; `state` carries over what is open at its end.
fn split(text: &str, state: &mut State, syntax: Syntax) -> Line {
    let mut line = Line::default();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut used = first.len_utf8();
        match state {
            State::Code => {
                let (next, length) = open(rest, &line.code, syntax);
                used = length.max(used);
                let is_character = next.is_none() && used > first.len_utf8();
                match next {
                    Some(State::LineComment | State::BlockComment(_)) => {
                        line.comment += &rest[..used]
                    }
                    _ if is_character => line.code += "''",
                    _ => line.code += &rest[..used],
                }
                *state = next.unwrap_or(State::Code);
            }
            State::LineComment => line.comment.push(first),
            State::BlockComment(depth) => {
                used = if rest.starts_with("*/") || rest.starts_with("/*") { 2 } else { used };
                line.comment += &rest[..used];
                *depth = match &rest[..used] {
                    "*/" => *depth - 1,
                    "/*" => *depth + 1,
                    _ => *depth,
                };
                if *depth == 0 {
                    *state = State::Code;
                }
            }
            State::Text { close, escapes, docstring } => {
                if rest.starts_with(close.as_str()) {
                    used = close.len();
                    line.code += close;
                    if !*docstring {
                        line.literals += "\" ";
                    }
                    *state = State::Code;
                } else {
                    let escaped =
                        if *escapes && first == '\\' { rest.chars().nth(1) } else { None };
                    used += escaped.map_or(0, char::len_utf8);
                    match (*docstring, escaped) {
                        (true, _) => line.comment += &rest[..used],
                        (false, Some(_)) => line.literals.push(' '),
                        // The backslash that continues a literal on the next line is none of it.
                        (false, None) if *escapes && first == '\\' => {}
                        (false, None) => line.literals.push(first),
                    }
                }
            }
        }
        rest = &rest[used..];
    }
    let unclosed = matches!(state, State::Text { close, .. } if close.len() == 1);
    if matches!(state, State::LineComment) || (unclosed && syntax.one_line_strings) {
        *state = State::Code;
    }
    line
}

/// The comment or string that begins at `rest`, and the bytes of its opening. Characters and raw
/// strings are seen only where the code `before` on the line does not end in an identifier.
fn open(rest: &str, before: &str, syntax: Syntax) -> (Option<State>, usize) {
    let text =
        |close: &str, escapes| State::Text { close: close.to_owned(), escapes, docstring: false };
    let after_name = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    // In a shell, `$#` and `${x#y}` are no comments.
    let comment_allowed = syntax.comment == "//" || before.is_empty() || before.ends_with(' ');
    if rest.starts_with(syntax.comment) && comment_allowed {
        return (Some(State::LineComment), syntax.comment.len());
    }
    if syntax.blocks && rest.starts_with("/*") {
        return (Some(State::BlockComment(1)), 2);
    }
    if syntax.triple_quotes && rest.starts_with("\"\"\"") {
        let docstring = before.trim().is_empty();
        return (Some(State::Text { close: "\"\"\"".to_owned(), escapes: true, docstring }), 3);
    }
    if syntax.rust && !after_name {
        let start = rest.trim_start_matches(['b', 'c']);
        let hashes =
            start.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
        if let Some(hashes) = hashes {
            let opening = rest.len() - start.len() + 1 + hashes + 1;
            if rest[..opening.min(rest.len())].ends_with('"') {
                return (Some(text(&format!("\"{}", "#".repeat(hashes)), false)), opening);
            }
        }
    }
    if rest.starts_with('"') {
        return (Some(text("\"", true)), 1);
    }
    if syntax.rust && rest.starts_with('\'') {
        return (None, character(rest));
    }
    if syntax.single_quotes && rest.starts_with('\'') && !(syntax.comment == "//" && after_name) {
        return (Some(text("'", true)), 1);
    }
    (None, 1)
}

/// Bytes of the character literal at `rest`; 1 for the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => {
            rest[3..].find('\'').map_or(1, |closing| closing + 4).min(rest.len())
        }
        (Some(_), Some((closing, '\''))) => closing + 1,
        _ => 1,
    }
}

#[test]
fn code_comments_and_strings_are_split() {
    let text = "let a = \"// no\"; // yes\nlet c = '\"'; /* one /* two */ */ f::<'a>();\n\
                let r = r#\"raw \" // \n unsafe \"#; g();\n/// doc \"x\nlet s = \"a\\\"b\";";
    let lines = lines("a.rs", text);
    let split: Vec<(&str, &str)> =
        lines.iter().map(|line| (line.code.as_str(), line.comment.as_str())).collect();
    assert_eq!(
        split,
        [
            ("let a = \"\"; ", "// yes"),
            ("let c = '';  f::<'a>();", "/* one /* two */ */"),
            ("let r = r#\"", ""),
            ("\"#; g();", ""),
            ("", "/// doc \"x"),
            ("let s = \"\";", ""),
        ]
    );
}

#[test]
fn literals_keep_their_words() {
    let lines =
        lines("a.rs", "f(\"one\\ntwo\", \"three \\\n    four\"); // \"five\"\nr#\"si\"x\"#");
    let literals: Vec<&str> = lines.iter().map(|line| line.literals.as_str()).collect();
    assert_eq!(literals, ["one two\" three ", "    four\" ", "si\"x\" "]);
}

#[test]
fn docstrings_are_comments_and_other_strings_are_not() {
    let lines =
        lines("a.py", "def f():\n    \"\"\"Doc\n    more\"\"\"\nX = \"\"\"data\n# no\"\"\"  # yes");
    assert_eq!(lines[1].comment, "Doc");
    assert_eq!(lines[2].comment, "    more");
    assert_eq!((lines[3].comment.as_str(), lines[4].comment.as_str()), ("", "# yes"));
}

#[test]
fn a_shell_parameter_is_no_comment() {
    let lines = lines("a.sh", "test $# -gt 0 && x=${y#z} # why");
    assert_eq!(lines[0].comment, "# why");
}
