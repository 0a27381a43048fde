//! Bodies: declarations, labels, instructions, operands.

use super::body::Body;
use super::{Kind, Parser, Result};
use crate::ptx::ast::{Operand, Statement};

/// Most registers of a function: ptxas numbers virtual registers far below it.
const MAX_REGISTERS: usize = 1 << 16;

impl Parser {
    /// `{ ... }`, with its own names.
    pub(super) fn block(&mut self, body: &mut Body) -> Result<()> {
        self.expect_punct('{')?;
        body.open(self);
        while !self.take_punct('}') {
            if self.at_end() {
                return self.fail("body without end");
            }
            self.statement(body)?;
        }
        body.scopes.pop();
        Ok(())
    }

    pub(super) fn statement(&mut self, body: &mut Body) -> Result<()> {
        if self.is_punct('{') {
            return self.block(body);
        }
        if self.take_punct(';') {
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
            matches!(self.tokens.get(self.at + 1), Some(token) if token.kind == Kind::Punct(':'));
        if is_label && self.peek_word().is_some() {
            return self.label(body);
        }
        self.instruction(body)
    }

    pub(super) fn label(&mut self, body: &mut Body) -> Result<()> {
        let name = self.word()?;
        let name = body.resolve(&name);
        self.at += 1;
        match self.peek_word() {
            Some(".branchtargets") => {
                self.at += 1;
                let mut targets = Vec::new();
                while !self.take_punct(';') {
                    let target = self.word()?;
                    targets.push(body.resolve(&target));
                    self.take_punct(',');
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
    pub(super) fn registers(&mut self, body: &mut Body) -> Result<()> {
        self.at += 1;
        let (_, ty, lanes) = self.variable_type()?;
        if lanes != 1 {
            return self.fail("vector registers are not supported");
        }
        loop {
            let name = self.word()?;
            if self.take_punct('<') {
                let count = self.int()?;
                let max = MAX_REGISTERS.saturating_sub(body.function.registers.len());
                if count > max as u64 {
                    return self.fail(format!("more than {MAX_REGISTERS} registers"));
                }
                for index in 0..count {
                    body.declare(format!("{name}{index}"), ty);
                }
                self.expect_punct('>')?;
            } else {
                body.declare(name, ty);
            }
            if !self.take_punct(',') {
                break;
            }
        }
        self.expect_punct(';')
    }

    pub(super) fn instruction(&mut self, body: &mut Body) -> Result<()> {
        let line = self.line();
        let mut guard = None;
        if self.take_punct('@') {
            let negated = self.take_punct('!');
            let name = self.word()?;
            match body.register(&name) {
                Some(register) => guard = Some((register, negated)),
                None => return self.fail(format!("unknown guard `{name}`")),
            }
        }
        let opcode = self.word()?.split('.').map(str::to_owned).collect();
        let mut operands = Vec::new();
        while !self.take_punct(';') {
            operands.push(self.operand(body)?);
            if !self.take_punct(',') && !self.is_punct(';') {
                return self.fail(format!("expected `,` or `;`, found {:?}", self.peek()));
            }
        }
        body.function.body.push(Statement { line, guard, opcode, operands });
        Ok(())
    }

    pub(super) fn operand(&mut self, body: &Body) -> Result<Operand> {
        let first = self.simple(body)?;
        if self.take_punct('|') {
            let second = self.simple(body)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    pub(super) fn simple(&mut self, body: &Body) -> Result<Operand> {
        let kind = self.peek().cloned();
        self.at += 1;
        match kind {
            Some(Kind::Int(value)) => Ok(Operand::Int(value)),
            Some(Kind::Float { bits64, bits32 }) => Ok(Operand::Float { bits64, bits32 }),
            Some(Kind::Punct('-')) => match self.simple(body)? {
                Operand::Int(value) => Ok(Operand::Int(value.wrapping_neg())),
                Operand::Float { bits64, bits32 } => {
                    Ok(Operand::Float { bits64: bits64 ^ (1 << 63), bits32: bits32 ^ (1 << 31) })
                }
                other => self.fail(format!("cannot negate {other:?}")),
            },
            Some(Kind::Punct('!')) => match self.simple(body)? {
                Operand::Register(register) => Ok(Operand::Not(register)),
                other => self.fail(format!("cannot negate {other:?}")),
            },
            Some(Kind::Punct('[')) => {
                let base = Box::new(self.simple(body)?);
                let bytes = if self.take_punct('+') { self.int()? as i64 } else { 0 };
                let (base, bytes) = match *base {
                    Operand::Symbol(name, offset) => {
                        (Box::new(Operand::Symbol(name, 0)), offset.wrapping_add(bytes))
                    }
                    other => (Box::new(other), bytes),
                };
                if self.take_punct(',') {
                    let Operand::Vector(at) = self.simple(body)? else {
                        return self.fail("expected coordinates in braces");
                    };
                    self.expect_punct(']')?;
                    return Ok(Operand::Tensor(Box::new(Operand::Memory(base, bytes)), at));
                }
                self.expect_punct(']')?;
                Ok(Operand::Memory(base, bytes))
            }
            Some(Kind::Punct(open @ ('{' | '('))) => {
                let close = if open == '{' { '}' } else { ')' };
                let mut parts = Vec::new();
                while !self.take_punct(close) {
                    parts.push(self.simple(body)?);
                    self.take_punct(',');
                }
                Ok(Operand::Vector(parts))
            }
            Some(Kind::Word(name)) if name == "_" => Ok(Operand::Sink),
            Some(Kind::Word(name)) => Ok(match body.register(&name) {
                Some(register) => Operand::Register(register),
                None if name.starts_with('%') || name == "WARP_SZ" => Operand::Special(name),
                None => {
                    let plus = self.is_punct('+')
                        && matches!(
                            self.tokens.get(self.at + 1),
                            Some(t) if matches!(t.kind, Kind::Int(_)));
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
