//! Bounds of what a chat template can use. Its file comes from outside, so it is trusted to write a
//! prompt and no more.
//!
//! minijinja counts instructions (fuel). One instruction can still double a string or walk a long
//! list, so [`metered`] puts a call before each such instruction, which charges its operands to the
//! rendering's allowance of bytes or of work.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

use minijinja::machinery::{
    Instruction, Instructions, eval, get_compiled_template, make_string_output,
};
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

/// Instructions of one rendering: more than a context of 128 Ki tokens takes as short messages.
const MAX_INSTRUCTIONS: u64 = 5_000_000;
/// Bytes of all strings that one rendering builds or writes: some copies of the longest body.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of strings and elements of lists that operations of one rendering walk over.
const MAX_WORK: usize = 256 << 20;
/// Work of an element of a list, in bytes of a string.
const ELEMENT_WORK: usize = 64;
/// Most characters to which `format` can pad a value, and spaces of an indent.
const MAX_WIDTH: usize = 4096;

thread_local! {
    /// Bytes and work left to the rendering on this thread.
    static ALLOWANCE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

// Functions of the metering instructions. No template can name them.
const CONCATENATE: &str = "~";
const MULTIPLY: &str = "*";
const COMPARE: &str = "=";
const WALK: &str = "|";
const WRITE: &str = "|string";
const REPLACE: &str = "|replace";
const JOIN: &str = "|join";
const FORMAT: &str = "|format";
const INDENT: &str = "|indent";

/// Charges the operands of one instruction, first operand first.
type Meter = fn(&[Value]) -> Result<(), Error>;

const METERS: [(&str, Meter); 9] = [
    (CONCATENATE, concatenate),
    (MULTIPLY, multiply),
    (COMPARE, compare),
    (WALK, walk),
    (WRITE, write_first),
    (REPLACE, replace),
    (JOIN, join),
    (FORMAT, format),
    (INDENT, indent),
];

/// Adds the metering functions, metered filters and the limit of instructions.
pub(super) fn install(environment: &mut Environment) {
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    for (name, charge) in METERS {
        let meter = move |operands: Rest<ValueOrKwargs>| charged(&operands.into_values(), charge);
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
    ALLOWANCE.set((MAX_BYTES, MAX_WORK));
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    let blocks = BTreeMap::new();
    eval(environment, &instructions, root, &blocks, &mut output, AutoEscape::None)?;
    drop(output);
    Ok(text)
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

/// Charges `bytes` of a string that is built or written.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let (left, work) = ALLOWANCE.get();
    let left = left.checked_sub(bytes);
    let left = left.ok_or_else(|| over(format!("{} MiB of text", MAX_BYTES >> 20)))?;
    ALLOWANCE.set((left, work));
    Ok(())
}

fn charge_work(amount: usize) -> Result<(), Error> {
    let (bytes, left) = ALLOWANCE.get();
    let left = left.checked_sub(amount).ok_or_else(|| over("its allowance of work".into()))?;
    ALLOWANCE.set((bytes, left));
    Ok(())
}

fn over(limit: String) -> Error {
    Error::new(ErrorKind::OutOfFuel, limit)
}

/// The limit that `error` is about, if it is about one.
pub(super) fn exceeded(error: &Error) -> Option<String> {
    let instructions = || format!("{MAX_INSTRUCTIONS} instructions");
    let is_limit = error.kind() == ErrorKind::OutOfFuel;
    is_limit.then(|| error.detail().map_or_else(instructions, str::to_owned))
}

/// Bytes of `value` as text, at least 16 for each piece of a list. Fails beyond what the rendering
/// may still build, also where shared parts of nested lists make the text longer than the value in
/// memory.
pub(super) fn text_bytes(value: &Value) -> Result<usize, Error> {
    struct Counter(usize);
    impl fmt::Write for Counter {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // Nested lists write many short pieces, which take time too.
            self.0 = self.0.checked_sub(text.len().max(16)).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    if let Some(text) = value.as_str() {
        return Ok(text.len());
    }
    let (left, _) = ALLOWANCE.get();
    let mut counter = Counter(left);
    let counted = write!(counter, "{value}");
    counted.map(|()| left - counter.0).or_else(|_| charge(left + 1).map(|()| left))
}

/// Returns the operands as a list, last first, for the `UnpackList` that puts them back.
fn charged(operands: &[Value], charge: Meter) -> Result<Value, Error> {
    charge(operands)?;
    Ok(operands.iter().rev().cloned().collect())
}

fn concatenate(operands: &[Value]) -> Result<(), Error> {
    if operands.iter().any(|operand| operand.kind() == ValueKind::Number) && operands.len() == 2 {
        return Ok(());
    }
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::Seq | ValueKind::Iterable => charge_work(walk_work(operand)),
        _ => charge(text_bytes(operand)?),
    })
}

fn multiply(operands: &[Value]) -> Result<(), Error> {
    let factor = operands.iter().filter_map(Value::as_usize).max().unwrap_or(0);
    operands.iter().try_for_each(|operand| match operand.kind() {
        ValueKind::String => charge(text_bytes(operand)?.saturating_mul(factor)),
        ValueKind::Seq | ValueKind::Iterable => {
            charge_work(walk_work(operand).saturating_mul(factor))
        }
        _ => Ok(()),
    })
}

fn compare(operands: &[Value]) -> Result<(), Error> {
    operands.iter().try_for_each(|operand| charge_work(text_bytes(operand)?))
}

fn walk(operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge_work(walk_work(first)))
}

