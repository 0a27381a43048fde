//! Bounds of what a chat template can use. Its file comes from outside, so it is trusted to write a
//! prompt and no more.
//!
//! minijinja counts instructions (fuel). One instruction can still double a string or walk a long
//! list, so [`metered`] puts a call before each such instruction, which charges its operands to the
//! rendering's allowance of bytes or of work.

use std::collections::BTreeMap;

use minijinja::machinery::{
    Instruction, Instructions, Token, eval, get_compiled_template, make_string_output, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::allowance::{ELEMENT_WORK, MAX_BYTES, charge_work};
use super::charges::{
    add, assign, charge_format, charge_join, charge_replace, compare, concatenate, contains,
    elements, format, indent, iterate, join, multiply, nest, order, replace, slice, split, walk,
    walk_work, write_first,
};
use super::jinja_builtins::{DICT_METHODS, attribute, format_arguments};
use super::python_methods;
use super::python_text::text_of;

// Functions of the metering instructions. No template can name them.
const ADD: &str = "+";
const ATTRIBUTE: &str = ".name";
const CONCATENATE: &str = "~";
const MULTIPLY: &str = "*";
const COMPARE: &str = "=";
const ORDER: &str = "<";
const CONTAINS: &str = "in";
const ITERATE: &str = "for";
const LIST: &str = "[]";
const SLICE: &str = "[:]";
const WALK: &str = "|";
const ELEMENTS: &str = "|list";
const SPLIT: &str = "|split";
const WRITE: &str = "|string";
const REPLACE: &str = "|replace";
const JOIN: &str = "|join";
const FORMAT: &str = "|format";
const INDENT: &str = "|indent";
const NEST: &str = "[";
const ASSIGN: &str = ".";

/// Charges the operands of one instruction, first operand first.
type Meter = fn(&mut State, &[Value]) -> Result<(), Error>;

const METERS: [(&str, Meter); 17] = [
    (ADD, add),
    (MULTIPLY, multiply),
    (COMPARE, compare),
    (ORDER, order),
    (CONTAINS, contains),
    (ITERATE, iterate),
    (SLICE, slice),
    (WALK, walk),
    (ELEMENTS, elements),
    (SPLIT, split),
    (WRITE, write_first),
    (REPLACE, replace),
    (JOIN, join),
    (FORMAT, format),
    (INDENT, indent),
    (NEST, nest),
    (ASSIGN, assign),
];

/// Adds the metering functions, and metered methods.
pub(super) fn install(environment: &mut Environment) {
    for (name, charge) in METERS {
        let meter = move |state: &mut State, operands: Rest<ValueOrKwargs>| {
            charged(state, &operands.into_values(), charge)
        };
        environment.add_function(name, meter);
    }
    environment.add_function(CONCATENATE, |state: &mut State, a: Value, b: Value| {
        concatenate(state, &[a.clone(), b.clone()])?;
        Ok::<_, Error>(text_of(&a)? + &text_of(&b)?)
    });
    environment.add_function(LIST, |state: &mut State, value: Value| list(state, value));
    environment.add_function(ATTRIBUTE, |value: &Value, name: &str| attribute(value, name));
    environment.set_unknown_method_callback(call_method);
}

/// Renders the template `name` of an environment that [`install`] has prepared.
pub(super) fn render(
    environment: &Environment<'static>,
    name: &str,
    root: Value,
) -> Result<String, Error> {
    let template = environment.get_template(name)?;
    let instructions = metered(&get_compiled_template(&template).instructions);
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    let blocks = BTreeMap::new();
    eval(environment, &instructions, root, &blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(text)
}

/// Fails for a source whose constants may take more than [`MAX_BYTES`]: the compiler computes
/// products such as `'a' * 9999999`, each below minijinja's limit, before anything is charged.
pub(super) fn check_constants(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let mut total = 0usize;
    // Of one tag: bytes of its parts, product of its numbers, and whether it can multiply a text or
    // a tuple.
    let (mut size, mut factor, mut multiplies, mut has_parts) = (0usize, 1usize, false, false);
    for token in tokenize(source, false, syntax) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => {
                (size, factor, multiplies, has_parts) = (0, 1, false, false);
            }
            Token::VariableEnd | Token::BlockEnd if multiplies && has_parts => {
                total = total.saturating_add(size.saturating_mul(factor));
            }
            Token::Mul => multiplies = true,
            Token::Int(number) if number > 1 => {
                let number = usize::try_from(number).unwrap_or(usize::MAX);
                factor = factor.saturating_mul(number);
            }
            Token::Int128(_) => factor = usize::MAX,
            Token::Str(text) => (size, has_parts) = (size + text.len(), true),
            Token::String(text) => (size, has_parts) = (size + text.len(), true),
            Token::Comma => has_parts = true,
            _ => {}
        }
        size += size_of::<Value>();
    }
    match total <= MAX_BYTES {
        true => Ok(()),
        false => {
            let why = format!("its constants may take more than {} MiB", MAX_BYTES >> 20);
            Err(Error::new(ErrorKind::SyntaxError, why))
        }
    }
}

