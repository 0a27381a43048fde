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
use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::allowance::{MAX_BYTES, charge_work};
use super::charges::{
    assign, charge_format, charge_join, charge_replace, compare, concatenate, contains, elements,
    format, indent, join, multiply, nest, replace, split, walk, walk_work, write_first,
};

// Functions of the metering instructions. No template can name them.
const CONCATENATE: &str = "~";
const MULTIPLY: &str = "*";
const COMPARE: &str = "=";
const CONTAINS: &str = "in";
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

const METERS: [(&str, Meter); 14] = [
    (CONCATENATE, concatenate),
    (MULTIPLY, multiply),
    (COMPARE, compare),
    (CONTAINS, contains),
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

/// Fails for a template that names other templates or has blocks: chat templates are one file.
pub(super) fn check(environment: &Environment<'static>, name: &str) -> Result<(), Error> {
    let template = environment.get_template(name)?;
    let instructions = &get_compiled_template(&template).instructions;
    let names_another = |instruction: &Instruction| {
        matches!(
            instruction,
            Instruction::Include(_)
                | Instruction::LoadBlocks
                | Instruction::CallBlock(_)
                | Instruction::FastSuper
                | Instruction::ExportLocals
        )
    };
    match (0..).map_while(|at| instructions.get(at)).any(names_another) {
        true => Err(Error::new(ErrorKind::SyntaxError, "blocks and other templates have no place")),
        false => Ok(()),
    }
}

/// Returns the operands as a list, last first, for the `UnpackList` that puts them back.
fn charged(state: &mut State, operands: &[Value], charge: Meter) -> Result<Value, Error> {
    charge(state, operands)?;
    Ok(operands.iter().rev().cloned().collect())
}

/// Filters and tests whose work does not depend on the length of what they are applied to.
const CONSTANT_WORK: [&str; 8] =
    ["count", "default", "defined", "first", "length", "mapping", "none", "undefined"];

/// The metering function before `instruction`, and the number of its operands.
fn meter(instruction: &Instruction) -> Option<(&'static str, u16)> {
    match *instruction {
        Instruction::StringConcat | Instruction::Add => Some((CONCATENATE, 2)),
        Instruction::Mul => Some((MULTIPLY, 2)),
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte => Some((COMPARE, 2)),
        Instruction::In => Some((CONTAINS, 2)),
        Instruction::Slice => Some((WALK, 4)),
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
            other if meter(other).is_some() => 3,
            _ => 1,
        };
        Some(*end)
    }));
    let mut metered = Instructions::new(instructions.name(), instructions.source());
    for (at, instruction) in (0..).zip(all) {
        let line = instructions.get_line(at).unwrap_or(0) as u16;
        let mut add = |instruction| metered.add_with_line(instruction, line);
        if let Instruction::EmitRaw(text) = instruction {
            add(Instruction::LoadConst(Value::from(*text)));
            add(Instruction::Emit);
            continue;
        }
        if let Some((function, operands)) = meter(instruction) {
            add(Instruction::CallFunction(function, Some(operands)));
            add(Instruction::UnpackList(usize::from(operands)));
        }
        add(retargeted(instruction.clone(), &positions));
    }
    metered
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
        ("format", Some(text), _) => charge_format(state, text, arguments)?,
        ("split", Some(_), [separator, ..]) => split(state, &[value.clone(), separator.clone()])?,
        ("split", Some(_), []) => split(state, std::slice::from_ref(value))?,
        ("splitlines", Some(_), _) => split(state, &[value.clone(), Value::from("\n")])?,
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}