/// Work of walking over the characters or elements of `value`.
fn walk_work(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ELEMENT_WORK),
    }
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
        | Instruction::Lte
        | Instruction::In => Some((COMPARE, 2)),
        Instruction::Slice => Some((WALK, 4)),
        Instruction::ApplyFilter(name, Some(operands), _) => {
            Some((meter_of_filter(name)?, operands))
        }
        Instruction::PerformTest(name, Some(operands), _) => {
            (!CONSTANT_WORK.contains(&name)).then_some((WALK, operands))
        }
        _ => None,
    }
}

fn meter_of_filter(name: &str) -> Option<&'static str> {
    match name {
        "replace" => Some(REPLACE),
        "join" => Some(JOIN),
        "format" => Some(FORMAT),
        "indent" => Some(INDENT),
        "string" | "tojson" | "pprint" | "urlencode" | "escape" | "e" => Some(WRITE),
        name => (!CONSTANT_WORK.contains(&name)).then_some(WALK),
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
    charge_work(walk_work(value))?;
    match (method, value.as_str(), arguments) {
        ("replace", Some(text), [from, to, ..]) => charge_replace(text, from, to)?,
        ("join", Some(_), [items, ..]) => charge_join(items, value)?,
        ("format", Some(text), _) => charge_format(text, arguments)?,
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

fn write_first(operands: &[Value]) -> Result<(), Error> {
    operands.first().map_or(Ok(()), |first| charge(text_bytes(first)?))
}

fn replace(operands: &[Value]) -> Result<(), Error> {
    write_first(operands)?;
    match operands {
        [text, from, to, ..] => charge_replace(&text.to_string(), from, to),
        _ => Ok(()),
    }
}

fn charge_replace(text: &str, from: &Value, to: &Value) -> Result<(), Error> {
    let matches = from.as_str().map_or(text.len() + 1, |from| text.matches(from).count());
    charge(text_bytes(to)?.saturating_mul(matches).saturating_add(text.len()))
}

fn join(operands: &[Value]) -> Result<(), Error> {
    match operands {
        [items, joiner, ..] => charge_join(items, joiner),
        [items] => charge_join(items, &Value::from("")),
        [] => Ok(()),
    }
}

fn charge_join(items: &Value, joiner: &Value) -> Result<(), Error> {
    walk(std::slice::from_ref(items))?;
    let joiner = text_bytes(joiner)?;
    let Ok(items) = items.try_iter() else { return Ok(()) };
    for item in items {
        charge(text_bytes(&item)?.saturating_add(joiner))?;
    }
    Ok(())
}

fn format(operands: &[Value]) -> Result<(), Error> {
    match operands {
        [format, values @ ..] => charge_format(format.as_str().unwrap_or_default(), values),
        [] => Ok(()),
    }
}

/// The widths to which values are padded are digits in the format's text.
fn charge_format(format: &str, values: &[Value]) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        check_width(digits.parse().unwrap_or(usize::MAX))?;
    }
    charge(format.len().saturating_mul(MAX_WIDTH))?;
    values.iter().try_for_each(|value| charge(text_bytes(value)?))
}

fn indent(operands: &[Value]) -> Result<(), Error> {
    let [text, options @ ..] = operands else { return Ok(()) };
    let keywords = options.iter().filter(|option| option.is_kwargs());
    let keywords = keywords.filter_map(|option| option.get_attr("width").ok());
    let width = options.iter().cloned().chain(keywords).filter_map(|width| width.as_usize()).max();
    check_width(width.unwrap_or(0))?;
    let text = text.as_str().unwrap_or_default();
    charge(text.len() + (text.lines().count() + 1).saturating_mul(width.unwrap_or(4)))
}

/// Fails for a width beyond what any prompt has.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    match width <= MAX_WIDTH {
        true => Ok(()),
        false => Err(over(format!("a width of {MAX_WIDTH} characters"))),
    }
}
