//! Tokens to a [`Module`]. Names are resolved here, because inline assembly opens scopes (`{ .reg .pred p; ... }`) that decode
//! need not know of.

use std::collections::HashMap;

use super::PtxError;
use super::ast::{Function, Module, Operand, Place, Statement, Variable};
use super::lexer::{self, Kind, Token};
use super::types::Ty;

type Result<T> = std::result::Result<T, PtxError>;

/// Parses a module.
pub(crate) fn parse(text: &str) -> Result<Module> {
    let mut parser = Parser { tokens: lexer::tokens(text)?, at: 0 };
    let mut module =
        Module { lines: text.lines().map(str::to_owned).collect(), ..Module::default() };
    while !parser.at_end() {
        parser.top_level(&mut module)?;
    }
    Ok(module)
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

/// Names visible inside one pair of braces. Registers map to indices, labels and variables to unique names.
#[derive(Default)]
struct Scope {
    registers: HashMap<String, u32>,
    renamed: HashMap<String, String>,
}

impl Parser {
    fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    fn line(&self) -> u32 {
        self.tokens
            .get(self.at.min(self.tokens.len().saturating_sub(1)))
            .map_or(0, |token| token.line)
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(PtxError::at(self.line(), reason))
    }

    fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn peek_word(&self) -> Option<&str> {
        match self.peek() {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn is_mark(&self, mark: char) -> bool {
        self.peek() == Some(&Kind::Mark(mark))
    }

    fn take_mark(&mut self, mark: char) -> bool {
        let found = self.is_mark(mark);
        self.at += usize::from(found);
        found
    }

    fn expect_mark(&mut self, mark: char) -> Result<()> {
        if self.take_mark(mark) {
            Ok(())
        } else {
            self.fail(format!("expected `{mark}`, found {:?}", self.peek()))
        }
    }

    fn word(&mut self) -> Result<String> {
        match self.peek() {
            Some(Kind::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            other => self.fail(format!("expected a name, found {other:?}")),
        }
    }

    fn int(&mut self) -> Result<u64> {
        let negative = self.take_mark('-');
        match self.peek() {
            Some(&Kind::Int(value)) => {
                self.at += 1;
                Ok(if negative { value.wrapping_neg() } else { value })
            }
            other => self.fail(format!("expected a number, found {other:?}")),
        }
    }

    fn top_level(&mut self, module: &mut Module) -> Result<()> {
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

    fn skip_to(&mut self, mark: char) {
        while !self.at_end() && !self.take_mark(mark) {
            self.at += 1;
        }
    }

    fn skip_braces(&mut self) -> Result<()> {
        while !self.at_end() && !self.is_mark('{') {
            self.at += 1;
        }
        let mut depth = 0;
        while !self.at_end() {
            depth += i32::from(self.is_mark('{')) - i32::from(self.is_mark('}'));
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
        self.fail("braces without end")
    }

    /// `.global .align 4 .u32 a = 3, b;`
    fn variables(&mut self, into: &mut Vec<Variable>) -> Result<()> {
        let place = match self.word()?.as_str() {
            ".global" => Place::Global,
            ".const" => Place::Const,
            ".shared" => Place::Shared,
            ".local" => Place::Local,
            ".param" => Place::Param,
            other => return self.fail(format!("unsupported state space `{other}`")),
        };
        let (align, ty, lanes) = self.variable_type()?;
        loop {
            into.push(self.declarator(place, align, ty, lanes)?);
            if !self.take_mark(',') {
                break;
            }
        }
        self.expect_mark(';')
    }

    /// `.align 16 .v4 .b8`: alignment, type, vector length.
    fn variable_type(&mut self) -> Result<(u64, Ty, u64)> {
        let (mut align, mut lanes) = (None, 1);
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = Some(self.int()?),
                ".attribute" => self.skip_to(')'),
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                other => match Ty::parse(other.trim_start_matches('.')) {
                    Some(ty) => return Ok((align.unwrap_or(ty.bytes() * lanes), ty, lanes)),
                    None => return self.fail(format!("unsupported type `{other}`")),
                },
            }
        }
    }

    fn declarator(&mut self, place: Place, align: u64, ty: Ty, lanes: u64) -> Result<Variable> {
        // A parameter may say `.ptr .global .align 16` between its type and its name.
        while self.peek_word().is_some_and(|word| word.starts_with('.')) {
            if self.word()? == ".align" {
                self.int()?;
            }
        }
        let name = self.word()?;
        let mut count = 1;
        let mut open_ended = false;
        while self.take_mark('[') {
            if self.is_mark(']') {
                open_ended = true;
            } else {
                count *= self.int()?;
            }
            self.expect_mark(']')?;
        }
        let element = ty.bytes();
        let mut variable = Variable {
            name,
            place,
            align: align.max(1),
            size: if open_ended { 0 } else { count * element * lanes },
            init: Vec::new(),
            relocations: Vec::new(),
        };
        if self.take_mark('=') {
            self.initialiser(element, &mut variable)?;
            if open_ended {
                variable.size = variable.init.len() as u64;
            }
        }
        Ok(variable)
    }

    fn initialiser(&mut self, element: u64, variable: &mut Variable) -> Result<()> {
        if self.take_mark('{') {
            while !self.take_mark('}') {
                self.initialiser(element, variable)?;
                self.take_mark(',');
            }
            return Ok(());
        }
        let negative = self.take_mark('-');
        let mut bits = match self.peek().cloned() {
            Some(Kind::Int(value)) => value,
            Some(Kind::Float { bits64, .. }) if element == 8 => bits64,
            Some(Kind::Float { bits32, .. }) => u64::from(bits32),
            Some(Kind::Word(mut name)) => {
                if name == "generic" {
                    self.at += 2;
                    name = self.word()?;
                    self.at -= 1;
                    self.tokens.remove(self.at + 1);
                }
                variable.relocations.push((variable.init.len() as u64, name, 0));
                0
            }
            other => return self.fail(format!("unsupported initialiser {other:?}")),
        };
        self.at += 1;
        if self.take_mark('+')
            && let (addend, Some(last)) = (self.int()? as i64, variable.relocations.last_mut())
        {
            last.2 = addend;
        }
        if negative {
            bits = bits.wrapping_neg();
        }
        variable.init.extend_from_slice(&bits.to_le_bytes()[..element as usize]);
        Ok(())
    }

    /// `.entry name(params) .maxntid 256, 1, 1 { ... }`; a prototype gives none.
    fn function(&mut self) -> Result<Option<Function>> {
        let is_entry = self.word()? == ".entry";
        let mut body = Body::default();
        if self.is_mark('(') {
            let outputs = self.params()?;
            body.function.variables.extend(outputs);
        }
        body.function.name = self.word()?;
        body.function.is_entry = is_entry;
        if self.is_mark('(') {
            body.function.params = self.params()?;
        }
        while let Some(word) = self.peek_word().map(str::to_owned) {
            self.at += 1;
            match word.as_str() {
                ".maxntid" | ".reqntid" => {
                    let mut threads = self.int()?;
                    while self.take_mark(',') {
                        threads *= self.int()?;
                    }
                    body.function.max_threads = u32::try_from(threads).ok();
                }
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    self.int()?;
                }
                ".noreturn" => {}
                ".pragma" => self.skip_to(';'),
                other => return self.fail(format!("unsupported performance directive `{other}`")),
            }
        }
        if self.take_mark(';') {
            return Ok(None);
        }
        self.block(&mut body)?;
        Ok(Some(body.function))
    }

    fn params(&mut self) -> Result<Vec<Variable>> {
        self.expect_mark('(')?;
        let mut params = Vec::new();
        while !self.take_mark(')') {
            let word = self.word()?;
            if word != ".param" {
                return self.fail(format!("parameters in `{word}` are not supported"));
            }
            let (align, ty, lanes) = self.variable_type()?;
            params.push(self.declarator(Place::Param, align, ty, lanes)?);
            self.take_mark(',');
        }
        Ok(params)
    }

    /// `{ ... }`, with its own names.
    fn block(&mut self, body: &mut Body) -> Result<()> {
        self.expect_mark('{')?;
        body.open(self);
        while !self.take_mark('}') {
            if self.at_end() {
                return self.fail("body without end");
            }
            self.statement(body)?;
        }
        body.scopes.pop();
        Ok(())
    }

    fn statement(&mut self, body: &mut Body) -> Result<()> {
        if self.is_mark('{') {
            return self.block(body);
        }
        if self.take_mark(';') {
            return Ok(());
        }
        match self.peek_word() {
            Some(".reg") => return self.registers(body),
            Some(".local" | ".shared" | ".param" | ".const" | ".global") => {
                let first = body.function.variables.len();
                self.variables(&mut body.function.variables)?;
                for at in first..body.function.variables.len() {
                    let unique = body.unique(&body.function.variables[at].name.clone());
                    body.function.variables[at].name = unique;
                }
                return Ok(());
            }
            Some(".pragma") => {
                self.skip_to(';');
                return Ok(());
            }
            _ => {}
        }
        let is_label =
            matches!(self.tokens.get(self.at + 1), Some(token) if token.kind == Kind::Mark(':'));
        if is_label && self.peek_word().is_some() {
            return self.label(body);
        }
        self.instruction(body)
    }

    fn label(&mut self, body: &mut Body) -> Result<()> {
        let name = self.word()?;
        let name = body.resolve(&name);
        self.at += 1;
        match self.peek_word() {
            Some(".branchtargets") => {
                self.at += 1;
                let mut targets = Vec::new();
                while !self.take_mark(';') {
                    let target = self.word()?;
                    targets.push(body.resolve(&target));
                    self.take_mark(',');
                }
                body.function.tables.insert(name, targets);
            }
            Some(".callprototype") => return self.fail("indirect calls are not supported"),
            _ => {
                body.function.labels.insert(name, body.function.body.len());
            }
        }
        Ok(())
    }

    /// `.reg .b32 %r<100>, x;`
    fn registers(&mut self, body: &mut Body) -> Result<()> {
        self.at += 1;
        let (_, ty, lanes) = self.variable_type()?;
        if lanes != 1 {
            return self.fail("vector registers are not supported");
        }
        loop {
            let name = self.word()?;
            if self.take_mark('<') {
                for index in 0..self.int()? {
                    body.declare(format!("{name}{index}"), ty);
                }
                self.expect_mark('>')?;
            } else {
                body.declare(name, ty);
            }
            if !self.take_mark(',') {
                break;
            }
        }
        self.expect_mark(';')
    }

    fn instruction(&mut self, body: &mut Body) -> Result<()> {
        let line = self.line();
        let mut guard = None;
        if self.take_mark('@') {
            let negated = self.take_mark('!');
            let name = self.word()?;
            match body.register(&name) {
                Some(register) => guard = Some((register, negated)),
                None => return self.fail(format!("unknown guard `{name}`")),
            }
        }
        let opcode = self.word()?.split('.').map(str::to_owned).collect();
        let mut operands = Vec::new();
        while !self.take_mark(';') {
            operands.push(self.operand(body)?);
            if !self.take_mark(',') && !self.is_mark(';') {
                return self.fail(format!("expected `,` or `;`, found {:?}", self.peek()));
            }
        }
        body.function.body.push(Statement { line, guard, opcode, operands });
        Ok(())
    }

    fn operand(&mut self, body: &Body) -> Result<Operand> {
        let first = self.simple(body)?;
        if self.take_mark('|') {
            let second = self.simple(body)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple(&mut self, body: &Body) -> Result<Operand> {
        let kind = self.peek().cloned();
        self.at += 1;
        match kind {
            Some(Kind::Int(value)) => Ok(Operand::Int(value)),
            Some(Kind::Float { bits64, bits32 }) => Ok(Operand::Float { bits64, bits32 }),
            Some(Kind::Mark('-')) => match self.simple(body)? {
                Operand::Int(value) => Ok(Operand::Int(value.wrapping_neg())),
                Operand::Float { bits64, bits32 } => {
                    Ok(Operand::Float { bits64: bits64 ^ (1 << 63), bits32: bits32 ^ (1 << 31) })
                }
                other => self.fail(format!("cannot negate {other:?}")),
            },
            Some(Kind::Mark('!')) => match self.simple(body)? {
                Operand::Register(register) => Ok(Operand::Not(register)),
                other => self.fail(format!("cannot negate {other:?}")),
            },
            Some(Kind::Mark('[')) => {
                let base = Box::new(self.simple(body)?);
                let bytes = if self.take_mark('+') { self.int()? as i64 } else { 0 };
                if self.take_mark(',') {
                    return self.fail("tensor coordinates are not supported");
                }
                self.expect_mark(']')?;
                Ok(match *base {
                    Operand::Symbol(name, offset) => {
                        Operand::Memory(Box::new(Operand::Symbol(name, 0)), offset + bytes)
                    }
                    _ => Operand::Memory(base, bytes),
                })
            }
            Some(Kind::Mark(open @ ('{' | '('))) => {
                let close = if open == '{' { '}' } else { ')' };
                let mut parts = Vec::new();
                while !self.take_mark(close) {
                    parts.push(self.simple(body)?);
                    self.take_mark(',');
                }
                Ok(Operand::Vector(parts))
            }
            Some(Kind::Word(name)) if name == "_" => Ok(Operand::Sink),
            Some(Kind::Word(name)) => Ok(match body.register(&name) {
                Some(register) => Operand::Register(register),
                None if name.starts_with('%') || name == "WARP_SZ" => Operand::Special(name),
                None => {
                    let plus = self.is_mark('+')
                        && matches!(self.tokens.get(self.at + 1), Some(t) if matches!(t.kind, Kind::Int(_)));
                    let offset = if plus {
                        self.at += 1;
                        self.int()? as i64
                    } else {
                        0
                    };
                    Operand::Symbol(body.resolve(&name), offset)
                }
            }),
            other => {
                self.at -= 1;
                self.fail(format!("expected an operand, found {other:?}"))
            }
        }
    }
}

/// A function under construction.
struct Body {
    function: Function,
    scopes: Vec<Scope>,
    opened: usize,
}

impl Default for Body {
    fn default() -> Body {
        let function = Function {
            name: String::new(),
            is_entry: false,
            params: Vec::new(),
            variables: Vec::new(),
            registers: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            body: Vec::new(),
            max_threads: None,
        };
        Body { function, scopes: Vec::new(), opened: 0 }
    }
}

impl Body {
    /// Opens a scope; its labels are collected ahead, since a branch may come before its label.
    fn open(&mut self, parser: &Parser) {
        self.opened += 1;
        let mut scope = Scope::default();
        if !self.scopes.is_empty() {
            let mut depth = 0;
            for pair in parser.tokens[parser.at..].windows(2) {
                match &pair[0].kind {
                    Kind::Mark('{') => depth += 1,
                    Kind::Mark('}') if depth == 0 => break,
                    Kind::Mark('}') => depth -= 1,
                    Kind::Word(word) if depth == 0 && pair[1].kind == Kind::Mark(':') => {
                        scope.renamed.insert(word.clone(), format!("{word}#{}", self.opened));
                    }
                    _ => {}
                }
            }
        }
        self.scopes.push(scope);
    }

    fn declare(&mut self, name: String, ty: Ty) {
        let index = self.function.registers.len() as u32;
        self.function.registers.push(ty);
        if let Some(scope) = self.scopes.last_mut() {
            scope.registers.insert(name, index);
        }
    }

    fn register(&self, name: &str) -> Option<u32> {
        self.scopes.iter().rev().find_map(|scope| scope.registers.get(name).copied())
    }

    /// Gives a variable of an inner scope a name of its own.
    fn unique(&mut self, name: &str) -> String {
        if self.scopes.len() <= 1 {
            return name.to_owned();
        }
        let unique = format!("{name}#{}", self.opened);
        if let Some(scope) = self.scopes.last_mut() {
            scope.renamed.insert(name.to_owned(), unique.clone());
        }
        unique
    }

    fn resolve(&self, name: &str) -> String {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.renamed.get(name))
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn errors_name_the_line() {
        let error = parse(".entry k() {\n .reg .b32 %r<2>;\n mov.u32 %r1 3;\n}").unwrap_err();
        assert_eq!(error.line, 3);
    }
}
