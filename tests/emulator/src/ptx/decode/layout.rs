//! Where a kernel's variables lie.

use std::collections::{HashMap, HashSet};

use crate::ptx::ast::{Function, Module, Operand, Place, Variable};
use crate::ptx::operands::Symbol;
use crate::ptx::program::Param;

/// Where a kernel's variables lie.
pub(super) struct Layout {
    pub(super) symbols: HashMap<String, Symbol>,
    pub(super) params: Vec<Param>,
    pub(super) param_bytes: u64,
    pub(super) shared: u64,
    pub(super) local: u64,
}

impl Layout {
    pub(super) fn of(
        module: &Module,
        function: &Function,
        globals: &HashMap<String, u64>,
    ) -> Layout {
        let mut layout = Layout {
            symbols: HashMap::new(),
            params: Vec::new(),
            param_bytes: 0,
            shared: 0,
            local: 0,
        };
        for variable in &function.params {
            let offset = layout.param_bytes.next_multiple_of(variable.align);
            layout.params.push(Param { offset, size: variable.size });
            layout.param_bytes = offset + variable.size;
            layout
                .symbols
                .insert(variable.name.clone(), Symbol { place: Place::Param, address: offset });
        }
        let used = used_names(function);
        let mut dynamic: Vec<&Variable> = Vec::new();
        for variable in function
            .variables
            .iter()
            .chain(module.variables.iter().filter(|v| used.contains(v.name.as_str())))
        {
            let (place, end) = match variable.place {
                Place::Global | Place::Const => {
                    let address = globals.get(&variable.name).copied().unwrap_or(0);
                    layout
                        .symbols
                        .insert(variable.name.clone(), Symbol { place: variable.place, address });
                    continue;
                }
                Place::Shared if variable.size == 0 => {
                    dynamic.push(variable);
                    continue;
                }
                Place::Shared => (Place::Shared, &mut layout.shared),
                // `.param` variables of a body carry arguments of calls: memory of the thread's.
                Place::Local | Place::Param => (Place::Local, &mut layout.local),
            };
            let address = end.next_multiple_of(variable.align);
            *end = address + variable.size;
            layout.symbols.insert(variable.name.clone(), Symbol { place, address });
        }
        // All dynamic shared arrays start at the same place, after the static ones.
        let align = dynamic.iter().map(|variable| variable.align).max();
        if let Some(align) = align {
            layout.shared = layout.shared.next_multiple_of(align.max(16));
        }
        for variable in dynamic {
            layout.symbols.insert(
                variable.name.clone(),
                Symbol { place: Place::Shared, address: layout.shared },
            );
        }
        layout
    }
}

fn used_names(function: &Function) -> HashSet<&str> {
    fn visit<'a>(operand: &'a Operand, names: &mut HashSet<&'a str>) {
        match operand {
            Operand::Symbol(name, _) => {
                names.insert(name);
            }
            Operand::Memory(base, _) | Operand::Tensor(base, _) => visit(base, names),
            Operand::Vector(parts) => parts.iter().for_each(|part| visit(part, names)),
            _ => {}
        }
    }
    let mut names = HashSet::new();
    function
        .body
        .iter()
        .flat_map(|statement| &statement.operands)
        .for_each(|operand| visit(operand, &mut names));
    names
}
