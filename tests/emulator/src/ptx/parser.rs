//! Tokens to a [`Module`]. Names are resolved here, because inline assembly opens scopes
//! (`{ .reg .pred p; ... }`) that decode need not know of.

mod body;
mod statements;
mod variables;

use super::PtxError;
use super::ast::Module;
use super::lexer::{self, Kind, Token};

/// Deepest nesting of brackets and signs. nvcc writes no deeper than the braces of inlined
/// assembly.
const MAX_NESTING: usize = 64;

type Result<T> = std::result::Result<T, PtxError>;

/// Parses a module.
pub(crate) fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser { tokens: lexer::tokens(text)?, at: 0 };
    check_nesting(&parser.tokens)?;
    let mut module =
        Module { lines: text.lines().map(str::to_owned).collect(), ..Module::default() };
    while !parser.at_end() {
        parser.top_level(&mut module)?;
    }
    Ok(module)
}

/// Refuses text that would take a deep stack: each bracket and each sign is a call.
fn check_nesting(tokens: &[Token]) -> Result<()> {
    let (mut brackets, mut signs) = (0_usize, 0);
    for token in tokens {
        match token.kind {
            Kind::Punct('{' | '(' | '[') => brackets += 1,
            Kind::Punct('}' | ')' | ']') => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        let is_sign = matches!(token.kind, Kind::Punct('-' | '!'));
        signs = if is_sign { signs + 1 } else { 0 };
        if brackets + signs > MAX_NESTING {
            return Err(PtxError::at(token.line, format!("nested more than {MAX_NESTING} deep")));
        }
    }
    Ok(())
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    pub(super) fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens
            .get(self.at.min(self.tokens.len().saturating_sub(1)))
            .map_or(0, |token| token.line)
    }

    pub(super) fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(PtxError::at(self.line(), reason))
    }

    pub(super) fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    pub(super) fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub(super) fn is_punct(&self, punct: char) -> bool {
        self.peek() == Some(&Kind::Punct(punct))
    }

    pub(super) fn take_punct(&mut self, punct: char) -> bool {
        let found = self.is_punct(punct);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect_punct(&mut self, punct: char) -> Result<()> {
        if self.take_punct(punct) {
            Ok(())
        } else {
            self.fail(format!("expected `{punct}`, found {:?}", self.peek()))
        }
    }

    pub(super) fn word(&mut self) -> Result<String> {
        match self.peek() {
            Some(Kind::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            other => self.fail(format!("expected a name, found {other:?}")),
        }
    }

    pub(super) fn int(&mut self) -> Result<u64> {
        let negative = self.take_punct('-');
        match self.peek() {
            Some(&Kind::Int(value)) => {
                self.at += 1;
                Ok(if negative { value.wrapping_neg() } else { value })
            }
            other => self.fail(format!("expected a number, found {other:?}")),
        }
    }

    pub(super) fn top_level(&mut self, module: &mut Module) -> Result<()> {
        let Some(word) = self.peek_word() else {
            return self.fail(format!("unexpected {:?}", self.peek()));
        };
        match word {
            ".visible" | ".extern" | ".weak" | ".common" => self.at += 1,
            ".entry" | ".func" => {
                if let Some(function) = self.function()? {
                    module.functions.push(function);
                }
            }
            ".global" | ".const" | ".shared" => self.variables(&mut module.variables)?,
            ".section" => self.skip_braces()?,
            ".pragma" => self.skip_to(';'),
            other => return self.fail(format!("unsupported directive `{other}`")),
        }
        Ok(())
    }

    pub(super) fn skip_to(&mut self, punct: char) {
        while !self.at_end() && !self.take_punct(punct) {
            self.at += 1;
        }
    }

    pub(super) fn skip_braces(&mut self) -> Result<()> {
        while !self.at_end() && !self.is_punct('{') {
            self.at += 1;
        }
        let mut depth = 0;
        while !self.at_end() {
            depth += i32::from(self.is_punct('{')) - i32::from(self.is_punct('}'));
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
        self.fail("braces without end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::ast::Operand;

    #[test]
    fn scopes_of_inline_assembly_do_not_clash() {
        let text = ".visible .entry k(.param .u64 k_0) { .reg .b32 %r<3>; { .reg .b32 t; mov.b32 t, 1; add.u32 %r1, t, 2; }
            { .reg .b32 t; L: mov.b32 t, 7; bra L; } ret; }";
        let module = parse(text).unwrap();
        let body = &module.functions[0].body;
        assert_eq!(module.functions[0].registers.len(), 5);
        assert_eq!(body[0].operands[0], Operand::Register(3));
        assert_eq!(body[2].operands[0], Operand::Register(4));
        assert_eq!(body[3].operands[0], Operand::Symbol("L#3".into(), 0));
        assert_eq!(module.functions[0].labels["L#3"], 2);
    }

    #[test]
    fn variables_with_initialisers() {
        let text =
            ".global .align 8 .u64 p = generic(t); .const .align 4 .b8 t[4] = {1, 2, 0, 255};
            .extern .shared .align 16 .b8 sm[]; .global .align 4 .f32 f = 0f3F800000;";
        let module = parse(text).unwrap();
        assert_eq!(module.variables[0].relocations, [(0, "t".to_owned(), 0)]);
        assert_eq!(module.variables[1].init, [1, 2, 0, 255]);
        assert_eq!((module.variables[2].size, module.variables[2].align), (0, 16));
        assert_eq!(module.variables[3].init, 1f32.to_le_bytes());
    }

    #[test]
    fn variables_larger_than_any_memory_are_refused() {
        for variable in [".b8 t[-8]", ".b64 t[4294967296][4294967296]", ".align 65537 .b8 t[1]"] {
            let error = parse(&format!(".shared {variable};")).unwrap_err();
            assert!(error.reason.starts_with("`t` is"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse(".entry k() {\n .reg .b32 %r<2>;\n mov.u32 %r1 3;\n}").unwrap_err();
        assert_eq!(error.line, 3);
    }
}
