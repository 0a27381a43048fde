//! Calls, made part of the caller: device functions that the compiler left standing are copied in
//! at every call. Arguments pass through `.param` variables, which become local memory. Recursion
//! is refused.

use std::collections::HashMap;

use super::PtxError;
use super::ast::{Function, Module, Operand, Statement};

/// Most calls copied into one kernel.
const MAX_CALLS: usize = 1000;

/// A copy of entry `name` without calls.
pub(crate) fn without_calls(module: &Module, entry: &Function) -> Result<Function, PtxError> {
    let mut whole = Function {
        name: entry.name.clone(),
        is_entry: true,
        params: entry.params.clone(),
        variables: entry.variables.clone(),
        registers: entry.registers.clone(),
        labels: HashMap::new(),
        tables: HashMap::new(),
        body: Vec::new(),
        max_threads: entry.max_threads,
        cluster: entry.cluster,
    };
    let mut copies = 0;
    copy_body(module, entry, &mut whole, &Names::default(), &mut copies, 0)?;
    Ok(whole)
}

/// How the names of a copied function change.
#[derive(Default)]
struct Names {
    /// Added to every register.
    registers: u32,
    /// Added to labels and variables; empty for the entry.
    suffix: String,
    /// Formal parameter to the caller's variable.
    formals: HashMap<String, String>,
}

impl Names {
    fn name(&self, name: &str, function: &Function) -> String {
        if let Some(actual) = self.formals.get(name) {
            return actual.clone();
        }
        let own = function.labels.contains_key(name)
            || function.tables.contains_key(name)
            || function.variables.iter().any(|variable| variable.name == name);
        if own { format!("{name}{}", self.suffix) } else { name.to_owned() }
    }

    fn operand(&self, operand: &Operand, function: &Function) -> Operand {
        let again = |operand: &Operand| self.operand(operand, function);
        match operand {
            Operand::Register(register) => Operand::Register(register + self.registers),
            Operand::Not(register) => Operand::Not(register + self.registers),
            Operand::Pair(a, b) => Operand::Pair(Box::new(again(a)), Box::new(again(b))),
            Operand::Symbol(name, offset) => Operand::Symbol(self.name(name, function), *offset),
            Operand::Memory(base, offset) => Operand::Memory(Box::new(again(base)), *offset),
            Operand::Tensor(map, at) => {
                Operand::Tensor(Box::new(again(map)), at.iter().map(again).collect())
            }
            Operand::Vector(parts) => Operand::Vector(parts.iter().map(again).collect()),
            other => other.clone(),
        }
    }
}

fn copy_body(
    module: &Module,
    from: &Function,
    into: &mut Function,
    names: &Names,
    copies: &mut usize,
    depth: usize,
) -> Result<(), PtxError> {
    for (table, targets) in &from.tables {
        let targets = targets.iter().map(|target| names.name(target, from)).collect();
        into.tables.insert(names.name(table, from), targets);
    }
    let mut labels: HashMap<usize, Vec<&String>> = HashMap::new();
    for (label, &at) in &from.labels {
        labels.entry(at).or_default().push(label);
    }
    let end = format!("end{}", names.suffix);
    for at in 0..=from.body.len() {
        for label in labels.get(&at).into_iter().flatten() {
            into.labels.insert(names.name(label, from), into.body.len());
        }
        let Some(statement) = from.body.get(at) else { break };
        let mut copy = Statement {
            line: statement.line,
            guard: statement.guard.map(|(register, negated)| (register + names.registers, negated)),
            opcode: statement.opcode.clone(),
            operands: statement
                .operands
                .iter()
                .map(|operand| names.operand(operand, from))
                .collect(),
        };
        let name = copy.opcode[0].as_str();
        if name == "call" {
            call(module, &copy, into, copies, depth)?;
            continue;
        }
        if name == "ret" && depth > 0 {
            copy.opcode = vec!["bra".into()];
            copy.operands = vec![Operand::Symbol(end.clone(), 0)];
        }
        into.body.push(copy);
    }
    into.labels.insert(end, into.body.len());
    Ok(())
}

/// `call.uni (result), function, (arguments);`
fn call(
    module: &Module,
    statement: &Statement,
    into: &mut Function,
    copies: &mut usize,
    depth: usize,
) -> Result<(), PtxError> {
    let error = |reason: String| PtxError::at(statement.line, reason);
    let mut vectors = Vec::new();
    let mut callee = None;
    for operand in &statement.operands {
        match operand {
            Operand::Vector(parts) => vectors.push(parts),
            Operand::Symbol(name, _) if callee.is_none() => callee = Some((name, vectors.len())),
            _ => return Err(error("indirect calls are not supported".into())),
        }
    }
    let Some((name, results)) = callee else { return Err(error("call without a function".into())) };
    if statement.guard.is_some() {
        return Err(error("a guarded call is not supported".into()));
    }
    if matches!(name.as_str(), "__assertfail" | "__trap") {
        into.body.push(Statement {
            line: statement.line,
            guard: None,
            opcode: vec!["trap".into()],
            operands: Vec::new(),
        });
        return Ok(());
    }
    let function =
        module.functions.iter().find(|function| function.name == *name && !function.is_entry);
    let Some(function) = function else {
        return Err(error(format!(
            "call of `{name}`, which is not in the module, is not supported"
        )));
    };
    *copies += 1;
    if depth > 32 || *copies > MAX_CALLS {
        return Err(error(format!(
            "call of `{name}`: recursion, or too many calls, is not supported"
        )));
    }
    let actual: Vec<String> = vectors
        .iter()
        .flat_map(|parts| parts.iter())
        .filter_map(
            |part| if let Operand::Symbol(name, _) = part { Some(name.clone()) } else { None },
        )
        .collect();
    // A `.func (result) name (parameters)` keeps its results first among its variables.
    let result_count = if results > 0 { vectors[0].len() } else { 0 };
    let formal: Vec<String> = function.variables[..result_count]
        .iter()
        .chain(&function.params)
        .map(|v| v.name.clone())
        .collect();
    if formal.len() != actual.len() {
        return Err(error(format!(
            "call of `{name}` with {} arguments, it takes {}",
            actual.len(),
            formal.len()
        )));
    }
    let suffix = format!("@{copies}");
    let names = Names {
        registers: into.registers.len() as u32,
        suffix,
        formals: formal.into_iter().zip(actual).collect(),
    };
    into.registers.extend(&function.registers);
    for variable in &function.variables[result_count..] {
        let mut variable = variable.clone();
        variable.name.push_str(&names.suffix);
        into.variables.push(variable);
    }
    copy_body(module, function, into, &names, copies, depth + 1)
}