/// Returns the operands as a list, last first, for the `UnpackList` that puts them back.
fn charged(state: &mut State, operands: &[Value], charge: Meter) -> Result<Value, Error> {
    charge(state, operands)?;
    Ok(operands.iter().rev().cloned().collect())
}

/// Filters and tests whose work does not depend on the length of what they are applied to.
const CONSTANT_WORK: [&str; 9] =
    ["count", "d", "default", "defined", "first", "length", "mapping", "none", "undefined"];

/// The metering function before `instruction`, and the number of its operands.
fn meter(instruction: &Instruction) -> Option<(&'static str, u16)> {
    match *instruction {
        Instruction::Add => Some((ADD, 2)),
        Instruction::Mul => Some((MULTIPLY, 2)),
        Instruction::Eq | Instruction::Ne => Some((COMPARE, 2)),
        Instruction::Gt | Instruction::Gte | Instruction::Lt | Instruction::Lte => Some((ORDER, 2)),
        Instruction::In => Some((CONTAINS, 2)),
        Instruction::PushLoop(_) => Some((ITERATE, 1)),
        Instruction::Slice => Some((SLICE, 4)),
        Instruction::BuildList(Some(count)) | Instruction::BuildTuple(Some(count)) => {
            Some((NEST, operands(count)?))
        }
        Instruction::BuildMap(pairs) | Instruction::BuildKwargs(pairs) => {
            Some((NEST, operands(2 * pairs)?))
        }
        Instruction::SetAttr(_) => Some((ASSIGN, 2)),
        Instruction::ApplyFilter(name, Some(operands), _) => {
            Some((meter_of_filter(name)?, operands))
        }
        Instruction::PerformTest(name, Some(operands), _) => {
            (!CONSTANT_WORK.contains(&name)).then_some((WALK, operands))
        }
        _ => None,
    }
}

/// The number of operands of a list or map, if it has any. A source has room for fewer than 2^16.
fn operands(count: usize) -> Option<u16> {
    u16::try_from(count).ok().filter(|&count| count > 0)
}

/// The metering function before filter `name`.
fn meter_of_filter(name: &str) -> Option<&'static str> {
    match name {
        "replace" => Some(REPLACE),
        "join" => Some(JOIN),
        "format" => Some(FORMAT),
        "indent" => Some(INDENT),
        "split" => Some(SPLIT),
        "trim" | "upper" | "lower" | "title" | "capitalize" | "int" | "float" | "safe"
        | "reverse" => Some(WALK),
        "string" | "tojson" | "pprint" | "urlencode" | "escape" | "e" => Some(WRITE),
        name => (!CONSTANT_WORK.contains(&name)).then_some(ELEMENTS),
    }
}

