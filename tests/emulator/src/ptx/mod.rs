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

use std::collections::HashMap;
use std::sync::Arc;

/// Parses a PTX text and decodes its kernels, as loading a module does. The error is one line that
/// begins with `PTX line N`.
pub fn check_ptx(text: &str) -> Result<(), String> {
    let check = || {
        let module = parser::parse(text)?;
        let addresses = module.variables.iter().map(|variable| (variable.name.clone(), 0));
        let addresses: HashMap<String, u64> = addresses.collect();
        let lines = Arc::new(module.lines.clone());
        let mut entries = module.functions.iter().filter(|function| function.is_entry);
        entries.try_for_each(|entry| decode::kernel(&module, entry, &addresses, &lines).map(drop))
    };
    check().map_err(|error: PtxError| error.to_string())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_that_are_missing_or_too_many_are_refused() {
        for line in [
            "bar.warp.sync;",
            "bar.red.popc.u32;",
            "bar.sync 0,0,0,0,0,0,0,0,0,0,0;",
            "cp.async.ca.shared.global.L2::cache_hint [%rd1], [%rd1], 16;",
            "ld.global.v8.b16 {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, [%rd1];",
            "mbarrier.try_wait.parity.shared.b64 %r1, [%r1], %r1;",
            "mbarrier.init.parity.shared.b64 %p1, [%r1], %r1;",
        ] {
            let registers = ".reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .pred %p<3>;";
            let error = check_ptx(&format!(".entry k() {{\n{registers}\n{line}\n}}"));
            assert!(error.is_err_and(|error| error.starts_with("PTX line 3")), "{line}");
        }
    }
}
