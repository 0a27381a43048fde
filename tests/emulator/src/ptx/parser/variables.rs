//! Variables, parameters and functions, as far as their bodies.

use super::body::Body;
use super::{Kind, Parser, Result};
use crate::ptx::ast::{Function, Place, Variable};
use crate::ptx::types::Ty;

/// Most bytes of a variable: those of a window of generic addresses.
const MAX_BYTES: u64 = crate::memory::WINDOW_BYTES;
/// Largest alignment of a variable.
const MAX_ALIGN: u64 = 1 << 16;

impl Parser {
    /// `.global .align 4 .u32 a = 3, b;`
    pub(super) fn variables(&mut self, into: &mut Vec<Variable>) -> Result<()> {
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
            if !self.take_punct(',') {
                break;
            }
        }
        self.expect_punct(';')
    }

    /// `.align 16 .v4 .b8`: alignment, type, vector length.
    pub(super) fn variable_type(&mut self) -> Result<(u64, Ty, u64)> {
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

    pub(super) fn declarator(
        &mut self,
        place: Place,
        align: u64,
        ty: Ty,
        lanes: u64,
    ) -> Result<Variable> {
        // A parameter may say `.ptr .global .align 16` between its type and its name.
        while self.peek_word().is_some_and(|word| word.starts_with('.')) {
            if self.word()? == ".align" {
                self.int()?;
            }
        }
        let name = self.word()?;
        let mut count = Some(1_u64);
        let mut open_ended = false;
        while self.take_punct('[') {
            if self.is_punct(']') {
                open_ended = true;
            } else {
                let next = self.int()?;
                count = count.and_then(|count| count.checked_mul(next));
            }
            self.expect_punct(']')?;
        }
        let element = ty.bytes();
        let size = count.and_then(|count| count.checked_mul(element * lanes));
        let Some(size) = size.filter(|&size| size <= MAX_BYTES) else {
            return self.fail(format!("`{name}` is larger than any memory"));
        };
        if align > MAX_ALIGN {
            return self.fail(format!("`{name}` is aligned to more than {MAX_ALIGN} bytes"));
        }
        let mut variable = Variable {
            name,
            place,
            align: align.max(1),
            size: if open_ended { 0 } else { size },
            init: Vec::new(),
            relocations: Vec::new(),
        };
        if self.take_punct('=') {
            self.initialiser(element, &mut variable)?;
            if open_ended {
                variable.size = variable.init.len() as u64;
            }
        }
        Ok(variable)
    }

    pub(super) fn initialiser(&mut self, element: u64, variable: &mut Variable) -> Result<()> {
        if self.take_punct('{') {
            while !self.take_punct('}') {
                self.initialiser(element, variable)?;
                self.take_punct(',');
            }
            return Ok(());
        }
        let negative = self.take_punct('-');
        let mut bits = match self.peek().cloned() {
            Some(Kind::Int(value)) => value,
            Some(Kind::Float { bits64, .. }) if element == 8 => bits64,
            Some(Kind::Float { bits32, .. }) => u64::from(bits32),
            Some(Kind::Word(mut name)) => {
                if name == "generic" {
                    self.at += 1;
                    self.expect_punct('(')?;
                    name = self.word()?;
                    if !self.is_punct(')') {
                        return self.fail("expected `)` after generic(name".to_owned());
                    }
                }
                variable.relocations.push((variable.init.len() as u64, name, 0));
                0
            }
            other => return self.fail(format!("unsupported initialiser {other:?}")),
        };
        self.at += 1;
        if self.take_punct('+')
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
    pub(super) fn function(&mut self) -> Result<Option<Function>> {
        let is_entry = self.word()? == ".entry";
        let mut body = Body::default();
        if self.is_punct('(') {
            let outputs = self.params()?;
            body.function.variables.extend(outputs);
        }
        body.function.name = self.word()?;
        body.function.is_entry = is_entry;
        if self.is_punct('(') {
            body.function.params = self.params()?;
        }
        while let Some(word) = self.peek_word().map(str::to_owned) {
            self.at += 1;
            match word.as_str() {
                ".maxntid" | ".reqntid" => {
                    let mut threads = Some(self.int()?);
                    while self.take_punct(',') {
                        let next = self.int()?;
                        threads = threads.and_then(|threads| threads.checked_mul(next));
                    }
                    body.function.max_threads =
                        threads.and_then(|threads| u32::try_from(threads).ok());
                }
                ".reqnctapercluster" => {
                    let mut blocks = [1; 3];
                    for (at, extent) in blocks.iter_mut().enumerate() {
                        if at == 0 || self.take_punct(',') {
                            *extent = self.int()? as u32;
                        }
                    }
                    body.function.cluster = Some(blocks);
                }
                ".explicitcluster" => {}
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    self.int()?;
                }
                ".noreturn" => {}
                ".pragma" => self.skip_to(';'),
                other => return self.fail(format!("unsupported performance directive `{other}`")),
            }
        }
        if self.take_punct(';') {
            return Ok(None);
        }
        self.block(&mut body)?;
        Ok(Some(body.function))
    }

    pub(super) fn params(&mut self) -> Result<Vec<Variable>> {
        self.expect_punct('(')?;
        let mut params = Vec::new();
        while !self.take_punct(')') {
            let word = self.word()?;
            if word != ".param" {
                return self.fail(format!("parameters in `{word}` are not supported"));
            }
            let (align, ty, lanes) = self.variable_type()?;
            params.push(self.declarator(Place::Param, align, ty, lanes)?);
            self.take_punct(',');
        }
        Ok(params)
    }
}
