//! A check of the instructions of a compiled chat template, before it renders.

use minijinja::machinery::{Instruction, Instructions, get_compiled_template};
use minijinja::{Environment, Error, ErrorKind, context};

/// Methods of Python that a template may call, and that are not here.
const ABSENT_METHODS: [&str; 13] = [
    "bit_length",
    "casefold",
    "encode",
    "expandtabs",
    "format_map",
    "fromkeys",
    "is_integer",
    "isidentifier",
    "isprintable",
    "istitle",
    "maketrans",
    "to_bytes",
    "translate",
];

/// Filters whose results are generators in Python: lists in minijinja.
const GENERATORS: [&str; 9] =
    ["batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique"];

/// Fails for a template that names other templates or has blocks, as chat templates are one file,
/// for one that escapes its output, and for uses of generators that Python does not have.
pub(super) fn check(environment: &Environment<'static>, name: &str) -> Result<(), Error> {
    let template = environment.get_template(name)?;
    let compiled = get_compiled_template(&template);
    let refused = |why: String| Err(Error::new(ErrorKind::SyntaxError, why));
    let mut generator = None;
    for instruction in all(&compiled.instructions) {
        match instruction {
            Instruction::Include(_)
            | Instruction::LoadBlocks
            | Instruction::CallBlock(_)
            | Instruction::FastSuper
            | Instruction::ExportLocals => {
                return refused("blocks and other templates have no place".into());
            }
            Instruction::PushAutoEscape => return refused("autoescape has no place".into()),
            Instruction::ApplyFilter(filter, ..) if GENERATORS.contains(filter) => {
                generator = Some(filter);
                continue;
            }
            // An index.
            Instruction::LoadConst(_) => continue,
            Instruction::Emit
            | Instruction::GetAttr(_)
            | Instruction::GetItem
            | Instruction::ApplyFilter("count" | "last" | "length" | "tojson", ..) => {
                if let Some(filter) = generator {
                    return refused(format!("the result of | {filter} is no list: add | list"));
                }
            }
            _ => {}
        }
        generator = None;
    }
    Ok(())
}

/// The filters, tests and methods that the template `name` uses and `environment` does not have, a
/// phrase each.
pub(super) fn missing(
    environment: &Environment<'static>,
    name: &str,
) -> Result<Vec<String>, Error> {
    let template = environment.get_template(name)?;
    let compiled = get_compiled_template(&template);
    let is = |kind: &str, name: &str| {
        let source = format!("name is {kind}");
        let test = environment.compile_expression(&source)?;
        Ok::<_, Error>(test.eval(context! { name })?.is_true())
    };
    let mut missing = Vec::new();
    for instruction in all(&compiled.instructions) {
        let (kind, name, is_present) = match *instruction {
            Instruction::ApplyFilter(name, ..) => ("filter", name, is("filter", name)?),
            Instruction::PerformTest(name, ..) => ("test", name, is("test", name)?),
            Instruction::CallMethod(name, _) => ("method", name, !ABSENT_METHODS.contains(&name)),
            _ => continue,
        };
        let phrase = format!("uses the {kind} {name}, which trail-rt does not have");
        if !is_present && !missing.contains(&phrase) {
            missing.push(phrase);
        }
    }
    Ok(missing)
}

fn all<'a, 'source>(
    instructions: &'a Instructions<'source>,
) -> impl Iterator<Item = &'a Instruction<'source>> {
    (0..).map_while(|at| instructions.get(at))
}
