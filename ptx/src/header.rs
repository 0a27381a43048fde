//! The contract at the top of every kernel file, parsed.
//!
//! A header is the file's first comment block. Each line begins with a field's name; lines indented
//! further go on with it.
//!
//! ```text
//! // op      one line: what is computed
//! // params  FooParams
//! // in      name [rows, width] bf16, row-major, 16-byte aligned
//! // out     name [rows] f32, 4-byte aligned
//! // arch    sm_80, sm_90a
//! // launch  grid [rows], block 128, shared 0
//! // limit   bytes: rows*width*2
//! // reference runtime/tests/cuda/foo.rs::naive_foo
//! // why     the one idea
//! ```

use crate::Target;

/// A kernel file's contract.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Operation in one line.
    pub op: String,
    /// The parameter struct that every entry of the file takes.
    pub params: String,
    /// Inputs: name, shape, dtype, layout, alignment.
    pub inputs: Vec<String>,
    /// Outputs, likewise.
    pub outputs: Vec<String>,
    /// Targets of the compilation (PTX for sm_80 is also assembled to an sm_90a cubin).
    pub arch: Vec<Target>,
    /// Grid, threads of a block, and dynamic shared memory.
    pub launch: String,
    /// Bytes moved or flops, as a formula.
    pub limit: String,
    /// The naive reference implementation: a path in the repository, `::`, a function.
    pub reference: String,
    /// The one idea.
    pub why: String,
}

const FIELDS: [&str; 9] =
    ["op", "params", "in", "out", "arch", "launch", "limit", "reference", "why"];

/// Reads the header of a kernel file's `text`; the error says what is missing or wrong.
pub fn parse(text: &str) -> Result<Header, String> {
    let mut header = Header::default();
    for (field, value) in fields(text)? {
        let place = match field {
            "in" | "out" => {
                check_tensor(&value)?;
                if field == "in" { &mut header.inputs } else { &mut header.outputs }.push(value);
                continue;
            }
            "arch" => {
                header.arch = parse_arch(&value)?;
                continue;
            }
            "op" => &mut header.op,
            "params" => &mut header.params,
            "launch" => &mut header.launch,
            "limit" => &mut header.limit,
            "reference" => &mut header.reference,
            _ => &mut header.why,
        };
        if !place.is_empty() {
            return Err(format!("field `{field}` is there twice"));
        }
        *place = value;
    }
    complete(header)
}

fn complete(header: Header) -> Result<Header, String> {
    let texts = [
        ("op", &header.op),
        ("params", &header.params),
        ("launch", &header.launch),
        ("limit", &header.limit),
        ("reference", &header.reference),
        ("why", &header.why),
    ];
    if let Some((field, _)) = texts.iter().find(|(_, text)| text.is_empty()) {
        return Err(format!("field `{field}` is missing"));
    }
    let lists =
        [("in", header.inputs.len()), ("out", header.outputs.len()), ("arch", header.arch.len())];
    if let Some((field, _)) = lists.iter().find(|(_, length)| *length == 0) {
        return Err(format!("field `{field}` is missing"));
    }
    if !(header.limit.starts_with("bytes:") || header.limit.starts_with("flops:")) {
        return Err("field `limit` must begin with `bytes:` or `flops:`".into());
    }
    if !header.reference.contains("::") {
        return Err("field `reference` must be `path::function`".into());
    }
    Ok(header)
}

/// The fields of the first comment block, in order.
fn fields(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let mut found: Vec<(&'static str, String)> = Vec::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("//") else { break };
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        if rest.starts_with("  ") {
            let Some((_, value)) = found.last_mut() else {
                return Err("the header begins with a continuation".into());
            };
            value.push(' ');
            value.push_str(rest.trim());
            continue;
        }
        let (word, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let Some(field) = FIELDS.iter().find(|field| **field == word) else {
            return Err(format!("unknown field `{word}`"));
        };
        found.push((field, value.trim().to_owned()));
    }
    Ok(found)
}

/// `name [shape] dtype, layout, N-byte aligned`
fn check_tensor(value: &str) -> Result<(), String> {
    const DTYPES: [&str; 7] = ["bf16", "f16", "f32", "i32", "u32", "u64", "bytes"];
    let wrong = |what: &str| Err(format!("`{value}`: {what}"));
    let Some((name, rest)) = value.split_once(" [") else {
        return wrong("expected `name [shape] dtype, layout, N-byte aligned`");
    };
    if name.is_empty() || name.contains(' ') {
        return wrong("the name is one word");
    }
    let Some((_, rest)) = rest.split_once(']') else { return wrong("the shape is not closed") };
    let dtype = rest.trim().split([',', ' ', ';', ':']).next().unwrap_or("");
    if !DTYPES.contains(&dtype) {
        return wrong("no known dtype after the shape");
    }
    if !rest.contains("-byte aligned") {
        return wrong("no alignment");
    }
    Ok(())
}

fn parse_arch(value: &str) -> Result<Vec<Target>, String> {
    let one = |name: &str| match name.trim() {
        "sm_80" => Ok(Target::Sm80),
        "sm_90a" => Ok(Target::Sm90a),
        other => Err(format!("unknown arch `{other}`")),
    };
    value.split(',').map(one).collect()
}
