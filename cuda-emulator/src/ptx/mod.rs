//! PTX text to a decoded program: [`lexer`], [`parser`] (names resolved), [`decode`] (types
//! resolved, one handler an instruction).

pub(crate) mod ast;
pub(crate) mod cfg;
pub(crate) mod decode;
pub(crate) mod inline;
pub(crate) mod lexer;
pub(crate) mod operands;
pub(crate) mod parser;
pub(crate) mod program;
pub(crate) mod registers;
pub(crate) mod types;

/// An error in a PTX text, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxError {
    /// Line in the text, from 1.
    pub(crate) line: u32,
    /// The reason.
    pub(crate) reason: String,
}

impl PtxError {
    pub(crate) fn at(line: u32, reason: impl Into<String>) -> PtxError {
        PtxError { line, reason: reason.into() }
    }
}

impl std::fmt::Display for PtxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for PtxError {}
