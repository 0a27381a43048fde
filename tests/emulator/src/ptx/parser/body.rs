//! A function under construction, and the names that its braces open.

use std::collections::HashMap;

use super::{Kind, Parser};
use crate::ptx::ast::Function;
use crate::ptx::types::Ty;

/// Names visible inside one pair of braces. Registers map to indices, labels and variables to
/// unique names.
#[derive(Default)]
pub(super) struct Scope {
    registers: HashMap<String, u32>,
    renamed: HashMap<String, String>,
}

/// A function under construction.
pub(super) struct Body {
    pub(super) function: Function,
    pub(super) scopes: Vec<Scope>,
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
            cluster: None,
        };
        Body { function, scopes: Vec::new(), opened: 0 }
    }
}

impl Body {
    /// Opens a scope; its labels are collected ahead, since a branch may come before its label.
    pub(super) fn open(&mut self, parser: &Parser) {
        self.opened += 1;
        let mut scope = Scope::default();
        if !self.scopes.is_empty() {
            let mut depth = 0;
            for pair in parser.tokens[parser.at..].windows(2) {
                match &pair[0].kind {
                    Kind::Punct('{') => depth += 1,
                    Kind::Punct('}') if depth == 0 => break,
                    Kind::Punct('}') => depth -= 1,
                    Kind::Word(word) if depth == 0 && pair[1].kind == Kind::Punct(':') => {
                        scope.renamed.insert(word.clone(), format!("{word}#{}", self.opened));
                    }
                    _ => {}
                }
            }
        }
        self.scopes.push(scope);
    }

    pub(super) fn declare(&mut self, name: String, ty: Ty) {
        let index = self.function.registers.len() as u32;
        self.function.registers.push(ty);
        if let Some(scope) = self.scopes.last_mut() {
            scope.registers.insert(name, index);
        }
    }

    pub(super) fn register(&self, name: &str) -> Option<u32> {
        self.scopes.iter().rev().find_map(|scope| scope.registers.get(name).copied())
    }

    /// Gives a variable of an inner scope a unique name.
    pub(super) fn unique(&mut self, name: &str) -> String {
        if self.scopes.len() <= 1 {
            return name.to_owned();
        }
        let unique = format!("{name}#{}", self.opened);
        if let Some(scope) = self.scopes.last_mut() {
            scope.renamed.insert(name.to_owned(), unique.clone());
        }
        unique
    }

    pub(super) fn resolve(&self, name: &str) -> String {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.renamed.get(name))
            .cloned()
            .unwrap_or_else(|| name.to_owned())
    }
}