/// Returns `instructions` with metering instructions, and with raw text written as values are, so
/// that its bytes are charged too.
fn metered<'source>(instructions: &Instructions<'source>) -> Instructions<'source> {
    let all = (0..).map_while(|at| instructions.get(at));
    // New positions of the instructions, and of the end.
    let mut positions = vec![0];
    positions.extend(all.clone().scan(0, |end, instruction| {
        *end += match instruction {
            Instruction::EmitRaw(_) => 2,
            Instruction::GetAttr(name) if DICT_METHODS.contains(name) => 2,
            other if is_lazy(other) => 4,
            other if meter(other).is_some() => 3,
            _ => 1,
        };
        Some(*end)
    }));
    let mut metered = Instructions::new(instructions.name(), instructions.source());
    for (at, instruction) in (0..).zip(all) {
        let line = instructions.get_line(at).unwrap_or(0) as u16;
        let mut push = |instruction| metered.add_with_line(instruction, line);
        if let Instruction::EmitRaw(text) = instruction {
            push(Instruction::LoadConst(Value::from(*text)));
            push(Instruction::Emit);
            continue;
        }
        match instruction {
            // A list that the compiler has computed.
            Instruction::LoadConst(value) if value.kind() == ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
                push(Instruction::LoadConst(items.into()));
                continue;
            }
            Instruction::GetAttr(name) if DICT_METHODS.contains(name) => {
                push(Instruction::LoadConst(Value::from(*name)));
                push(Instruction::CallFunction(ATTRIBUTE, Some(2)));
                continue;
            }
            Instruction::StringConcat => {
                push(Instruction::CallFunction(CONCATENATE, Some(2)));
                continue;
            }
            _ => {}
        }
        if let Some((function, operands)) = meter(instruction) {
            push(Instruction::CallFunction(function, Some(operands)));
            push(Instruction::UnpackList(usize::from(operands)));
        }
        push(retargeted(instruction.clone(), &positions));
        if is_lazy(instruction) {
            push(Instruction::CallFunction(LIST, Some(1)));
        }
    }
    metered
}

/// True for an operation whose result is a list in Python, and an iterator in minijinja.
fn is_lazy(instruction: &Instruction) -> bool {
    matches!(instruction, Instruction::Add | Instruction::Mul | Instruction::Slice)
}

/// The result of such an operation.
fn list(state: &mut State, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        charge_work(state, ELEMENT_WORK)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// Returns `instruction` with its jump target at the new position.
fn retargeted<'source>(
    instruction: Instruction<'source>,
    positions: &[u32],
) -> Instruction<'source> {
    let moved = |target: u32| positions[target as usize];
    match instruction {
        Instruction::Iterate(target) => Instruction::Iterate(moved(target)),
        Instruction::Jump(target) => Instruction::Jump(moved(target)),
        Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(target)),
        Instruction::JumpIfFalseOrPop(target) => Instruction::JumpIfFalseOrPop(moved(target)),
        Instruction::JumpIfTrueOrPop(target) => Instruction::JumpIfTrueOrPop(moved(target)),
        Instruction::BuildMacro(name, target, flags) => {
            Instruction::BuildMacro(name, moved(target), flags)
        }
        other => other,
    }
}

/// Calls a method of Python's strings, lists or maps.
fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    charge_work(state, walk_work(value))?;
    match (method, value.as_str(), arguments) {
        ("replace", Some(text), [from, to, ..]) => charge_replace(state, text, from, to)?,
        ("join", Some(_), [items, ..]) => charge_join(state, items, value)?,
        ("format", Some(text), _) => {
            charge_format(state, text, arguments)?;
            // A format that names parts of its arguments gets them whole.
            if !text.contains('[') {
                let arguments = format_arguments(arguments)?;
                return python_methods::call(state, value, method, &arguments);
            }
        }
        ("split", Some(_), [separator, ..]) => split(state, &[value.clone(), separator.clone()])?,
        ("split", Some(_), []) => split(state, std::slice::from_ref(value))?,
        ("splitlines", Some(_), _) => split(state, &[value.clone(), Value::from("\n")])?,
        _ => {}
    }
    python_methods::call(state, value, method, arguments)
}
