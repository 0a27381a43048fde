//! Output of the parser for a module: names resolved to registers, nothing interpreted yet.

use super::types::Ty;

/// A parsed module.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
    /// The source, line by line, for messages.
    pub(crate) lines: Vec<String>,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// A variable of a module or of a function.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) align: u64,
    /// Bytes; 0 for `.extern .shared x[]`, the dynamic shared memory.
    pub(crate) size: u64,
    /// Initial bytes, and addresses of other variables to be stored at offsets.
    pub(crate) init: Vec<u8>,
    pub(crate) relocations: Vec<(u64, String, i64)>,
}

/// A `.entry` or `.func`.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    /// `.param` variables of an entry, in order.
    pub(crate) params: Vec<Variable>,
    /// `.shared`, `.local` and `.param` variables declared in the body.
    pub(crate) variables: Vec<Variable>,
    /// Type of every virtual register; operands name them by index.
    pub(crate) registers: Vec<Ty>,
    /// Where each label stands: index into `body`.
    pub(crate) labels: std::collections::HashMap<String, usize>,
    /// Tables of `.branchtargets`.
    pub(crate) tables: std::collections::HashMap<String, Vec<String>>,
    pub(crate) body: Vec<Statement>,
    /// `.reqntid` or `.maxntid`: most threads of a block.
    pub(crate) max_threads: Option<u32>,
    /// `.reqnctapercluster`: blocks of a cluster in x, y, z.
    pub(crate) cluster: Option<[u32; 3]>,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    /// `@p` or `@!p`: register and whether it is negated.
    pub(crate) guard: Option<(u32, bool)>,
    /// `ld`, `global`, `v4`, `b32`.
    pub(crate) opcode: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Register(u32),
    /// `!%p1`
    Not(u32),
    /// `%p1|%p2`: destination with its second result.
    Pair(Box<Operand>, Box<Operand>),
    Int(u64),
    Float {
        bits64: u64,
        bits32: u32,
    },
    /// `%tid.x` and its like.
    Special(String),
    /// A variable, label or function, plus bytes.
    Symbol(String, i64),
    /// `[base+bytes]`
    Memory(Box<Operand>, i64),
    /// `[map, {x, y}]`: a tensor map and coordinates
    Tensor(Box<Operand>, Vec<Operand>),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `_`
    Sink,
}
